"""Routers known by name and surroundings only: the output is told apart by shape and dtype."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bsmon_agent.routers.adapters.shapes import find_ids, find_weights, find_wide, linear_logits, tokens_in
from bsmon_agent.routers.reading import (
    Call,
    Choice,
    Ids,
    Mask,
    Reading,
    Scores,
    describe,
    is_float,
    parts,
    rows,
)
from bsmon_agent.routers.registry import Adapter, Site


def read(site: Site, call: Call) -> Reading | str:
    """Expert numbers with weights, else a dispatch tensor or mask, else logits."""
    experts, top_k, tokens = site.known.experts, site.known.top_k, tokens_in(call)
    if experts is None:
        return "how many experts it has is not known: declare it with bsmon_agent.router()"
    items = parts(call.output)
    for form in (by_ids, by_places, by_mask, by_scores):
        reading = form(site, call, items, experts, top_k, tokens)
        if reading is not None:
            return reading
    return f"its output {describe(call.output)} shows neither expert numbers, nor a mask, nor logits over {experts}"


def by_ids(
    site: Site, call: Call, items: tuple[Any, ...], experts: int, top_k: int | None, tokens: int | None
) -> Reading | None:
    """Numbers [T, K]; a weight of exactly 0 or a number out of range is a choice that no expert works on."""
    ids = find_ids(items, experts, top_k, tokens)
    if ids is None:
        return None
    weights = find_weights(items, ids)
    wide = find_wide(items, experts, ids.shape[0])
    return Reading(
        experts,
        int(ids.shape[1]),
        int(ids.shape[0]),
        assigned=Ids(ids),
        kept=None if weights is None else Ids(ids, weights != 0),
        scores=_scores(wide),
        weights=weights,
    )


def by_places(
    site: Site, call: Call, items: tuple[Any, ...], experts: int, top_k: int | None, tokens: int | None
) -> Reading | None:
    """A dispatch or combine tensor [..., E, C]: a token has an expert where it has a place with it."""
    for item in sorted(items, key=lambda item: is_float(item)):
        if not isinstance(item, Tensor) or item.ndim < 3 or item.shape[-2] != experts:
            continue
        lead = item.numel() // (experts * item.shape[-1])
        found = (item != 0).any(-1)
        mask = found if tokens in (None, lead) else _over_choices(found, tokens or 0, experts)
        if mask is None:
            continue
        groups = item.shape[0] if item.ndim == 4 and lead == tokens else 1
        return _from_kept(site, call, mask.reshape(-1, experts), experts, top_k, groups, int(item.shape[-1]))
    return None


def by_mask(
    site: Site, call: Call, items: tuple[Any, ...], experts: int, top_k: int | None, tokens: int | None
) -> Reading | None:
    """A mask [T, E] or [K, T, E], of bool or whole numbers; weights beside it say which of it counts."""
    for item in items:
        if not isinstance(item, Tensor) or is_float(item) or item.ndim < 2 or item.shape[-1] != experts:
            continue
        lead = item.numel() // experts
        shown = item != 0
        mask = shown.reshape(-1, experts) if tokens in (None, lead) else _over_choices(shown, tokens or 0, experts)
        if mask is None:
            continue
        wide = find_wide(items, experts, int(mask.shape[0]))
        if wide:
            mask = mask & (wide[0] != 0)
        return _from_kept(site, call, mask, experts, top_k, 1, None)
    return None


def by_scores(
    site: Site, call: Call, items: tuple[Any, ...], experts: int, top_k: int | None, tokens: int | None
) -> Reading | None:
    """Scores [T, E] alone: their K best, which is right for a choice by logits without bias, noise or groups. Rows
    with at most K entries that are not 0 show the choice itself."""
    wide = find_wide(items, experts, tokens)
    if not wide or not top_k:
        return None
    shown = wide[0] != 0
    sparse = (shown.sum(-1) <= top_k).all()
    best = Ids(wide[-1].topk(top_k, dim=-1).indices).dense(experts)
    return Reading(
        experts,
        top_k,
        int(wide[0].shape[0]),
        assigned=Mask((shown & sparse) | (best & ~sparse)),
        scores=Scores(wide[-1]) if len(wide) > 1 else None,
        shows_drops=False,
    )


def read_gate(site: Site, call: Call) -> Reading | str:
    """A plain Linear: logits, and the block takes its K best out of sight."""
    logits = parts(call.output)[0]
    if not is_float(logits) or logits.shape[-1] != site.known.experts:
        return f"its output {describe(call.output)} are not logits over {site.known.experts} experts"
    if not site.known.top_k:
        return "how many experts a token gets is not known: give the block a top_k, or declare the router"
    found = rows(logits)
    return Reading(
        int(found.shape[1]),
        site.known.top_k,
        int(found.shape[0]),
        assigned=Ids(found.topk(site.known.top_k, dim=-1).indices),
        scores=Scores(found),
        shows_drops=False,
    )


def _scores(wide: list[Tensor]) -> Scores | None:
    return Scores(wide[0]) if wide else None


def _over_choices(mask: Tensor, tokens: int, experts: int) -> Tensor | None:
    """[K, T, E] or [T, K, E] as [T, E]."""
    if mask.ndim != 3 or mask.shape[-1] != experts or tokens not in mask.shape[:2]:
        return None
    return mask.any(0) if mask.shape[1] == tokens else mask.any(1)


def _from_kept(
    site: Site, call: Call, mask: Tensor, experts: int, top_k: int | None, groups: int, capacity: int | None
) -> Reading | None:
    """What was kept is shown. What was chosen is the K best of the router's own logits, as long as all that was kept
    is among them."""
    if not top_k:
        return None
    logits = linear_logits(site.module, call, experts)
    chosen: Choice | None = None
    doubt = None
    if logits is not None and logits.shape[0] == mask.shape[0]:
        chosen = Ids(logits.topk(top_k, dim=-1).indices)
        doubt = (mask & ~chosen.dense(experts)).sum()
    return Reading(
        experts,
        top_k,
        int(mask.shape[0]),
        assigned=chosen,
        kept=Mask(mask),
        scores=None if logits is None else Scores(logits),
        doubt=doubt,
        groups=groups,
        capacity=capacity,
    )


GENERIC = Adapter("generic", (), read, tag="derived")
GATE = Adapter("gate", (), read_gate, tag="logits-only")

__all__ = ["GATE", "GENERIC", "read"]
