"""fairscale ``Top2Gate``: (loss, combine [S, E, C], dispatch [S, E, C]). The second choice is drawn at random, so only
what was kept shows; every token has two choices, so what is missing was dropped.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bsmon_agent.routers.adapters.shapes import linear_logits
from bsmon_agent.routers.reading import Call, Mask, Reading, Scores, describe, parts
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    gate: Any = module
    return Facts(experts=int(gate.wg.out_features), top_k=2, capacity_factor=1.0, dropless=False)


@adapter("fairscale", "fairscale:Top2Gate", facts=facts, tag="exact")
def read(site: Site, call: Call) -> Reading | str:
    items, experts = parts(call.output), site.known.experts
    dispatch = items[2] if len(items) == 3 else None
    if not isinstance(dispatch, Tensor) or dispatch.ndim != 3 or experts is None or dispatch.shape[1] != experts:
        return f"its output {describe(call.output)} is not (loss, combine, dispatch)"
    logits = linear_logits(site.module, call, experts)
    return Reading(
        experts,
        2,
        dispatch.shape[0],
        assigned=None,
        kept=Mask(dispatch.any(-1)),
        scores=None if logits is None else Scores(logits),
        weights=items[1],
        capacity=dispatch.shape[-1],
    )
