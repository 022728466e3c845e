"""Dropless routers that answer (weights [T, K], numbers [T, K], …): NeMo Automodel's ``Gate``, litgpt's."""

from __future__ import annotations

from bsmon_agent.routers.adapters.shapes import chosen, find_weights
from bsmon_agent.routers.adapters.transformers_triple import facts
from bsmon_agent.routers.reading import Call, Ids, Reading
from bsmon_agent.routers.registry import Site, adapter


@adapter("dropless", r"nemo_automodel:\w*Gate", r"litgpt:\w*Router", facts=facts)
def read(site: Site, call: Call) -> Reading | str:
    answer = chosen(call, site.known.experts, site.known.top_k)
    if isinstance(answer, str) or site.known.experts is None:
        return str(answer)
    ids, items = answer
    return Reading(site.known.experts, ids.shape[1], ids.shape[0], assigned=Ids(ids), weights=find_weights(items, ids))
