"""What changed between two snapshots, a line a change: ``bsmon watch``."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bsmon.draw.cells import clean
from bsmon.draw.marks import MARKS, verdict_word
from bsmon.draw.numbers import compact, exact
from bsmon.model import Alert, Job, Snapshot
from bsmon.units import seconds, si

Said = tuple[str, str]  # state, verdict


class Changes:
    """Remembers what was said of each job and alert, and says what is new."""

    def __init__(self) -> None:
        self._jobs: dict[str, Said] = {}
        self._alerts: dict[str, str] = {}

    def lines(self, snapshot: Snapshot) -> Iterator[str]:
        """A line for each job that came, changed its state or verdict, or went, and for each alert that moved."""
        clock = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
        names = {job.id: clean(job.name) for job in snapshot.jobs}
        for job in snapshot.jobs:
            yield from (f"{clock}  {names[job.id]}  {text}" for text in self._job(job))
        for job_id in [job_id for job_id in self._jobs if job_id not in names]:
            del self._jobs[job_id]
            yield f"{clock}  {clean(job_id)}  is no longer kept"
        for alert in snapshot.alerts:
            yield from (f"{clock}  {names.get(alert.job, clean(alert.job))}  {text}" for text in self._alert(alert))
        self._alerts = {alert.id: alert.state for alert in snapshot.alerts}

    def _job(self, job: Job) -> Iterator[str]:
        now = (job.state, verdict_word(job))
        before = self._jobs.get(job.id)
        self._jobs[job.id] = now
        if before is None:
            yield f"{job.state}  {figures(job)}"
        elif before[0] != job.state:
            code = f" with exit code {job.exit_code}" if job.exit_code is not None else ""
            yield f"{before[0]} -> {job.state}{code}  {figures(job)}"
        if job.regime.label and (before is None or before[1] != now[1]):
            yield f"verdict: {now[1]}  {clean('; '.join(job.regime.evidence[:2]))}".rstrip()

    def _alert(self, alert: Alert) -> Iterator[str]:
        before = self._alerts.get(alert.id)
        if before != alert.state and not (before is None and alert.state == "cleared"):
            yield f"{MARKS[alert.severity]} {alert.severity} {alert.state}: {clean(alert.message)}"


def figures(job: Job) -> str:
    """The few numbers that tell how a job is doing."""
    parts = [f"step {exact(job.step)}", f"loss {compact(job.loss)}", f"tok/s {si(job.tokens_per_s)}"]
    return "  ".join([*parts, f"step time {seconds(job.step_time_s.median)}"])
