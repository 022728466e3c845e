"""Which tokens of a forward pass are padding, from the attention mask that the outermost module is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

NAME = "attention_mask"


def padding_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """True at padding, [B * S] in the order of the flattened batch; None without a mask [B, S]."""
    mask = kwargs.get(NAME)
    if mask is None and args:
        position = _position(type(module).forward)
        mask = args[position] if position is not None and position < len(args) else None
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return None
    with torch.no_grad(), _disable_current_modes():
        return (mask == 0).reshape(-1)


@lru_cache(maxsize=64)
def _position(forward: Callable[..., Any]) -> int | None:
    """Where ``forward`` takes its mask when it is not given by name."""
    try:
        names = list(inspect.signature(forward).parameters)
    except (TypeError, ValueError):
        return None
    return names.index(NAME) - 1 if NAME in names else None
