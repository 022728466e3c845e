"""What is on the board at one moment: the snapshot, what the person chose, and what follows from both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from bsmon.draw.fleet import SORT_KEYS
from bsmon.draw.look import Look
from bsmon.draw.marks import Standing, standing
from bsmon.model import Alert, Job, Snapshot
from bsmon.tui.filters import parse

WINDOWS = (60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 3 * 3600.0, 12 * 3600.0, 24 * 3600.0)
RATES = (0.5, 1.0, 2.0, 4.0, 5.0, 10.0)
_LONGEST_UNASKED = 600.0  # how far back a chart reaches before the person says so


class Bucket(Protocol):
    """A stretch of a series."""

    @property
    def mean(self) -> float: ...


class Watched(Protocol):
    """What the screen needs of the monitor."""

    @property
    def revision(self) -> int: ...
    @property
    def settled(self) -> bool: ...
    @property
    def title(self) -> str: ...
    def hold(self) -> bool: ...
    def seek(self, moment: float) -> bool: ...
    def record(self) -> str: ...
    def tick(self) -> None: ...
    def snapshot(self) -> Snapshot: ...
    def series(self, job_id: str, metric: str, start: float, end: float, buckets: int) -> Sequence[Bucket | None]: ...
    def acknowledge(self, alert_id: str) -> None: ...
    def looked_at(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Choices:
    """What the person chose. ``window`` None: as long as the run, up to ten minutes."""

    sort: str = "verdict"
    reverse: bool = False
    filter: str = ""
    selected: str | None = None
    window: float | None = None
    rate: float = 4.0
    look: Look = field(default_factory=Look)


@dataclass(frozen=True)
class View:
    """One moment, ready to be drawn. ``behind`` is set while paused: seconds since ``now`` stood still.

    ``settled``: every place where jobs can be was looked at once."""

    snapshot: Snapshot
    choices: Choices
    now: float
    jobs: tuple[Job, ...]
    standings: dict[str, Standing]
    job: Job | None
    hidden: int
    behind: float | None
    looked_at: tuple[str, ...]
    settled: bool
    title: str
    _series: Callable[[str, str, float, float, int], Sequence[Bucket | None]]

    @property
    def look(self) -> Look:
        return self.choices.look

    @property
    def state(self) -> Standing:
        """How the selected job stands."""
        return self.standings[self.job.id] if self.job else Standing(" ", "", "", 9)

    def alerts_of(self, job: Job) -> list[Alert]:
        return [alert for alert in self.snapshot.alerts if alert.job == job.id and alert.state != "cleared"]

    def window_of(self, job: Job) -> float:
        """Seconds of history in the job's charts."""
        if self.choices.window is not None:
            return self.choices.window
        lived = self.now - job.started if job.started is not None else _LONGEST_UNASKED
        return next((window for window in WINDOWS if window >= min(lived, _LONGEST_UNASKED)), _LONGEST_UNASKED)

    def series(self, job: Job, metric: str, seconds: float, columns: int) -> list[float | None]:
        """Means over buckets that lie at fixed times, so that a chart moves only when one closes.

        A bucket is at least four steps long: a run with slow steps shows steps of a staircase, not gaps, and a rate
        does not swing with how many steps happen to end in a bucket.
        """
        step = job.step_time_s.median or 0.0
        length = max(seconds / max(1, columns), 4 * step)
        buckets = max(2, int(seconds / length))
        length = seconds / buckets
        end = self.now // length * length
        found = self._series(job.id, metric, end - seconds, end, buckets)
        return [bucket.mean if bucket is not None else None for bucket in found]


class Board:
    """Holds what is between two looks: the choices, the pause, the last snapshot."""

    def __init__(self, monitor: Watched, choices: Choices) -> None:
        self.monitor = monitor
        self.choices = choices
        self._frozen: Snapshot | None = None

    @property
    def paused(self) -> bool:
        return self._frozen is not None

    def pause(self, snapshot: Snapshot | None) -> None:
        """Stand still at a snapshot, or go on (None). The monitor keeps recording either way."""
        self._frozen = snapshot

    def choose(self, **changes: object) -> None:
        self.choices = replace(self.choices, **changes)  # type: ignore[arg-type]

    def view(self) -> View:
        """The present, or the moment of the pause, seen through the choices."""
        live = self.monitor.snapshot()
        snapshot = self._frozen or live
        standings = {job.id: standing(job, snapshot.alerts) for job in snapshot.jobs}
        passes = parse(self.choices.filter)
        jobs = self._ordered([job for job in snapshot.jobs if passes(job, standings[job.id])], standings)
        return View(
            snapshot=snapshot,
            choices=self.choices,
            now=snapshot.time,
            jobs=tuple(jobs),
            standings=standings,
            job=next((job for job in jobs if job.id == self.choices.selected), jobs[0] if jobs else None),
            hidden=len(snapshot.jobs) - len(jobs),
            behind=max(0.0, live.time - snapshot.time) if self._frozen else None,
            looked_at=tuple(self.monitor.looked_at()),
            settled=self.monitor.settled,
            title=self.monitor.title,
            _series=self.monitor.series,
        )

    def _ordered(self, jobs: list[Job], standings: dict[str, Standing]) -> list[Job]:
        key = SORT_KEYS[self.choices.sort]
        by_name = sorted(jobs, key=lambda job: (job.name.lower(), job.id))
        return sorted(by_name, key=lambda job: key(job, standings[job.id]), reverse=self.choices.reverse)  # type: ignore[arg-type, return-value]

    def move(self, view: View, delta: int) -> None:
        """Select the job ``delta`` rows further; the choice then sticks to that job."""
        if view.jobs:
            place = view.jobs.index(view.job) if view.job in view.jobs else 0
            self.choose(selected=view.jobs[min(len(view.jobs) - 1, max(0, place + delta))].id)


def neighbour(options: Sequence[float], present: float, delta: int) -> float:
    """The next smaller or larger option."""
    nearest = min(range(len(options)), key=lambda index: abs(options[index] - present))
    return options[min(len(options) - 1, max(0, nearest + delta))]
