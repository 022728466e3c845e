"""The learning rate, and which optimizers there are."""

from __future__ import annotations

import weakref
from typing import Any

from bsmon_agent.probes.base import Probe


class StepProbe(Probe):
    name = "step"

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Any] | None = None

    def step_end(self, optimizer: Any) -> None:
        if self._optimizer is None or self._optimizer() is not optimizer:
            self._optimizer = weakref.ref(optimizer)

    def collect(self, record: dict[str, Any]) -> None:
        """Called before any scheduler moves on: the rate is the one that this step was made with."""
        optimizer = self._optimizer() if self._optimizer is not None else None
        if optimizer is not None:
            rate = optimizer.param_groups[0].get("lr")
            if rate is not None:
                record["learning_rate"] = rate
