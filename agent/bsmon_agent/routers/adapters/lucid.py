"""mixture-of-experts ``Top2Gating``: (dispatch [B, N, E, C], combine [B, N, E, C], loss); capacity per sequence.

What was chosen is worked out again from the gate's input, its policy for second choices included ("random": the draw
is repeated); what was kept must lie within it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bsmon_agent.routers.adapters.replay import Replay, state_before
from bsmon_agent.routers.reading import Call, Ids, Mask, Reading, Scores, describe, local, parts
from bsmon_agent.routers.registry import Site, adapter
from bsmon_agent.routers.structure import Facts


def facts(module: nn.Module, parent: nn.Module | None) -> Facts:
    gate: Any = module
    factor = gate.capacity_factor_train if gate.training else gate.capacity_factor_eval
    return Facts(int(gate.num_gates), 2, float(factor), dropless=False)


@adapter("mixture-of-experts", "mixture_of_experts:Top2Gating", facts=facts, tag="derived", before=state_before)
def read(site: Site, call: Call) -> Reading | str:
    items, experts = parts(call.output), site.known.experts
    dispatch = items[0]
    if not isinstance(dispatch, Tensor) or dispatch.ndim < 4 or experts is None or dispatch.shape[-2] != experts:
        return f"its output {describe(call.output)} is not (dispatch, combine, loss)"
    kept = (dispatch != 0).any(-1).reshape(-1, experts)
    gate: Any = site.module
    gates = torch.einsum("...bnd,...de->...bne", local(call.args[0]), local(gate.w_gating)).softmax(-1)
    chosen = _chosen(gate, call, gates)
    return Reading(
        experts,
        2,
        kept.shape[0],
        assigned=chosen,
        kept=Mask(kept),
        scores=Scores(gates, "shares"),
        weights=items[1],
        skipped=None if chosen is None or chosen.valid is None else (~chosen.valid).sum(),
        used=None if chosen is None or chosen.valid is None else chosen.valid.any(-1),
        doubt=None if chosen is None else (kept & ~chosen.dense(experts)).sum(),
        groups=kept.shape[0] // dispatch.shape[-3],
        capacity=dispatch.shape[-1],
        splits=chosen is not None,
    )


def _chosen(gate: Any, call: Call, gates: Tensor) -> Ids | None:
    """Numbers [T, 2] and which of them the policy let through; the steps are those of the gate itself."""
    mode = "train" if gate.training else "eval"
    policy, threshold = getattr(gate, f"second_policy_{mode}"), getattr(gate, f"second_threshold_{mode}")
    importance = call.kwargs.get("importance", call.args[1] if len(call.args) > 1 else None)
    first, index = gates.topk(1, dim=-1)
    taken = first_used = torch.ones_like(first, dtype=torch.bool)
    if importance is not None:
        first_used, taken = (importance == 1.0)[..., None], (importance > 0.0)[..., None]
    others = gates.scatter(-1, index, gates.gather(-1, index) * ~first_used)
    second, runner_up = others.topk(1, dim=-1)
    share = second / (first * first_used + second + gate.eps)
    if policy == "random":
        if call.held is None:
            return None
        draw = Replay(call.held, gates.device).uniform(share.squeeze(-1))[..., None]
        taken = taken & (draw < share / max(threshold, gate.eps))
    elif policy == "none":
        taken = torch.zeros_like(taken)
    ids, valid = torch.cat((index, runner_up), -1), torch.cat((first_used, taken), -1)
    return Ids(ids.reshape(-1, 2), valid.reshape(-1, 2))
