"""Routers that the user described with ``bsmon_agent.router(...)``, for what no rule knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from bsmon_agent.routers.reading import Call, Choice, Ids, Mask, Reading, Scores, is_ids, local, rows
from bsmon_agent.routers.registry import Adapter, Site
from bsmon_agent.routers.structure import Facts, facts_of

Where = int | str | Callable[[nn.Module, tuple[Any, ...], Any], Any] | None


@dataclass(frozen=True)
class Declaration:
    indices: Where = None
    probs: Where = None
    dropped: Where = None
    capacity: Where = None


_declared: WeakKeyDictionary[nn.Module, Declaration] = WeakKeyDictionary()


def declare(
    module: nn.Module, indices: Where = None, probs: Where = None, dropped: Where = None, capacity: Where = None
) -> None:
    """Say how a router is read.

    Each argument is an index into what ``forward`` returns, the name of an attribute of the module, or a function of
    (module, args, output) that answers

    * ``indices``: expert numbers [..., K], -1 for nobody, or a mask [..., E] of what was chosen;
    * ``probs``: the router's probabilities [..., E] (without ``indices``, its K best are taken);
    * ``dropped``: a mask shaped like ``indices``, or [T, E], that is true where a choice was dropped, or a mask [T]
      of tokens whose every choice was dropped;
    * ``capacity``: places an expert has. For this argument a number is the capacity itself.
    """
    _declared[module] = Declaration(indices, probs, dropped, capacity)


def declared(module: nn.Module) -> Declaration | None:
    return _declared.get(module)


def _get(where: Where, module: nn.Module, call: Call) -> Any:
    if where is None:
        return None
    if isinstance(where, str):
        return local(getattr(module, where))
    if isinstance(where, int):
        output = call.output if isinstance(call.output, (tuple, list)) else (call.output,)
        return local(output[where])
    return local(where(module, call.args, call.output))


def _facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    facts = facts_of(module, parent)
    how = _declared.get(module, Declaration())
    if isinstance(how.capacity, int):
        facts.capacity = how.capacity
    if how.dropped is None and how.capacity is None:
        facts.capacity = facts.capacity_factor = None
    return facts


def _read(site: Site, call: Call) -> Reading | str:
    how, facts = site.detail, site.known
    indices, probs = (_get(where, site.module, call) for where in (how.indices, how.probs))
    experts = facts.experts if probs is None else int(probs.shape[-1])
    if indices is None and probs is None:
        return "neither indices nor probs were declared"
    if indices is None:
        if not facts.top_k:
            return "only probs were declared, and no attribute says how many experts a token gets (top_k)"
        indices = probs.topk(facts.top_k, dim=-1).indices
    if experts is None:
        return "how many experts there are is not known: declare probs too, or give the router a num_experts"
    chosen = _choice(indices, experts)
    if isinstance(chosen, str):
        return chosen
    tokens = int((chosen.ids if isinstance(chosen, Ids) else chosen.mask).shape[0])
    top_k = int(chosen.ids.shape[1]) if isinstance(chosen, Ids) else facts.top_k
    if not top_k:
        return "how many experts a token gets is not known: declare indices as numbers, or give the router a top_k"
    kept = _kept(chosen, _get(how.dropped, site.module, call), experts)
    return Reading(
        experts,
        top_k,
        tokens,
        assigned=chosen,
        kept=kept,
        scores=None if probs is None else Scores(rows(probs), "shares"),
        capacity=_capacity(how.capacity, site.module, call),
        shows_drops=how.dropped is not None or not facts.capacity_factor,
    )


def _choice(indices: Tensor, experts: int) -> Choice | str:
    if is_ids(indices) and indices.shape[-1] != experts:
        return Ids(rows(indices))
    if indices.shape[-1] == experts:
        return Mask(rows(indices))
    return f"indices {list(indices.shape)} are neither expert numbers nor a mask over {experts} experts"


def _kept(chosen: Choice, dropped: Any, experts: int) -> Choice | None:
    """What is left of the choice."""
    if not isinstance(dropped, Tensor):
        return None
    gone = dropped != 0
    if isinstance(chosen, Ids):
        if gone.numel() == chosen.ids.numel():
            return Ids(chosen.ids, ~gone.reshape(chosen.ids.shape))
        if gone.numel() == chosen.ids.shape[0]:
            return Ids(chosen.ids, ~gone.reshape(-1, 1).expand_as(chosen.ids))
        chosen = Mask(chosen.dense(experts))
    gone = gone.reshape(-1, experts) if gone.numel() == chosen.mask.numel() else gone.reshape(-1, 1)
    return Mask(chosen.dense(experts) & ~gone)


def _capacity(where: Where, module: nn.Module, call: Call) -> int | None:
    value = where if isinstance(where, int) else _get(where, module, call)
    return int(value) if isinstance(value, (int, float)) else None


DECLARED = Adapter("declared", (), _read, _facts, "derived")

__all__ = ["DECLARED", "Declaration", "declare", "declared"]
