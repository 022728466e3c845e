"""From signals to a verdict that does not flicker. Pure: the caller brings the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter

from bsmon.diagnosis import verdict
from bsmon.diagnosis.features import MIN_STEPS
from bsmon.diagnosis.history import History
from bsmon.diagnosis.rules import RULES, Finding, Rule, find
from bsmon.diagnosis.signals import Features
from bsmon.model import Regime

ENTER_WINDOWS, LEAVE_WINDOWS = 3, 5  # a verdict needs this many windows to come, and to go
STRIDES = 3  # windows overlap: one is judged each third of its length


class Engine:
    """Diagnoses jobs, one ``update`` a job and second. Keeps what each job was like before."""

    def __init__(self, rules: tuple[Rule, ...] = RULES) -> None:
        self._table = _Table(rules)
        self._jobs: dict[str, _Course] = {}

    def update(self, job_id: str, features: Features, now: float) -> Regime:
        """The verdict on a job at ``now``. Without news since the last time it stands as it was."""
        course = self._jobs.get(job_id)
        if course is None:
            course = self._jobs[job_id] = _Course(self._table)
        return course.update(features, now)

    def keep(self, job_ids: Iterable[str]) -> None:
        """Forget every job but these."""
        kept = set(job_ids)
        self._jobs = {job_id: course for job_id, course in self._jobs.items() if job_id in kept}


class _Table:
    """The rules, and all their signals read in one go."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.unstable = [rule.name for rule in rules if rule.label == "unstable"]
        self.read: Callable[[Features], tuple[float | bool | None, ...]] = attrgetter(*(rule.signal for rule in rules))


class _Course:
    """One job's history, the verdicts that hold, and those that are on their way in or out."""

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._history = History()
        self._streak: dict[str, int] = {}  # windows in a row that speak against what holds now
        self._active: dict[str, Finding] = {}
        self._since: dict[str, float] = {}
        self._judged_at = -math.inf
        self._judged_step: int | None = None
        self._regime = verdict.measuring(Features())

    def update(self, features: Features, now: float) -> Regime:
        if features.last_step is None or features.last_step == self._judged_step:
            return self._regime
        related = self._history.relate(features)
        due = features.steps >= MIN_STEPS and now - self._judged_at >= features.window_s / STRIDES
        for rule, value in zip(self._table.rules, self._table.read(related), strict=True):
            if due or rule.instant:
                self._judge(rule, None if value is None or math.isnan(value) else float(value), related, now)
        if due:
            self._close(related, now)
        if due or self._active or features.steps < MIN_STEPS:
            self._regime = self._speak(related)
        return self._regime

    def _judge(self, rule: Rule, value: float | None, features: Features, now: float) -> None:
        """Move one rule a window on. An active one that is seen again shows its newest numbers."""
        active = rule.name in self._active
        if value is not None and value >= (rule.leave if active else rule.enter):
            self._holds(rule, value, active, features, now)
        elif active:
            self._streak[rule.name] = self._streak.get(rule.name, 0) + 1
            if self._streak[rule.name] >= LEAVE_WINDOWS:
                del self._active[rule.name], self._since[rule.name], self._streak[rule.name]
        elif self._streak:
            self._streak.pop(rule.name, None)

    def _holds(self, rule: Rule, value: float, active: bool, features: Features, now: float) -> None:
        streak = self._streak.pop(rule.name, 0) + 1
        if active:
            self._active[rule.name] = find(rule, features, value)
        elif streak >= (1 if rule.instant else ENTER_WINDOWS):
            self._active[rule.name] = find(rule, features, value)
            self._since[rule.name] = now
        else:
            self._streak[rule.name] = streak

    def _close(self, features: Features, now: float) -> None:
        """The window is over: it becomes part of what the next ones are compared with."""
        slow = any(map(self._doubted, ("drift", "contention")))
        self._history.add(features, slow=slow, unstable=any(map(self._doubted, self._table.unstable)))
        self._judged_at, self._judged_step = now, features.last_step

    def _doubted(self, name: str) -> bool:
        return name in self._active or name in self._streak

    def _speak(self, features: Features) -> Regime:
        if features.steps < MIN_STEPS and not self._active:
            return verdict.measuring(features)
        regime = verdict.regime(list(self._active.values()), features)
        label = regime.time if regime.label == "mixed" else regime.label
        names = [name for name, finding in self._active.items() if finding.rule.label == label]
        regime.since = min((self._since[name] for name in names), default=None)
        return regime
