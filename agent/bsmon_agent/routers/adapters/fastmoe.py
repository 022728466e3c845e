"""fastmoe's gates: (numbers [T, K] with -1 where pruned by capacity, weights). GShard's also leaves second choices out
at random, with the same -1.
"""

from __future__ import annotations

from torch import nn

from bsmon_agent.routers.adapters.shapes import linear_logits
from bsmon_agent.routers.reading import Call, Ids, Reading, Scores, describe, is_ids, parts
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts, number

PRUNING = ("GShardGate", "SwitchGate")


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    prunes = any(cls.__name__ in PRUNING for cls in type(module).__mro__)
    experts, top_k = number(module, names=("tot_expert",)), number(module, names=("top_k",))
    return Facts(experts, top_k, dropless=not prunes)


@adapter("fastmoe", r"fmoe:(NaiveGate|GShardGate|SwitchGate|NoisyGate|FasterGate|SwipeGate)", facts=facts)
def read(site: Site, call: Call) -> Reading | str:
    items, known = parts(call.output), site.known
    if not is_ids(items[0]) or not known.experts or not known.top_k:
        return f"its output {describe(call.output)} is not (numbers, weights)"
    ids = items[0].reshape(-1, known.top_k)
    logits = linear_logits(site.module, call, known.experts)
    chosen, doubt = Ids(ids), None
    prunes = not known.dropless
    noisy = site.module.training and type(site.module).__name__ == "SwitchGate"
    if prunes and logits is not None and not noisy:
        chosen = Ids(logits.topk(known.top_k, dim=-1).indices)
        doubt = (Ids(ids).dense(known.experts) & ~chosen.dense(known.experts)).sum()
    return Reading(
        known.experts,
        known.top_k,
        ids.shape[0],
        assigned=None if prunes and (logits is None or noisy) else chosen,
        kept=Ids(ids) if prunes else None,
        scores=None if logits is None else Scores(logits),
        doubt=doubt,
        splits=not (prunes and getattr(site.module, "random_routing", False)),
    )
