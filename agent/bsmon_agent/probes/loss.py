"""The loss: the sum of the scalars from which backward() started in a step, with any loss scale undone."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from bsmon_agent.probes.base import Probe
from bsmon_agent.reductions import capturing
from bsmon_agent.tape import BACKWARD, BACKWARD_ENDED, Event, evaluated_once

NONE_YET = "no backward() was seen"
NOT_SCALAR = "backward() started from tensors that are not single numbers"


class LossProbe(Probe):
    name = "loss"
    sees = BACKWARD

    def __init__(self) -> None:
        self._scaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []  # scaled loss -> the loss itself
        self._unscaled = False
        self._source: str | None = None
        self._reason = NONE_YET

    def scaled(self, outputs: Any, scaled: Any) -> None:
        """GradScaler.scale was called."""
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            self._scaled = [pair for pair in self._scaled if pair[0]() is not None]
            self._scaled.append((weakref.ref(scaled), outputs.detach()))

    def see(self, roots: Any) -> Any:
        """The values that a backward starts from, summed: a number, a tensor on a device, None if there is no scalar.

        Taken at once: a program may go on to change the tensor in place (all-reduce for its own log).
        """
        if type(roots) is torch.Tensor and not self._scaled and roots.is_cpu and roots.numel() == 1:
            return roots.item()
        if isinstance(roots, torch.Tensor):
            return self._value(roots)
        values = [self._value(root) for root in roots if isinstance(root, torch.Tensor)]
        known = [value for value in values if value is not None]
        return sum(known[1:], known[0]) if known else None

    def _value(self, root: torch.Tensor) -> Any:
        if root.numel() != 1 or not root.dtype.is_floating_point:
            self._reason = NOT_SCALAR
            return None
        loss = self._without_scale(root) if self._scaled else root
        if loss.is_cpu:
            return loss.item()
        return None if capturing() else loss.detach().reshape(()).to(torch.float32, copy=True)

    def _without_scale(self, root: torch.Tensor) -> torch.Tensor:
        for scaled, original in self._scaled:
            if scaled() is root:
                self._unscaled = True
                return original
        return root

    def read(self, events: list[Event], record: dict[str, Any]) -> None:
        values: list[Any] = []
        value: Any = None
        for kind, _, payload in evaluated_once(events):
            if kind == BACKWARD:
                value = payload
            elif kind == BACKWARD_ENDED and value is not None:
                if not payload:
                    values.append(value)
                value = None
        if values:
            record["loss"] = values[0] if len(values) == 1 else sum(values[1:], values[0])
            self._source = _source(len(values), self._unscaled)

    def describe(self, hello: dict[str, Any]) -> None:
        if self._source is None:
            hello["unavailable"]["loss"] = self._reason
        else:
            hello["loss_source"] = self._source


@functools.cache
def _source(roots: int, unscaled: bool) -> str:
    named = "root of backward()" if roots == 1 else f"sum of {roots} backward roots"
    return f"{named}, loss scale undone" if unscaled else named
