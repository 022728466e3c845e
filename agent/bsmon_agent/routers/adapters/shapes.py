"""Finding the parts of an output by shape and dtype, with the number of experts known."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from bsmon_agent.routers.reading import Call, describe, is_float, is_ids, local, parts, rows


def tokens_in(call: Call) -> int | None:
    """Tokens of the router's input [..., D], None if its first argument is no such tensor."""
    first = call.args[0] if call.args else next(iter(call.kwargs.values()), None)
    return first.numel() // first.shape[-1] if is_float(first) and first.ndim >= 2 and first.shape[-1] else None


def find_ids(items: tuple[Any, ...], experts: int, top_k: int | None, tokens: int | None) -> Tensor | None:
    """Expert numbers as [T, K]: the first whole-number tensor [..., K] with K < E, [K, T] or [T]."""
    for item in items:
        if not is_ids(item) or item.ndim == 0 or item.shape[-1] == experts:
            continue
        if item.ndim == 2 and tokens is not None and item.shape == (top_k or item.shape[0], tokens) != (tokens, top_k):
            return item.T
        if item.ndim == 1:
            if item.shape[0] == tokens and (top_k or 1) == 1:
                return item[:, None]
            if tokens is not None and top_k and item.shape[0] == tokens * top_k:
                return item.view(tokens, top_k)
            continue
        found = rows(item)
        fits_tokens = tokens is None or found.shape[0] == tokens
        fits_choices = found.shape[1] == top_k if top_k else found.shape[1] < experts
        if fits_tokens and fits_choices:
            return found
    return None


def chosen(call: Call, experts: int | None, top_k: int | None) -> tuple[Tensor, tuple[Any, ...]] | str:
    """Expert numbers [T, K] and all parts of the output, for routers that answer numbers beside other things."""
    items = parts(call.output)
    ids = None if experts is None else find_ids(items, experts, top_k, None)
    return f"its output {describe(call.output)} shows no expert numbers" if ids is None else (ids, items)


def find_weights(items: tuple[Any, ...], ids: Tensor) -> Tensor | None:
    """Weights of the choices, [T, K], in the order of ``ids``."""
    for item in items:
        if is_float(item) and item.ndim >= 1 and item.numel() == ids.numel():
            if item.shape == ids.shape[::-1] and item.shape != ids.shape and item.ndim == 2:
                return item.T
            if rows(item).shape == ids.shape or item.ndim == 1:
                return item.reshape(ids.shape)
    return None


def find_wide(items: tuple[Any, ...], width: int | None, tokens: int | None) -> list[Tensor]:
    """Float tensors [..., E] with a row for each token, as [T, E]."""
    wide = [rows(item) for item in items if is_float(item) and item.ndim >= 2 and item.shape[-1] == width]
    return [item for item in wide if tokens is None or item.shape[0] == tokens]


def linear_logits(module: nn.Module, call: Call, experts: int) -> Tensor | None:
    """The logits, worked out again where the output does not show them: the router's own Linear on its own input."""
    hidden = local(call.args[0]) if call.args else None
    for child in module.modules():
        weight = local(getattr(child, "weight", None))  # a shard of one, if it is sharded: then it does not fit
        if is_float(hidden) and isinstance(child, nn.Linear) and weight.shape == (experts, hidden.shape[-1]):
            bias = local(child.bias)
            return rows(functional.linear(hidden.to(weight.dtype), weight, bias))
    return None
