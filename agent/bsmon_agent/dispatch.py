"""Tells the probes what happens, each guarded: one that fails is taken out with a note, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns as clock
from typing import Any

from bsmon_agent.governor import Governor
from bsmon_agent.probes.base import Probe

Method = tuple[Probe, Callable[..., None]]

EVALUATION = ("forward_begin", "forward_end", "backward_begin", "backward_end")  # a closure may repeat these in a step
MOMENTS = (*EVALUATION, "model_found", "step_begin", "step_end", "collect")
MAX_NOTES = 16


class Dispatch:
    """The probes in use, and for each moment the methods of those that override it."""

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self.notes: list[str] = []
        self.probes: list[Probe] = []
        self._methods: dict[str, list[Method]] = {}
        self._repeated: dict[str, list[Method]] = {}
        self._bind()

    def install(self, probes: Iterable[Probe]) -> None:
        """Put probes to work, in this order."""
        for probe in probes:
            probe.failed = self.expel
            if self._call(probe, probe.install, ()):
                self.probes.append(probe)
        self._bind()

    def _bind(self) -> None:
        self._methods = {moment: self._overriding(moment) for moment in MOMENTS}
        self._repeated = {
            moment: [(probe, method) for probe, method in self._methods[moment] if probe.repeats]
            for moment in EVALUATION
        }

    def _overriding(self, moment: str) -> list[Method]:
        base = getattr(Probe, moment)
        return [(probe, getattr(probe, moment)) for probe in self.probes if getattr(type(probe), moment) is not base]

    def tell(self, moment: str, *args: Any, again: bool = False) -> None:
        """Call the probes in order. What an optional one takes is booked on it, not on the agent's base."""
        for probe, method in self._repeated[moment] if again else self._methods[moment]:
            if probe.optional:
                begun = clock()
                self._call(probe, method, args)
                taken = clock() - begun
                probe.spent += taken
                self.governor.base_ns -= taken
            else:
                try:
                    method(*args)
                except Exception as error:
                    self.expel(probe, error)

    def _call(self, probe: Probe, method: Callable[..., None], args: tuple[Any, ...]) -> bool:
        try:
            method(*args)
        except Exception as error:
            self.expel(probe, error)
            return False
        return True

    def expel(self, probe: Probe, error: Exception) -> None:
        """A probe failed: it is off for the rest of this run, and the notes say why."""
        self.note(f"probe {probe.name} is off: {type(error).__name__}: {error}")
        self._remove(probe)
        if probe in self.probes:
            self.probes.remove(probe)
            self._bind()

    def _remove(self, probe: Probe) -> None:
        try:
            probe.remove()
        except Exception as error:
            self.note(f"probe {probe.name} left something behind: {type(error).__name__}: {error}")

    def ask(self, method: str, answer: dict[str, Any]) -> None:
        """Let every probe write into a hello or a beat. In the publisher's thread, so nobody is expelled here."""
        for probe in list(self.probes):
            try:
                getattr(probe, method)(answer)
            except Exception as error:
                self.note(f"probe {probe.name} cannot say all it knows: {type(error).__name__}: {error}")

    def note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES and text not in self.notes:
            self.notes.append(text)

    def remove(self) -> None:
        """Take every probe out."""
        for probe in self.probes:
            self._remove(probe)
        self.probes = []
        self._bind()
