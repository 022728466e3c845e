"""The loss: the sum of the scalars from which backward() started in a step, with any loss scale undone."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from bsmon_agent.patches import Patches
from bsmon_agent.probes.base import Probe
from bsmon_agent.reductions import capturing

NONE_YET = "no backward() was seen"
NOT_SCALAR = "backward() started from tensors that are not single numbers"


class LossProbe(Probe):
    name = "loss"

    def __init__(self) -> None:
        self._patches = Patches()
        self._scaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []  # scaled loss -> the loss itself
        self._total: Any = None
        self._roots = 0
        self._unscaled = False
        self._source: str | None = None
        self._reason = NONE_YET

    def install(self) -> None:
        self._patches.wrap(torch.amp.GradScaler, "scale", self._remembering)

    def remove(self) -> None:
        self._patches.clear()

    def _remembering(self, original: Any) -> Any:
        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if not torch.compiler.is_compiling() and isinstance(outputs, torch.Tensor) and scaled is not outputs:
                self.guarded(self._remember, scaled, outputs)
            return scaled

        return scale

    def _remember(self, scaled: torch.Tensor, original: torch.Tensor) -> None:
        self._scaled = [pair for pair in self._scaled if pair[0]() is not None]
        self._scaled.append((weakref.ref(scaled), original.detach()))

    def backward_begin(self, roots: tuple[Any, ...]) -> None:
        for root in roots:
            if isinstance(root, torch.Tensor) and root.numel() == 1 and root.dtype.is_floating_point:
                self._add(self._without_scale(root.detach(), root))
            else:
                self._reason = NOT_SCALAR

    def _without_scale(self, value: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
        for scaled, original in self._scaled:
            if scaled() is root:
                self._unscaled = True
                return original
        return value

    def _add(self, value: torch.Tensor) -> None:
        """Taken at once: a program may go on to change the tensor in place (all-reduce for its own log)."""
        self._roots += 1
        if value.device.type == "cpu":
            number: Any = value.item()
        elif capturing():
            return
        else:
            number = value.reshape(()).to(torch.float32, copy=True)
        self._total = number if self._total is None else self._total + number

    def backward_end(self, failed: bool) -> None:
        if failed:
            self._forget()

    def _forget(self) -> None:
        self._total, self._roots, self._unscaled = None, 0, False

    def collect(self, record: dict[str, Any]) -> None:
        if self._total is not None:
            record["loss"] = self._total
            self._source = _source(self._roots, self._unscaled)
        self._forget()

    def describe(self, hello: dict[str, Any]) -> None:
        if self._source is None:
            hello["unavailable"]["loss"] = self._reason
        else:
            hello["loss_source"] = self._source


@functools.cache
def _source(roots: int, unscaled: bool) -> str:
    named = "root of backward()" if roots == 1 else f"sum of {roots} backward roots"
    return f"{named}, loss scale undone" if unscaled else named
