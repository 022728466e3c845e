"""st-moe-pytorch ``TopNGating``: (dispatch ~1.0 [B, N, E, C], combine [B, N, E, C], two losses); capacity per sequence.

Only what was kept shows. The later choices of a token are left out at random, by a policy of the gate's own; the draw
is repeated, so that policy and capacity can be told apart. A kept choice that the repeated draw had left out would
show that the repetition failed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bsmon_agent.routers.adapters.replay import Replay, state_before
from bsmon_agent.routers.adapters.shapes import linear_logits
from bsmon_agent.routers.reading import Call, Ids, Mask, Reading, Scores, describe, parts
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    gate: Any = module
    factor = gate.capacity_factor_train if gate.training else gate.capacity_factor_eval
    return Facts(int(gate.num_gates), int(gate.top_n), float(factor), dropless=False)


@adapter("st-moe-pytorch", "st_moe_pytorch:TopNGating", facts=facts, before=state_before)
def read(site: Site, call: Call) -> Reading | str:
    items, experts, top_k = parts(call.output), site.known.experts, site.known.top_k
    dispatch = items[0]
    if not isinstance(dispatch, Tensor) or dispatch.ndim != 4 or dispatch.shape[2] != experts or not top_k:
        return f"its output {describe(call.output)} is not (dispatch, combine, loss, loss)"
    batch, length = dispatch.shape[:2]
    kept = (dispatch > 0.5).any(-1)
    logits = linear_logits(site.module, call, experts)
    split = _policy(site.module, call, logits.view(batch, length, experts)) if logits is not None else None
    return Reading(
        experts,
        top_k,
        batch * length,
        assigned=None,
        kept=Mask(kept.view(-1, experts)),
        scores=None if logits is None else Scores(logits),
        weights=items[1],
        skipped=None if split is None else (~split[1]).sum(),
        doubt=None if split is None else _contradictions(kept.view(-1, experts), *split),
        groups=batch,
        capacity=dispatch.shape[-1],
        splits=split is not None,
    )


def _policy(gate: Any, call: Call, logits: Tensor) -> tuple[Tensor, Tensor] | None:
    """Expert numbers [T, K] and which of them the policy let through; the steps are those of the gate itself."""
    if call.held is None or gate.differentiable_topk:
        return None
    replay = Replay(call.held, logits.device)
    if call.kwargs.get("noise_gates", call.args[1] if len(call.args) > 1 else False):
        noise = -torch.log((-torch.log(replay.uniform(logits).clamp(min=1e-20))).clamp(min=1e-20))
        logits = logits + noise * call.kwargs.get("noise_mult", call.args[2] if len(call.args) > 2 else 1.0)
    best = logits.softmax(-1).topk(gate.top_n, dim=-1)
    gates = best.values.permute(2, 0, 1)
    gates = gates / gates.sum(0, keepdim=True).clamp(min=gate.eps)
    threshold = gate.threshold_train if gate.training else gate.threshold_eval
    passed = replay.uniform(gates) < gates / threshold.clamp(min=gate.eps)[:, None, None]
    passed[0] = True
    return best.indices.flatten(0, 1), passed.permute(1, 2, 0).flatten(0, 1)


def _contradictions(kept: Tensor, ids: Tensor, passed: Tensor) -> Tensor:
    return (kept & ~Ids(ids, passed).dense(kept.shape[1])).sum()
