"""The user's own numbers, given to ``bsmon_agent.log()``."""

from __future__ import annotations

from typing import Any

import torch

from bsmon_agent.probes.base import Probe
from bsmon_agent.wire import MAX_NAME

MOST = 64  # numbers in a record


class UserProbe(Probe):
    name = "user"

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def log(self, scalars: dict[str, Any]) -> None:
        """Kept for the next record. What is no single number is left out."""
        for name, value in scalars.items():
            number = _number(value)
            if number is not None and (name in self._values or len(self._values) < MOST):
                self._values[name[:MAX_NAME]] = number

    def collect(self, record: dict[str, Any]) -> None:
        if self._values:
            record["user"] = self._values
            self._values = {}


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().reshape(()) if value.numel() == 1 and not value.is_complex() else None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
