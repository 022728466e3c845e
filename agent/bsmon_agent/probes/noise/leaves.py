"""Gradients as they reach the parameters: the contributions of one step, and what they add up to."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns as clock
from typing import Any

import torch

from bsmon_agent.reductions import sum_of_squares, unseen_by_modes

WITNESS = 4096  # elements at most of the parameter on which the sum of the contributions is checked
NARROW = (torch.float16, torch.bfloat16)


class Leaves:
    """Hooks on the leaves for one step.

    A leaf's own hook sees what one backward pass contributes, before it is accumulated and before it is averaged over
    processes. Its norm is taken at once, so that no gradient is kept; kept is a 0-d tensor a parameter and pass, and
    of one small parameter, the witness, the sum of the contributions: where that is not its gradient, the gradient is
    not the sum of what was seen (it was not zeroed, or changed on the way).
    """

    def __init__(self, leaves: Sequence[torch.Tensor], processes: int) -> None:
        self.processes = processes
        self.trouble: str | None = None
        self.spent = 0  # ns in the hooks
        self.parts: list[torch.Tensor] = []
        self.total: torch.Tensor | None = None
        self.residual: torch.Tensor | None = None
        self._leaves = [weakref.ref(leaf) for leaf in leaves]
        self._reached: set[int] = set()  # in this step
        self._passed: set[int] = set()  # in this backward pass
        self._norms: list[torch.Tensor] = []
        self._unread = 0  # elements whose gradients could not be read
        self._witness = -1
        self._sum: torch.Tensor | None = None
        self._open = False
        self._handles = [leaf.register_hook(partial(self._tap, index)) for index, leaf in enumerate(leaves)]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin(self) -> None:
        """A backward pass starts."""
        self._open = True

    def end(self, last: bool) -> None:
        """It ended; ``last``: perhaps the last one of the step, so that the gradient now stands in the leaves."""
        self._open = False
        part = sum_of_squares(self._norms)
        self._norms = []
        self._passed.clear()
        if part is not None:
            self.parts.append(part / self.processes**2)
        self.total = self.residual = None
        if last:
            self._sum_up()

    def coverage(self) -> float:
        """Share of the elements with a gradient that was read."""
        reached = [leaf.numel() for index in self._reached if (leaf := self._leaves[index]()) is not None]
        return sum(reached) / max(1, sum(reached) + self._unread)

    def _tap(self, index: int, gradient: Any) -> None:
        if not self._open:
            return
        begun = clock()
        try:
            with unseen_by_modes():
                self._note(index, gradient.detach())
        except Exception as error:
            self.trouble = f"a gradient could not be read: {type(error).__name__}: {error}"
        self.spent += clock() - begun

    def _note(self, index: int, gradient: torch.Tensor) -> None:
        if index in self._passed:
            self.trouble = "a parameter gets its gradient in several pieces a pass (reentrant checkpointing, shared)"
            return
        self._passed.add(index)
        if gradient.layout != torch.strided:
            if gradient.layout != torch.sparse_coo or gradient.is_cuda:
                self._unread += gradient.numel()  # to coalesce on a GPU is to wait for it
                return
            gradient = gradient.coalesce().values()
        elif self.processes == 1:
            self._witnessed(index, gradient)
        self._reached.add(index)
        dtype = torch.float32 if gradient.dtype in NARROW else None
        self._norms.append(torch.linalg.vector_norm(gradient, dtype=dtype))

    def _witnessed(self, index: int, gradient: torch.Tensor) -> None:
        """Add to the witness: the first parameter of one dimension that gets a gradient in this step."""
        if self._witness < 0 and gradient.dim() == 1:
            self._witness = index
            self._sum = gradient[:WITNESS].clone()
        elif self._sum is not None and index == self._witness:
            self._sum += gradient[:WITNESS]

    def _sum_up(self) -> None:
        gradients = [leaf.grad for index in sorted(self._reached) if (leaf := self._leaves[index]()) is not None]
        if any(gradient is None for gradient in gradients):
            self.trouble = (
                "gradients are gone when the backward pass ends (optimizer in backward, partitioned gradients)"
            )
            return
        self.total = sum_of_squares([gradient for gradient in gradients if gradient is not None])
        witness = self._leaves[self._witness]() if self._sum is not None else None
        if self._sum is not None and witness is not None and witness.grad is not None:
            found = witness.grad.detach()[:WITNESS]
            self.residual = (found - self._sum).float().square().sum() / found.float().square().sum()
