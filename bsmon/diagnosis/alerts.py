"""Alerts with hysteresis: one a job, rule and place. Pure; the caller brings the time, so history can be replayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2s

from msgspec.structs import replace

from bsmon.diagnosis.alert_rules import ALERT_RULES, AlertRule, Reading, Usual, usual
from bsmon.model import Alert, Job

CLEARS_BELOW = 0.8  # of the limit
KEPT_CLEARED = 200
KEPT_READINGS = 600  # ten minutes at one a second
LEARNS_EVERY = 10  # readings; what is usual does not change from one second to the next
MAX_PLACES = 8  # alerts that one rule may have standing in one job; a flood tells nothing

SEVERITIES = ("crit", "warn", "note")
STATES = ("raised", "acknowledged", "cleared")


class AlertEngine:
    """Give it every job about once a second."""

    def __init__(self, rules: tuple[AlertRule, ...] = ALERT_RULES) -> None:
        self._rules = rules
        self._places: dict[tuple[str, str], dict[str, _Place]] = {}  # (job, rule) -> where -> place
        self._cleared: deque[Alert] = deque(maxlen=KEPT_CLEARED)

    def update(self, now: float, jobs: Sequence[Job]) -> list[Alert]:
        """All alerts at ``now``: raised before acknowledged before cleared, the worst and newest first."""
        for job in jobs:
            for rule in self._rules:
                self._look(now, job, rule)
        known = {job.id for job in jobs}
        for key in [key for key in self._places if key[0] not in known]:
            for place in self._places.pop(key).values():
                self._clear(place)
        return self.alerts()

    def acknowledge(self, alert_id: str) -> bool:
        """Whether there was a raised alert of that id. It stays listed, and clears as any other."""
        for place in self._all():
            if place.alert and place.alert.id == alert_id and place.alert.state == "raised":
                place.alert = replace(place.alert, state="acknowledged")
                return True
        return False

    def alerts(self) -> list[Alert]:
        standing = [place.alert for place in self._all() if place.alert]
        order = {state: index for index, state in enumerate(STATES)}
        return sorted(
            [*standing, *self._cleared],
            key=lambda alert: (order[alert.state], SEVERITIES.index(alert.severity), -alert.since),
        )

    def _all(self) -> Iterator[_Place]:
        return (place for places in self._places.values() for place in places.values())

    def _look(self, now: float, job: Job, rule: AlertRule) -> None:
        """One rule in all places of one job. A place that a job which ended says nothing of is over."""
        places = self._places.setdefault((job.id, rule.name), {})
        standing = sum(place.alert is not None for place in places.values())
        seen = set()
        for reading in rule.read(job):
            seen.add(reading.where)
            place = places.setdefault(reading.where, _Place())
            if place.alert or standing < MAX_PLACES:
                standing += self._follow(place, rule, reading, job, now)
        if job.state in ("finished", "lost"):
            for where in places.keys() - seen:
                self._clear(places.pop(where))

    def _follow(self, place: _Place, rule: AlertRule, reading: Reading, job: Job, now: float) -> bool:
        """Move one place on; True if its alert was raised just now."""
        measured = rule.measure(reading, place.usual)
        if measured is None:
            place.learn(reading.value, job.step)
            return False
        value, limit = measured
        place.time(value, limit, now)
        if rule.learns and value <= limit and place.alert is None:
            place.learn(reading.value, job.step)
        if place.alert is None and place.above_since is not None:
            if now - place.above_since >= rule.raise_after:
                place.alert = _alert(rule, reading, measured, job.id, place.above_since - reading.ago)
                return True
        elif place.alert and place.below_since is not None and now - place.below_since >= rule.clear_after:
            self._clear(place)
        elif place.alert and value > limit:
            place.alert = replace(place.alert, value=value, limit=limit, message=reading.message())
        return False

    def _clear(self, place: _Place) -> None:
        if place.alert:
            self._cleared.append(replace(place.alert, state="cleared"))
            place.alert = None


class _Place:
    """One (job, rule, place): how long it has been above or well below the limit, and what is usual here."""

    def __init__(self) -> None:
        self.alert: Alert | None = None
        self.usual: Usual | None = None
        self._past: deque[float] = deque(maxlen=KEPT_READINGS)
        self._learned = 0
        self.above_since: float | None = None
        self.below_since: float | None = None
        self._learned_step: int | None = None

    def time(self, value: float, limit: float, now: float) -> None:
        above, below = value > limit, value < CLEARS_BELOW * limit
        self.above_since = (self.above_since if self.above_since is not None else now) if above else None
        self.below_since = (self.below_since if self.below_since is not None else now) if below else None

    def learn(self, value: float, step: int | None) -> None:
        """Each step's reading counts once, however often it is looked at."""
        if step is None or step != self._learned_step:
            self._past.append(value)
            self._learned_step = step
            self._learned += 1
            if self._learned % LEARNS_EVERY == 0:
                self.usual = usual(self._past)


def _alert(rule: AlertRule, reading: Reading, measured: tuple[float, float], job: str, since: float) -> Alert:
    said = f"{job}\0{rule.name}\0{reading.where}\0{since:.0f}".encode()
    value, limit = measured
    return Alert(
        id=blake2s(said, digest_size=5).hexdigest(),
        job=job,
        rule=rule.name,
        severity=rule.severity,
        where=reading.where,
        value=value,
        limit=limit,
        since=since,
        state="raised",
        message=reading.message(),
    )
