"""Where the time of a step goes, by the clock of the training thread: data, forward, backward, optimizer.

On a GPU the thread only hands out work; its times would say nothing of the device, so there only the wait for data
is told.
"""

from __future__ import annotations

from typing import Any

from bsmon_agent.probes.base import Probe
from bsmon_agent.tape import BACKWARD, BACKWARD_ENDED, DATA, FORWARD, RETURNED, STEP, STEPPED, Event

NO_LOADER = "no torch DataLoader was seen delivering data in the training thread"
NO_BACKWARD = "no call of the model followed by a backward was seen"
ON_DEVICE = "the thread's times on a GPU are those of handing out work, not of doing it"


class PhasesProbe(Probe):
    """Data: inside the loader's ``next``, gradients enabled. Forward: from the root's call to the backward, so that
    the loss is in it. Optimizer: inside its step, without what a closure evaluates again."""

    name = "phases"

    def __init__(self) -> None:
        self._host = True
        self._loader = False
        self._worked = False

    def model_found(self, root: Any, optimizer: Any) -> None:
        parameter = next(iter(root.parameters()), None)
        self._host = parameter is None or parameter.device.type == "cpu"

    def read(self, events: list[Event], record: dict[str, Any]) -> None:
        spent = Clock().run(events)
        self._loader |= spent.loaded
        if self._loader:
            record["data_wait"] = spent.data / 1e9
        if not self._host:
            return
        self._worked |= spent.forward > 0
        if self._worked:
            record["forward"], record["backward"] = spent.forward / 1e9, spent.backward / 1e9
        if spent.optimizer is not None:
            record["optimizer_time"] = spent.optimizer / 1e9

    def describe(self, hello: dict[str, Any]) -> None:
        reasons = hello["unavailable"]
        if not self._loader:
            reasons["phases_s.data_wait"] = NO_LOADER
        for phase in ("forward", "backward", "optimizer"):
            if not self._host:
                reasons[f"phases_s.{phase}"] = ON_DEVICE
            elif not self._worked and phase != "optimizer":
                reasons[f"phases_s.{phase}"] = NO_BACKWARD


class Clock:
    """Nanoseconds of one step's events, by phase."""

    def __init__(self) -> None:
        self.data = self.forward = self.backward = 0
        self.optimizer: int | None = None
        self.loaded = False

    def run(self, events: list[Event]) -> Clock:
        called: int | None = None  # when the forward in progress was called
        training = returned = False
        begun = 0  # when the backward in progress was
        stepping: int | None = None  # when the optimizer step in progress was
        inside = 0  # forward and backward in that step
        for kind, at, payload in events:
            if kind == FORWARD:
                trains = payload is not None and payload[0]
                if called is None or not returned or (trains and not training):
                    called, training = at, trains
                returned = False
            elif kind == RETURNED:
                returned = True
            elif kind == BACKWARD:
                begun = at
                if called is not None:
                    self.forward += at - called
                    inside += at - called
                    called = None
            elif kind == BACKWARD_ENDED:
                self.backward += at - begun
                inside += at - begun
            elif kind == STEP:
                stepping, inside, called = at, 0, None
            elif kind == STEPPED and stepping is not None:
                self.optimizer = (self.optimizer or 0) + at - stepping - inside
                stepping = called = None
            elif kind == DATA:
                self.data += payload
                self.loaded = True
        return self
