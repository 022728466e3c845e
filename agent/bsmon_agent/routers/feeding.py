"""Rows that each expert of a block was given: what was really computed, where experts are modules called one by one.

A gate's logits do not tell a choice that a bias, noise or groups had a part in, nor a drop behind the gate; the rows
do, and their number is known to Python without a look at the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bsmon_agent.patches import Callback
from bsmon_agent.routers.structure import bank_of


class Feeding:
    """Listens to the experts of a block. ``wanted`` says of a module whether its call counts."""

    def __init__(self, experts: list[nn.Module], wanted: Callable[[nn.Module], bool]) -> None:
        self.rows = [0] * len(experts)
        self._wanted = wanted
        self._handles = [
            expert.register_forward_pre_hook(Callback(self._listener(number))) for number, expert in enumerate(experts)
        ]

    def _listener(self, number: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            if torch.compiler.is_compiling() or not self._wanted(module):
                return
            if args and isinstance(args[0], Tensor) and args[0].ndim and args[0].shape[-1]:
                self.rows[number] += args[0].numel() // args[0].shape[-1]

        return before

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def listed_experts(parent: nn.Module | None, experts: int) -> list[nn.Module] | None:
    """The experts of a block in their order, if they are modules in a list or dict."""
    bank = None if parent is None else bank_of(parent)
    for holder in (bank, *(bank.children() if bank is not None else ())):
        if isinstance(holder, (nn.ModuleList, nn.ModuleDict)) and len(holder) == experts:
            return list(holder.children())
    return None


def agreed(fed: list[int] | None, assignments: int, chosen: list[int]) -> list[int] | None:
    """The rows, if they can be the choices: no more than were made, and no padded lot of equal size for each expert.

    Fewer than were made are those that were kept, if they lie within what the logits tell.
    """
    if not fed or len(fed) != len(chosen) or len(set(fed)) == 1 or sum(fed) > assignments:
        return None
    whole = sum(fed) == assignments
    return fed if whole or all(row <= choice for row, choice in zip(fed, chosen, strict=True)) else None
