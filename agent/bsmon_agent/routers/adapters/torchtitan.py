"""torchtitan ``TokenChoiceTopKRouter``: (weights [B, L, K], numbers [B, L, K], scores [B, L, E]); dropless. The scores
are sigmoid or softmax values already.
"""

from __future__ import annotations

from bsmon_agent.routers.adapters.transformers_triple import facts
from bsmon_agent.routers.reading import Call, Ids, Reading, Scores, describe, is_float, is_ids, parts, rows
from bsmon_agent.routers.registry import Site, adapter


@adapter("torchtitan", "torchtitan:TokenChoiceTopKRouter", facts=facts)
def read(site: Site, call: Call) -> Reading | str:
    items, experts = parts(call.output), site.known.experts
    ids = next((rows(item) for item in items if is_ids(item) and item.ndim >= 2), None)
    if ids is None or experts is None:
        return f"its output {describe(call.output)} shows no expert numbers"
    wide = next((item for item in items if is_float(item) and item.shape[-1] == experts), None)
    return Reading(
        experts,
        ids.shape[1],
        ids.shape[0],
        assigned=Ids(ids),
        scores=None if wide is None else Scores(wide, "shares"),
        weights=items[0] if is_float(items[0]) else None,
    )
