"""DeepSpeed ``TopKGate``: capacity with drops, counted before the drop by the gate itself.

Output as ``MOELayer`` calls it: (loss, capacity, E, numbers [K, S] with -1 where dropped, places, gates [K, S],
counts before the drop [E]); called directly: (loss, combine [S, E, C], dispatch [S, E, C], counts before the drop).
With k = 1 the caller may mark padding (``used_token``), which then is not routed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bsmon_agent.routers.reading import Call, Choice, Ids, Mask, Reading, Scores, describe, is_ids, local, parts
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    gate: Any = module
    factor = gate.capacity_factor if gate.training else gate.eval_capacity_factor
    return Facts(
        experts=int(gate.wg.out_features),
        top_k=int(gate.k),
        capacity_factor=float(factor) if gate.drop_tokens else None,
        dropless=not gate.drop_tokens,
    )


@adapter("deepspeed", r"deepspeed:TopKGate", facts=facts)
def read(site: Site, call: Call) -> Reading | str:
    items, experts, top_k = parts(call.output), site.known.experts, site.known.top_k
    kept = _kept(items, experts)
    if kept is None or experts is None or top_k is None or not isinstance(items[-1], Tensor):
        return f"its output {describe(call.output)} is neither of TopKGate's two forms"
    assigned, hidden = items[-1], local(call.args[0])
    tokens = hidden.numel() // hidden.shape[-1]
    used = local(call.args[1] if len(call.args) > 1 else call.kwargs.get("used_token"))
    return Reading(
        experts,
        top_k,
        tokens,
        assigned=assigned,
        kept=kept,
        scores=_scores(site.module, hidden),
        weights=items[5] if len(items) == 7 else None,
        skipped=tokens * top_k - assigned.sum(),
        used=used.reshape(-1) != 0 if isinstance(used, Tensor) and top_k == 1 else None,
        capacity=_capacity(items),
    )


def _kept(items: tuple[Any, ...], experts: int | None) -> Choice | None:
    if len(items) == 7 and is_ids(items[3]) and items[3].ndim == 2:
        return Ids(items[3].T)
    if len(items) == 4 and isinstance(items[2], Tensor) and items[2].ndim == 3 and items[2].shape[1] == experts:
        return Mask(items[2].any(-1))
    return None


def _capacity(items: tuple[Any, ...]) -> int | None:
    if len(items) == 4:
        return int(items[2].shape[-1])
    tensor = items[1]
    on_host = isinstance(tensor, Tensor) and tensor.device.type == "cpu" and not torch.compiler.is_compiling()
    return int(tensor) if on_host else None


def _scores(gate: nn.Module, hidden: Tensor) -> Scores | None:
    """The gate's logits, worked out again (they are no output); not of jittered inputs or a weight that is sharded."""
    weight = local(getattr(gate.wg, "weight", None))
    jittered = getattr(gate, "noisy_gate_policy", None) == "Jitter" and gate.training
    if jittered or weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
        return None
    return Scores(functional.linear(hidden.reshape(-1, hidden.shape[-1]).float(), weight.float()))
