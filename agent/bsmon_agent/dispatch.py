"""The probes in use, each guarded: one that fails is taken out with a note, the others go on."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from time import perf_counter_ns as clock
from time import thread_time_ns
from typing import Any

from bsmon_agent.probes.base import Probe
from bsmon_agent.reductions import unseen_by_modes
from bsmon_agent.tape import Event

Method = tuple[Probe, Callable[..., None]]

MOMENTS = ("forward_begin", "forward_end", "backward_begin", "backward_end", "step_begin", "collect")
MAX_NOTES = 16


def unseen(*args: Any) -> None:
    """What is seen where no probe looks."""


class Dispatch:
    """``live`` while an optional probe is armed, and so has to be told of every moment of the step."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.probes: list[Probe] = []
        self.live = False
        self._readers: list[Method] = []
        self._methods: dict[str, list[Method]] = {}
        self._seers: dict[int, Probe] = {}
        self._bind()

    def install(self, probes: Iterable[Probe]) -> None:
        """Put probes to work, in this order."""
        for probe in probes:
            probe.failed = self.expel
            self.probes.append(probe)
        self._bind()

    def _bind(self) -> None:
        self._seers = {probe.sees: probe for probe in self.probes if probe.sees}
        self._readers = [(p, p.read) for p in self.probes if type(p).read is not Probe.read]
        self.arm()

    def arm(self) -> None:
        """The governor has chosen who looks at the next step."""
        armed = [probe for probe in self.probes if probe.optional and probe.armed]
        self.live = bool(armed)
        for moment in MOMENTS:
            base = getattr(Probe, moment)
            self._methods[moment] = [(p, getattr(p, moment)) for p in armed if getattr(type(p), moment) is not base]

    # ------------------------------------------------------------ what the probes are asked

    def tell(self, moment: str, *args: Any) -> int:
        """Call the armed probes in order, and book on each its CPU time: how often it may look is no matter of who
        else wants the processor. Returns all the ns that passed, which so are not the agent's base."""
        entered = clock()
        for probe, method in self._methods[moment]:
            begun = thread_time_ns()
            with unseen_by_modes():
                self._call(probe, method, args)
            probe.spent += thread_time_ns() - begun
        return clock() - entered

    def see(self, kind: int, *args: Any) -> Any:
        """The payload of an event, by the probe that reads it."""
        probe = self._seers.get(kind)
        if probe is None:
            return None
        try:
            return probe.see(*args)
        except Exception as error:
            self.expel(probe, error)
            return None

    def seer(self, kind: int) -> Callable[..., Any]:
        """What gives the payload of such events, unguarded: whoever calls it brings failures to ``blame``."""
        probe = self._seers.get(kind)
        return unseen if probe is None else probe.see

    def blame(self, error: Exception) -> bool:
        """Expel the probe in whose ``see`` this was raised; False if it was in none."""
        raised = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
        for probe in list(self._seers.values()):
            code = getattr(type(probe).see, "__code__", None)
            if code in raised:
                self.expel(probe, error)
                return True
        return False

    def read(self, events: list[Event], record: dict[str, Any]) -> None:
        """Let every reader write its fields."""
        for probe, method in self._readers:
            try:
                method(events, record)
            except Exception as error:
                self.expel(probe, error)

    def model_found(self, root: Any, optimizer: Any) -> None:
        for probe in list(self.probes):
            self._call(probe, probe.model_found, (root, optimizer))

    def between(self, optimizer: Any) -> None:
        for probe in list(self.probes):
            self._call(probe, probe.between, (optimizer,))

    def ask(self, method: str, answer: dict[str, Any]) -> None:
        """Let every probe write into a hello or a beat. In the publisher's thread, so nobody is expelled here."""
        for probe in list(self.probes):
            try:
                getattr(probe, method)(answer)
            except Exception as error:
                self.note(f"probe {probe.name} cannot say all it knows: {type(error).__name__}: {error}")

    def of(self, kind: type[Probe]) -> Any:
        """The probe of this class, if it is still in use."""
        return next((probe for probe in self.probes if isinstance(probe, kind)), None)

    # ------------------------------------------------------------ failures

    def _call(self, probe: Probe, method: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            method(*args)
        except Exception as error:
            self.expel(probe, error)

    def expel(self, probe: Probe, error: Exception) -> None:
        """A probe failed: it is off for the rest of this run, and the notes say why."""
        self.note(f"probe {probe.name} is off: {type(error).__name__}: {error}")
        if probe in self.probes:
            self.probes.remove(probe)
            self._remove(probe)
            self._bind()

    def _remove(self, probe: Probe) -> None:
        try:
            probe.remove()
        except Exception as error:
            self.note(f"probe {probe.name} left something behind: {type(error).__name__}: {error}")

    def note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES and text not in self.notes:
            self.notes.append(text)

    def remove(self) -> None:
        """Take every probe out."""
        for probe in self.probes:
            self._remove(probe)
        self.probes = []
        self._bind()
