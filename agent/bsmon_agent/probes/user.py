"""The user's own numbers, given to ``bsmon_agent.log()``."""

from __future__ import annotations

from typing import Any

import torch

from bsmon_agent.probes.base import Probe
from bsmon_agent.tape import LOGGED, Event
from bsmon_agent.wire import MAX_NAME

MOST = 64  # numbers in a record


class UserProbe(Probe):
    name = "user"
    sees = LOGGED

    def see(self, scalars: dict[str, Any]) -> dict[str, Any]:
        """What is a single number."""
        numbers = {name[:MAX_NAME]: _number(value) for name, value in scalars.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def read(self, events: list[Event], record: dict[str, Any]) -> None:
        for kind, _, numbers in events:
            if kind == LOGGED:
                record.setdefault("user", {}).update(numbers)
        if len(record.get("user", ())) > MOST:
            record["user"] = dict(list(record["user"].items())[:MOST])


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        return value.item() if value.device.type == "cpu" else value.detach().reshape(()).clone()
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
