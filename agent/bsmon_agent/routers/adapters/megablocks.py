"""megablocks ``LearnedRouter``: (probabilities [T, E], weights [T, K], numbers [T, K]), in later versions with logits
after the probabilities. dMoE drops nothing; MoE keeps the first C of each expert, C = int(factor K T / E); a factor of
0 sets no limit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bsmon_agent.routers.adapters.shapes import chosen, find_weights
from bsmon_agent.routers.reading import Call, Ids, Reading, Scores
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts, facts_of


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    found = facts_of(module, parent)
    experts = type(getattr(parent, "experts", parent)).__name__
    found.dropless = "Dropless" in experts or type(parent).__name__.startswith("dMoE") or not found.capacity_factor
    return found


@adapter("megablocks", "megablocks:LearnedRouter", facts=facts)
def read(site: Site, call: Call) -> Reading | str:
    known = site.known
    answer = chosen(call, known.experts, known.top_k)
    if isinstance(answer, str) or known.experts is None:
        return str(answer)
    ids, items = answer
    kept, capacity = None, None
    parallel = getattr(getattr(site.module, "args", None), "moe_expert_model_parallelism", False)
    if not known.dropless and not parallel:
        capacity = int((known.capacity_factor or 0.0) * ids.numel() / known.experts)
        kept = _first(Ids(ids), known.experts, capacity)
    return Reading(
        known.experts,
        ids.shape[1],
        ids.shape[0],
        assigned=Ids(ids),
        kept=kept,
        scores=Scores(items[0], "shares"),
        weights=find_weights(items, ids),
        capacity=capacity,
        shows_drops=bool(known.dropless) or not parallel,
    )


def _first(ids: Ids, experts: int, capacity: int) -> Tensor:
    """How many of each expert's choices find a place."""
    counts: Any = torch.zeros(experts + 2, dtype=torch.int64, device=ids.ids.device)
    ids.add_to(counts)
    return torch.clamp(counts[1:-1], max=capacity)
