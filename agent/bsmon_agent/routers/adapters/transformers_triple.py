"""transformers 5: nearly every family's router answers (logits [T, E], weights [T, K], numbers [T, K]), dropless."""

from __future__ import annotations

import re

from torch import Tensor, nn

from bsmon_agent.routers.adapters.shapes import find_ids, find_weights, find_wide
from bsmon_agent.routers.reading import Call, Ids, Reading, Scores, describe, parts
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts, facts_of

SIGMOID = re.compile(
    r"(Afmoe|AXK|BailingHybrid|Beam|Cohere2Moe|Deepseek(V3|V32)|Dots|Exaone|Flint|Glm|HYV|Hy|Inkling|Kimi|Kolibri|"
    r"Laguna|Lfm2|MiMo|MiniMaxM|Muse|Nemotron|Solar|Step3)"
)


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    found = facts_of(module, parent)
    found.dropless, found.capacity, found.capacity_factor = True, None, None
    return found


@adapter(
    "transformers",
    r"transformers:\w*(TopKRouter|TopkRouter|TokenChoiceRouter|HashRouter)|\w*MoEGate",
    facts=facts,
)
def read(site: Site, call: Call) -> Reading | str:
    items = parts(call.output)
    experts = site.known.experts
    if experts is None:
        return "how many experts it has is not known"
    ids = find_ids(items, experts, site.known.top_k, None)
    if ids is None:
        return f"its output {describe(call.output)} shows no expert numbers [T, {site.known.top_k}]"
    wide = find_wide(items, experts, int(ids.shape[0]))
    return Reading(
        experts,
        int(ids.shape[1]),
        int(ids.shape[0]),
        assigned=Ids(ids),
        scores=scores(site.module, wide[0]) if wide and len(items) > 2 else None,
        weights=find_weights(items, ids),
    )


def scores(module: nn.Module, logits: Tensor) -> Scores:
    """Softmax, or the family's other score function; its shares are the scores over their sum."""
    function = getattr(module, "score_fn", None)
    if callable(function):
        return Scores(function(logits.float()), "shares")
    return Scores(logits, "sigmoid" if SIGMOID.match(type(module).__name__) else "logits")
