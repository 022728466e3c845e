"""transformers families whose router answers something of its own. Each is a small exception to the triple."""

from __future__ import annotations

from torch import Tensor, nn

from bsmon_agent.routers.adapters import transformers_triple as triple
from bsmon_agent.routers.reading import Call, Ids, Reading, Scores, describe, is_float, is_ids, parts, rows
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts


@adapter("llama4", "transformers:Llama4Router", facts=triple.facts)
def llama4(site: Site, call: Call) -> Reading | str:
    """(sigmoid scores, 0 where not chosen [T, E]; logits [T, E]): the choice is the K best logits."""
    return _best(site, call, 1)


@adapter("dbrx", "transformers:DbrxRouter", facts=triple.facts)
def dbrx(site: Site, call: Call) -> Reading | str:
    """transformers 5: logits [T, E], of which the block takes the K best; 4: (probabilities, weights, numbers)."""
    items = parts(call.output)
    if len(items) == 3 and is_ids(items[2]):
        return _reading(rows(items[2]), Scores(items[0], "shares"), site, items[1])
    return _best(site, call, 0)


@adapter("jetmoe", r"transformers:\w*TopKGating", facts=triple.facts)
def jetmoe(site: Site, call: Call) -> Reading | str:
    """(order, token numbers, gates, a list of counts, logits [T, E]), in transformers 4 Granite's too; JetMoE's also
    routes attention."""
    return _best(site, call, 4)


@adapter("gemma4", r"transformers:(Gemma4|DiffusionGemma)\w*Router", facts=triple.facts)
def gemma4(site: Site, call: Call) -> Reading | str:
    """(probabilities already [T, E], weights [T, K], numbers [T, K])."""
    items = parts(call.output)
    if len(items) != 3 or not is_ids(items[2]):
        return f"its output {describe(call.output)} is not (probabilities, weights, numbers)"
    return _reading(rows(items[2]), Scores(items[0], "shares"), site, items[1])


@adapter("hunyuan", "transformers:HunYuanMoEV1Gate", facts=triple.facts)
def hunyuan(site: Site, call: Call) -> Reading | str:
    """The triple; in transformers 4 the logits alone, of which the block takes the K best."""
    items = parts(call.output)
    return triple.read(site, call) if len(items) > 1 else _best(site, call, 0)


def longcat_facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    found = triple.facts(module, parent)
    found.classes = getattr(module, "n_routed_experts", None)
    return found


@adapter("longcat", "transformers:LongcatFlashTopkRouter", facts=longcat_facts)
def longcat(site: Site, call: Call) -> Reading | str:
    """The triple over more classes than experts: numbers from ``experts`` up are zero experts, which pass a token
    through. Such a choice is policy: neither computed nor dropped."""
    items, experts = parts(call.output), site.known.experts
    ids = next((rows(item) for item in items if is_ids(item)), None)
    if ids is None or experts is None:
        return f"its output {describe(call.output)} shows no expert numbers"
    logits = next((item for item in items if is_float(item) and item.shape[-1] == site.known.classes), None)
    return Reading(
        experts,
        ids.shape[1],
        ids.shape[0],
        assigned=Ids(ids),
        scores=None if logits is None else Scores(logits),
    )


def zaya_facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    found = triple.facts(module, parent)
    found.classes = getattr(module, "num_router_classes", None)
    return found


@adapter("zaya", "transformers:ZayaRouter", facts=zaya_facts)
def zaya(site: Site, call: Call) -> Reading | str:
    """(logits [T, E + 1], weights, numbers, state): the skip expert is rewritten to number 0 with weight 0."""
    items, experts = parts(call.output), site.known.experts
    if len(items) < 3 or not is_ids(items[2]) or experts is None:
        return f"its output {describe(call.output)} is not (logits, weights, numbers, state)"
    weights, ids = rows(items[1]), rows(items[2])
    return Reading(
        experts,
        ids.shape[1],
        ids.shape[0],
        assigned=Ids(ids, weights != 0),
        scores=Scores(items[0]),
        weights=weights,
    )


@adapter("none", "transformers:(DogeCDMoE|VitPose\\w*MoE\\w*)", tag="unsupported")
def none(site: Site, call: Call) -> Reading | str:
    return "it is no router of tokens to experts (product keys, or experts by data set)"


def _best(site: Site, call: Call, place: int) -> Reading | str:
    """The K best of the logits at this place of the output."""
    items, top_k = parts(call.output), site.known.top_k
    logits = items[place] if place < len(items) else None
    if not is_float(logits) or not top_k:
        return f"its output {describe(call.output)} shows no logits, or how many experts a token gets is not known"
    found = rows(logits)
    return _reading(found.topk(top_k, dim=-1).indices, Scores(found), site, None)


def _reading(ids: Tensor, scores: Scores, site: Site, weights: Tensor | None) -> Reading:
    return Reading(
        scores.values.shape[-1], ids.shape[1], ids.shape[0], assigned=Ids(ids), scores=scores, weights=weights
    )
