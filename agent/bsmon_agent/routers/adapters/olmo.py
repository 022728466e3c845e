"""OLMo-core ``MoERouter``: (weights [B, S, K], numbers [B, S, K], counts [E], losses). What a block with a capacity
drops happens behind the router.
"""

from __future__ import annotations

from torch import nn

from bsmon_agent.routers.adapters.shapes import chosen, find_weights
from bsmon_agent.routers.reading import Call, Ids, Reading
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts, facts_of


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    found = facts_of(module, parent)
    found.dropless = "Dropless" in type(parent).__name__ or not found.capacity_factor
    return found


@adapter("olmo-core", "olmo_core:MoERouter", facts=facts)
def read(site: Site, call: Call) -> Reading | str:
    answer = chosen(call, site.known.experts, site.known.top_k)
    if isinstance(answer, str) or site.known.experts is None:
        return str(answer)
    ids, items = answer
    return Reading(
        site.known.experts,
        ids.shape[1],
        ids.shape[0],
        assigned=Ids(ids),
        weights=find_weights(items, ids),
        shows_drops=bool(site.known.dropless),
    )
