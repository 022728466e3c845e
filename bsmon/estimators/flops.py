"""What training on one token costs in FLOPs, from counts of a model. Pure.

A multiply-add is two FLOPs. A parameter that takes part in a matrix product costs a token 2 in the forward, 2 for the
gradient of what goes in, 2 for its own gradient: 6 N. A frozen one has no gradient of its own (4; the "4 N" of LoRA),
and one before the first that is trained has no backward at all (2). The attention's products of queries with keys, and
of their result with values, cost 12 x layers x (heads x head size) x sequence length: PaLM (arXiv:2204.02311,
appendix B), nanoGPT, torchtitan, llm-foundry. A causal mask needs half of these, and current Megatron counts them so.
N is of the parameters that a token meets: k of E experts, the output projection, not the embedding it is looked up in.
"""

from __future__ import annotations

from typing import Literal

from bsmon.model import ModelInfo

Convention = Literal["full", "causal", "sixN_noemb"]

ABOUT: dict[Convention, str] = {
    "full": "6N without the input embedding + attention in full (PaLM)",
    "causal": "6N without the input embedding + half the attention",
    "sixN_noemb": "6N without the input embedding, attention left out",
}


def convention(model: ModelInfo, length: int | None) -> Convention:
    """The fullest one that these counts allow."""
    known = model.attention_layers is not None and model.attention_width is not None and length
    return "full" if known else "sixN_noemb"


def per_token(model: ModelInfo, length: int | None, by: Convention) -> float | None:
    """Model FLOPs of a token's forward and backward; None where the parameters, or what ``by`` needs, are not known."""
    if model.matmul is None:
        return None
    frozen, forward_only = model.matmul_frozen or 0, model.matmul_forward_only or 0
    weights = 6.0 * model.matmul - 2.0 * frozen - 4.0 * forward_only
    if by == "sixN_noemb":
        return weights
    products = _attention(model, length, model.attention_layers, by == "causal")
    if products is None:
        return None
    backward = 1 - forward_only / model.matmul if model.matmul else 1.0
    return weights + products * (1 + 2 * backward)


def recomputed_per_token(model: ModelInfo, length: int | None, by: Convention) -> float | None:
    """FLOPs of the second forward of checkpointed layers: what hardware FLOPs (HFU) have beyond the model's."""
    if not model.matmul_recomputed:
        return None
    products = 0.0 if by == "sixN_noemb" else _attention(model, length, model.recomputed_layers, by == "causal")
    return None if products is None else 2.0 * model.matmul_recomputed + products


def _attention(model: ModelInfo, length: int | None, layers: int | None, causal: bool) -> float | None:
    """FLOPs a token of both products in the forward: 4 x width x the keys that a query meets, over all layers."""
    if not length or layers is None or model.attention_layers is None or model.attention_width is None:
        return None
    whole = length / 2 if causal else float(length)
    windowed = min(model.windowed_layers or 0, model.attention_layers)
    keys = windowed * min(whole, model.attention_window or length) + (model.attention_layers - windowed) * whole
    share = layers / model.attention_layers if model.attention_layers else 0.0
    return 4.0 * model.attention_width * keys * share
