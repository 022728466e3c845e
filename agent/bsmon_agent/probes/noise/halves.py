"""One batch without accumulation, split in two: the squared gradients of its halves, layer by layer."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns as clock
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from bsmon_agent.patches import Callback
from bsmon_agent.probes.noise.layers import Rule, first_half, kept_input, rule
from bsmon_agent.reductions import unseen_by_modes

AGREEMENT = 0.02  # of the squared norms of a gradient and of its halves' sum


class Squares(NamedTuple):
    """Squared norms of a parameter's gradients, 0-d each: first half, second half, their sum."""

    first: torch.Tensor
    second: torch.Tensor
    both: torch.Tensor


def squares(first: torch.Tensor, second: torch.Tensor) -> Squares:
    """Consumes ``second``."""
    one, two = (torch.linalg.vector_norm(x, dtype=torch.float32).square() for x in (first, second))
    return Squares(one, two, torch.linalg.vector_norm(second.add_(first), dtype=torch.float32).square())


class Halves:
    """Hooks on the layers for one step.

    No activation is kept for it: a layer whose input is gone by the backward pass (recomputed, cast) is left out, as
    is one whose halves don't add up to the norm of the gradient that its parameter really got (used elsewhere too).
    """

    def __init__(self, root: nn.Module, leaves: Sequence[torch.Tensor], batch: int, length: int | None) -> None:
        self.spent = 0  # ns in the hooks
        self.trouble: str | None = None
        self.found: dict[str, Any] | None = None  # names of ``wire.NOISE_FIELDS``
        self.weights = [batch // 2 / batch, (batch + 1) // 2 / batch]
        self._batch, self._length = batch, length
        self._leaves = {id(leaf): weakref.ref(leaf) for leaf in leaves}
        self._elements = sum(leaf.numel() for leaf in leaves)
        self._squares: dict[int, Squares] = {}
        self._calls: Counter[int] = Counter()
        owners = Counter(id(own) for module in root.modules() for own in module._parameters.values())
        self._own = {key for key in self._leaves if owners[key] == 1}
        self._handles = [
            module.register_forward_hook(Callback(partial(self._called, found)))
            for module in root.modules()
            if (found := rule(module)) is not None and id(module.weight) in self._own
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def end(self) -> None:
        """The backward pass is over, and the gradients are as it left them."""
        self.found = self._result()

    def _result(self) -> dict[str, Any] | None:
        found = [(square, leaf) for key, square in self._squares.items() if (leaf := self._gradient(key)) is not None]
        if not found:
            return None
        home = found[0][1].device
        table = torch.stack([torch.stack(square).to(home, non_blocking=True) for square, _ in found])
        got = torch.stack(
            [
                torch.linalg.vector_norm(gradient, dtype=torch.float32).to(home, non_blocking=True)
                for _, gradient in found
            ]
        ).square()
        sizes = torch.tensor([float(gradient.numel()) for _, gradient in found]).to(home, non_blocking=True)
        agrees = (table[:, 2] - got).abs() <= AGREEMENT * got
        first, second, both = table.where(agrees.unsqueeze(1), 0).sum(0)
        coverage = sizes.where(agrees, 0).sum() / self._elements
        return {"total": both, "parts": torch.stack([first, second]), "weights": self.weights, "coverage": coverage}

    def _gradient(self, key: int) -> torch.Tensor | None:
        leaf = self._leaves[key]()
        return None if leaf is None or leaf.grad is None else leaf.grad.detach()

    def _called(self, found: Rule, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A layer ran forward: if samples can be told apart in its input, await its output's gradient."""
        if torch.compiler.is_compiling() or torch._C._is_tracing():
            return  # a compiled step would keep these hooks for good
        if not (isinstance(output, torch.Tensor) and output.requires_grad and args):
            return
        begun = clock()
        try:
            self._calls[id(layer)] += 1
            rows = first_half(layer, args[0], self._batch, self._length)
            if rows is not None:
                ref = TensorWeakRef(kept_input(layer, args[0], output))
                output.register_hook(partial(self._returned, found, layer, ref, rows))
        except Exception as error:
            self.trouble = f"a layer could not be read: {type(error).__name__}: {error}"
        self.spent += clock() - begun

    def _returned(self, found: Rule, layer: nn.Module, ref: Any, rows: int, gradient: torch.Tensor) -> None:
        """The gradient of a layer's output is here: those of its parameters, for each half."""
        begun = clock()
        try:
            x = ref()
            if x is not None and self._calls[id(layer)] == 1:
                with torch.no_grad(), unseen_by_modes():
                    self._split(found, layer, x.detach(), gradient.detach(), rows)
        except Exception as error:
            self.trouble = f"a layer could not be split: {type(error).__name__}: {error}"
        self.spent += clock() - begun

    def _split(self, found: Rule, layer: nn.Module, x: torch.Tensor, gradient: torch.Tensor, rows: int) -> None:
        for parameter, first, second in found(layer, x, gradient, rows):
            key = id(parameter)
            if key in self._own:
                new = squares(first, second)
                old = self._squares.get(key)
                self._squares[key] = new if old is None else Squares(*(a + b for a, b in zip(old, new, strict=True)))
