"""From signals to a verdict that does not flicker. Pure: the caller brings the time."""

from __future__ import annotations

from collections.abc import Iterable

from bsmon.diagnosis import verdict
from bsmon.diagnosis.features import MIN_STEPS
from bsmon.diagnosis.history import History
from bsmon.diagnosis.rules import RULES, Finding, Rule, find, value_of
from bsmon.diagnosis.signals import Features
from bsmon.model import Regime

ENTER_WINDOWS, LEAVE_WINDOWS = 3, 5  # a verdict needs this many windows to come, and to go
STRIDES = 3  # windows overlap: one is judged each third of its length


class Engine:
    """Diagnoses jobs, one ``update`` a job and second. Keeps what each job was like before."""

    def __init__(self, rules: tuple[Rule, ...] = RULES) -> None:
        self._rules = rules
        self._jobs: dict[str, _Course] = {}

    def update(self, job_id: str, features: Features, now: float) -> Regime:
        """The verdict on a job at ``now``. Without news since the last time it stands as it was."""
        course = self._jobs.get(job_id)
        if course is None:
            course = self._jobs[job_id] = _Course(self._rules)
        return course.update(features, now)

    def keep(self, job_ids: Iterable[str]) -> None:
        """Forget every job but these."""
        kept = set(job_ids)
        self._jobs = {job_id: course for job_id, course in self._jobs.items() if job_id in kept}


class _Course:
    """One job's history, the verdicts that hold, and those that are on their way in or out."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._history = History()
        self._streak: dict[str, int] = {}
        self._active: dict[str, Finding] = {}
        self._since: dict[str, float] = {}
        self._judged_at = -float("inf")
        self._judged_step: int | None = None
        self._regime = verdict.measuring(Features())

    def update(self, features: Features, now: float) -> Regime:
        if features.last_step is None or features.last_step == self._judged_step:
            return self._regime
        related = self._history.relate(features)
        due = features.steps >= MIN_STEPS and now - self._judged_at >= features.window_s / STRIDES
        for rule in self._rules:
            if due or rule.instant:
                self._judge(rule, related, now)
        if due:
            self._close(related, now)
        if due or self._active or features.steps < MIN_STEPS:
            self._regime = self._speak(related)
        return self._regime

    def _judge(self, rule: Rule, features: Features, now: float) -> None:
        """Move one rule a window on. An active one that is seen again shows its newest numbers."""
        value = value_of(rule, features)
        active = rule.name in self._active
        holds = value is not None and value >= (rule.leave if active else rule.enter)
        if holds and value is not None and active:
            self._active[rule.name] = find(rule, features, value)
        streak = 0 if holds == active else self._streak.get(rule.name, 0) + 1
        self._streak[rule.name] = streak
        if holds and value is not None and streak >= (1 if rule.instant else ENTER_WINDOWS):
            self._active[rule.name] = find(rule, features, value)
            self._since[rule.name] = now
            self._streak[rule.name] = 0
        elif active and streak >= LEAVE_WINDOWS:
            del self._active[rule.name], self._since[rule.name]
            self._streak[rule.name] = 0

    def _close(self, features: Features, now: float) -> None:
        """The window is over: it becomes part of what the next ones are compared with."""
        slow = any(self._doubted(name) for name in ("drift", "contention"))
        unstable = any(rule.label == "unstable" and self._doubted(rule.name) for rule in self._rules)
        self._history.add(features, slow=slow, unstable=unstable)
        self._judged_at, self._judged_step = now, features.last_step

    def _doubted(self, name: str) -> bool:
        return name in self._active or self._streak.get(name, 0) > 0

    def _speak(self, features: Features) -> Regime:
        if features.steps < MIN_STEPS and not self._active:
            return verdict.measuring(features)
        regime = verdict.regime(list(self._active.values()), features)
        names = [name for name, finding in self._active.items() if finding.rule.label == regime.label]
        regime.since = min((self._since[name] for name in names), default=None)
        return regime
