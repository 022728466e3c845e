"""Megatron-Core ``TopKRouter``: (probabilities [T, E], routing map [T, E]), both after the drop, the map even filled up
where experts are padded to their capacity. What was chosen passes as an argument through the function that drops, so
that function is wrapped; it is called with the same arguments and answers the same.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bsmon_agent.routers.reading import Call, Mask, Reading, Scores, describe, local, parts
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts

MODULE = "megatron.core.transformer.moe.router"


class Held:
    """What passed through the library's functions during one call of a router."""

    chosen: Tensor | None = None  # [T, E]
    logits: Tensor | None = None  # [T, E]


_open: list[Held] = []  # of the router that is being called


def begin(module: nn.Module) -> Held:
    _open[:] = [Held()]
    return _open[0]


def install() -> Callable[[], None]:
    """Wrap the two functions; answers how to take the wraps out."""
    library: Any = importlib.import_module(MODULE)
    originals = {}
    for name, note in WRAPPED:
        if hasattr(library, name):
            originals[name] = getattr(library, name)
            setattr(library, name, _noting(originals[name], note))

    def undo() -> None:
        for name, original in originals.items():
            setattr(library, name, original)

    return undo


def _noting(original: Callable[..., Any], note: Callable[[Held, tuple[Any, ...], dict[str, Any]], None]) -> Any:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if _open and not torch.compiler.is_compiling():
            note(_open[0], args, kwargs)
        return original(*args, **kwargs)

    return function


def _note_chosen(held: Held, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    held.chosen = args[1] if len(args) > 1 else kwargs.get("routing_map")


def _note_logits(held: Held, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    held.logits = args[0] if args else kwargs.get("logits")


WRAPPED = (("apply_router_token_dropping", _note_chosen), ("topk_routing_with_score_function", _note_logits))


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    config: Any = getattr(module, "config", None)
    factor = getattr(config, "moe_expert_capacity_factor", None)
    return Facts(int(config.num_moe_experts), int(config.moe_router_topk), factor, dropless=factor is None)


@adapter("megatron", "megatron:TopKRouter", facts=facts, before=begin, install=install)
def read(site: Site, call: Call) -> Reading | str:
    _open.clear()
    items, known = parts(call.output), site.known
    if len(items) != 2 or not known.experts or not known.top_k or items[1].shape[-1:] != (known.experts,):
        return f"its output {describe(call.output)} is not (probabilities, routing map)"
    probabilities, routing = items
    held = call.held if isinstance(call.held, Held) else Held()
    chosen, kept = _choice(probabilities, routing, held, site.facts().capacity_factor)
    padding = local(call.args[1] if len(call.args) > 1 else call.kwargs.get("padding_mask"))
    return Reading(
        known.experts,
        known.top_k,
        routing.shape[0],
        assigned=chosen,
        kept=kept,
        scores=_scores(site.module, held),
        weights=probabilities,
        padding=None if padding is None else padding.reshape(-1),
        capacity=_capacity(routing.shape[0], site.facts()),
    )


def _choice(
    probabilities: Tensor, routing: Tensor, held: Held, factor: float | None
) -> tuple[Mask | None, Mask | None]:
    """What was chosen and what was kept; no kept beside it where nothing is dropped."""
    if factor is None:
        return Mask(routing), None
    if held.chosen is None:
        return None, Mask(probabilities)
    chosen = local(held.chosen)
    return Mask(chosen), Mask((chosen != 0) & (routing != 0))


def _scores(router: Any, held: Held) -> Scores | None:
    kinds = {"softmax": "logits", "sigmoid": "sigmoid"}
    kind = kinds.get(getattr(router.config, "moe_router_score_function", ""))
    return None if held.logits is None or kind is None else Scores(local(held.logits), kind)  # type: ignore[arg-type]


def _capacity(tokens: int, facts: Facts) -> int | None:
    if facts.capacity_factor is None or torch.compiler.is_compiling():
        return None
    return math.ceil(tokens * (facts.top_k or 1) / (facts.experts or 1) * facts.capacity_factor)
