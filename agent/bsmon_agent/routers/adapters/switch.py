"""transformers, Switch Transformers: top-1 with a fixed number of places per expert and sequence.

Output: (one-hot mask after the drop [B, S, E], probability [B, S, 1], logits [B, S, E]). A dropped token's row is all
zero, so what it had chosen is worked out as the router does it: the best of the rounded probabilities.
"""

from __future__ import annotations

import torch
from torch import nn

from bsmon_agent.routers.reading import Call, Ids, Mask, Reading, Scores, describe, is_float, parts, rows
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts, facts_of


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    found = facts_of(module, parent)
    found.top_k, found.dropless, found.capacity_factor = 1, False, None
    return found


@adapter("switch", "transformers:SwitchTransformersTop1Router", facts=facts)
def read(site: Site, call: Call) -> Reading | str:
    items, experts = parts(call.output), site.known.experts
    if len(items) != 3 or experts is None or any(item.shape[-1:] != (experts,) for item in (items[0], items[2])):
        return f"its output {describe(call.output)} is not (mask, probability, logits)"
    mask, logits = items[0], items[2]
    wide = getattr(site.module, "dtype", torch.float32)
    rounded = getattr(site.module, "input_dtype", None) or (items[1].dtype if is_float(items[1]) else wide)
    probabilities = rows(logits).softmax(-1, dtype=wide).to(rounded)
    return Reading(
        experts,
        1,
        rows(mask).shape[0],
        assigned=Ids(probabilities.argmax(-1, keepdim=True)),
        kept=Mask(rows(mask)),
        scores=Scores(logits),
        weights=items[1],
        groups=mask.shape[0] if mask.ndim == 3 else 1,
        capacity=site.known.capacity,
    )
