"""A recording played from its beginning to its end by hand, and what was seen of each job on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bsmon.config import LOST_AFTER
from bsmon.model import Alert, Job
from bsmon.report.morning import COLUMNS, Course, Happened, Night
from bsmon.services.monitor import AT_REST, DIAGNOSE_EVERY, REPLAY_STEP, Monitor
from bsmon.sources.base import Ingest
from bsmon.sources.recorded import Recording, Survey, survey

LOOKS = 1200  # at a recording, as far as an alert can't slip through in between
NOTED = 2000  # alerts of one job


class _Walk:
    """A source without a thread: ``moments`` hands on what arrived up to each moment that it yields."""

    name = "recording"
    problem = None
    settled = True

    def __init__(self, path: Path) -> None:
        self.recording = Recording(path)
        self.looked_at = [str(path)]
        self._moment = self.recording.first

    def clock(self) -> float:
        return self._moment

    def start(self, ingest: Ingest) -> None:
        self._ingest = ingest

    def stop(self) -> None:
        self.recording.close()

    def moments(self, step: float) -> Iterator[float]:
        due = self._moment + step
        for arrived in self.recording.events():
            if arrived.time > due:
                yield self._moment
                due = arrived.time + step
            self._moment = arrived.time
            self._ingest(arrived.event)
        self._moment = self.recording.last
        yield self._moment


class _Seen:
    """What was seen of all jobs so far."""

    def __init__(self) -> None:
        self.courses: dict[str, Course] = {}
        self._happened: dict[str, Happened] = {}
        self._before: float | None = None

    def look(self, now: float, jobs: list[Job], alerts: list[Alert]) -> None:
        held = 0.0 if self._before is None else min(now - self._before, LOST_AFTER)
        for job in jobs:
            if job.step is not None or job.id not in self.courses:
                self._follow(job, held)
        for alert in alerts:
            self._note(alert, now)
        self._before = now

    def _follow(self, job: Job, held: float) -> None:
        course = self.courses.get(job.id)
        if course is None:
            course = self.courses[job.id] = Course(job, job.step, job.loss)
        if course.first_step is None:
            course.first_step, course.first_loss = job.step, job.loss
        course.job = job
        if job.state != "live":
            return
        rate = job.tokens_per_s or job.samples_per_s
        if rate is not None:
            course.rates.append(rate)
        if job.step_time_s.median is not None:
            course.step_times.append(job.step_time_s.median)
        label = job.regime.label or "unknown"
        course.held[label] = course.held.get(label, 0.0) + held
        course.regimes[label] = job.regime

    def _note(self, alert: Alert, now: float) -> None:
        known = self._happened.get(alert.id)
        course = self.courses.get(alert.job)
        if known is None and course is not None and len(course.happened) < NOTED:
            known = self._happened[alert.id] = Happened(alert.since, alert.severity, alert.message)
            course.happened.append(known)
        if known is not None and known.until is None:
            known.message = alert.message
            known.until = now if alert.state == "cleared" else None


def review(path: Path, progress: Callable[[float], None]) -> tuple[Night, list[Alert]]:
    """The whole recording, and the alerts that stand at its end on jobs that ran in it.

    ``progress`` is told the share that was seen. Raises ``RefusedError`` for what is no recording and ``OSError`` for
    what can't be opened.
    """
    known, walk, seen = survey(path), _Walk(path), _Seen()
    monitor = Monitor([walk], clock=walk.clock)
    monitor.start()
    try:
        for moment in walk.moments(_step(known)):
            monitor.tick()
            found = monitor.snapshot()
            seen.look(moment, found.jobs, found.alerts)
            progress((moment - known.first) / max(1e-9, known.last - known.first))
        night = _night(path, walk.recording, monitor, seen)
        ran = {course.job.id for course in night.courses}
        return night, [alert for alert in monitor.snapshot().alerts if alert.job in ran]
    finally:
        monitor.stop()


def _step(known: Survey) -> float:
    """Seconds between two looks: as often as on the screen, less so where the recording is long."""
    return min(max((known.last - known.first) / LOOKS, DIAGNOSE_EVERY), REPLAY_STEP)


def _night(path: Path, recording: Recording, monitor: Monitor, seen: _Seen) -> Night:
    courses = [course for course in seen.courses.values() if _ran(course, recording)]
    for course in courses:
        metric = "tokens_per_s" if course.unit == "tok/s" else "samples_per_s"
        found = monitor.series(course.job.id, metric, recording.first, recording.last, COLUMNS)
        course.throughput = [bucket.mean if bucket is not None else None for bucket in found]
    return Night(
        name=path.name,
        first=recording.first,
        last=recording.last,
        courses=sorted(courses, key=lambda course: -(course.job.started or 0.0)),
        before=len(seen.courses) - len(courses),
        ended=recording.ended,
        growing=recording.written_now(),
        problem=recording.problem,
    )


def _ran(course: Course, recording: Recording) -> bool:
    """Whether anything of the job happened while it was recorded."""
    return course.job.state not in AT_REST or recording.last - (course.job.age_s or 0.0) > recording.first
