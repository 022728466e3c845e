"""The learning rate of the step: the one that it was made with, before any scheduler moved on."""

from __future__ import annotations

from typing import Any

from bsmon_agent.probes.base import Probe
from bsmon_agent.tape import STEPPED, Event


class StepProbe(Probe):
    name = "step"
    sees = STEPPED

    def see(self, optimizer: Any) -> Any:
        """Of the first parameter group."""
        return optimizer.param_groups[0].get("lr")

    def read(self, events: list[Event], record: dict[str, Any]) -> None:
        for kind, _, payload in reversed(events):
            if kind == STEPPED and payload[1] is not None:
                record["learning_rate"] = payload[1]
                return
