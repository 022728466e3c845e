"""transformers, NLLB-MoE: top-2; second choices queue behind all first ones; the capacity is per call.

Output: (mask of first choices after the drop [T, E], combine weights after the drop [T, E], logits [T, E]; the logits
are missing before transformers 5). What is kept has a weight. A second choice may be random ("random": left out at
times, "sampling": drawn), and then what was chosen can't be told.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bsmon_agent.routers.reading import Call, Ids, Mask, Reading, Scores, describe, local, parts
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts, facts_of


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    found = facts_of(module, parent)
    found.top_k, found.dropless = 2, False
    return found


@adapter("nllb", "transformers:NllbMoeTop2Router", facts=facts)
def read(site: Site, call: Call) -> Reading | str:
    items, experts, router = parts(call.output), site.known.experts, site.module
    if len(items) < 2 or experts is None or items[1].shape[-1:] != (experts,):
        return f"its output {describe(call.output)} is not (mask, weights, logits)"
    weights = items[1]
    tokens = weights.shape[0]
    logits = items[2] if len(items) > 2 else _logits(router, call)
    policy = getattr(router, "second_expert_policy", "all")
    used = _used(router, call, tokens)
    chosen = None
    if policy != "sampling" and policy != "random":
        first = logits.argmax(-1, keepdim=True)
        second = logits.scatter(-1, first, float("-inf")).argmax(-1, keepdim=True)
        chosen = Ids(torch.cat((first, second), -1), None if used is None else used[:, None].expand(-1, 2))
    return Reading(
        experts,
        2,
        tokens,
        assigned=chosen,
        kept=Mask(weights),
        scores=None if policy == "sampling" else Scores(logits),
        weights=weights,
        skipped=None if used is None else 2 * (~used).sum(),
        used=used,
        splits=policy != "random",
    )


def _logits(router: nn.Module, call: Call) -> Tensor:
    classifier: Any = router.classifier
    hidden = local(call.args[0])
    logits: Tensor = classifier(hidden.reshape(-1, hidden.shape[-1]).to(classifier.weight.dtype)).detach()
    return logits


def _used(router: nn.Module, call: Call, tokens: int) -> Tensor | None:
    """Tokens [T] that are routed at all: the router leaves padding out if it is told of it."""
    mask = call.args[1] if len(call.args) > 1 else call.kwargs.get("padding_mask")
    if mask is None or getattr(router, "router_ignore_padding_tokens", False):
        return None
    mask = local(mask)
    flat = mask[:, :, -1, :].reshape(-1)[-tokens:] if mask.ndim == 4 else mask.reshape(-1)
    used: Tensor = ~flat.bool()
    return used
