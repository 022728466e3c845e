"""Routers that a transformers model names itself, in ``_can_record_outputs``, and that no adapter of ours knows."""

from __future__ import annotations

from bsmon_agent.routers.adapters import generic
from bsmon_agent.routers.adapters.shapes import find_ids
from bsmon_agent.routers.reading import Call, Ids, Reading, Scores, describe, is_float, parts, rows
from bsmon_agent.routers.registry import Adapter, Site


def read(site: Site, call: Call) -> Reading | str:
    """As any router if expert numbers are there; else the published logits alone."""
    items = parts(call.output)
    known = site.known
    if known.experts and find_ids(items, known.experts, known.top_k, None) is not None:
        return generic.read(site, call)
    logits = items[site.detail] if site.detail < len(items) else None
    if not is_float(logits) or not known.top_k or logits.shape[-1] != known.experts:
        return f"its output {describe(call.output)} is not that of a token router"
    found = rows(logits)
    chosen = Ids(found.topk(known.top_k, dim=-1).indices)
    return Reading(
        known.experts, known.top_k, int(found.shape[0]), assigned=chosen, scores=Scores(found), shows_drops=False
    )


RECORDED = Adapter("transformers", (), read, tag="logits-only")
