"""The heart of every view: sources feed the fleet, the fleet is diagnosed once a second, readers get snapshots."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from bsmon.config import KEPT_SECONDS
from bsmon.diagnosis.alerts import AlertEngine
from bsmon.diagnosis.engine import Engine
from bsmon.diagnosis.features import features_of, window_seconds
from bsmon.model import Alert, Job, Regime, Snapshot
from bsmon.services.alert_log import AlertLog
from bsmon.services.keeper import Keeper
from bsmon.sources.base import Source
from bsmon.store import Bucket, Fleet

DIAGNOSE_EVERY = 1.0  # seconds
VIEW_EVERY = 0.1  # seconds, at least …
VIEW_SHARE = 0.2  # … and so seldom that views take no more than this share of a core
FIRST_LOOK = 3.0  # seconds that sources may take to tell their history before the first diagnosis
REPLAYED = 480  # views that a first look makes of the history, over all jobs
REPLAY_STEP = 5.0  # seconds between two moments of it, at most: an alert must not slip through
AT_REST = ("lost", "finished")


class Monitor:
    """Owned by one thread, which calls ``tick``; a snapshot never changes once it was handed out."""

    patience = FIRST_LOOK  # seconds that are worth waiting for it to settle

    def __init__(
        self,
        sources: Sequence[Source],
        clock: Callable[[], float] = time.time,
        alert_log: AlertLog | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self._sources = list(sources)
        self._clock = clock
        self._log = alert_log
        self._keeper = keeper
        self._host = socket.gethostname()
        self._revision = 0
        self._forget()

    def _forget(self) -> None:
        """As if nothing had been heard yet."""
        self.fleet = Fleet()
        self._engine = Engine()
        self._alerts = AlertEngine()
        self._regimes: dict[str, Regime] = {}
        self._raised: list[Alert] = []
        self._began = self._clock()
        self._diagnosed: float | None = None
        self._viewed: float | None = None
        self._pause = VIEW_EVERY
        self._settled = False
        self._seen_revision = -1
        self._snapshot = Snapshot(time=self._began, host=self._host)

    def start(self) -> None:
        self._began = self._clock()
        for source in self._sources:
            source.start(partial(self.fleet.ingest, source=source.name))

    def stop(self) -> None:
        for source in self._sources:
            source.stop()
        if self._keeper is not None:
            self._keeper.stop()

    def start_over(self) -> None:
        """After ``stop``: forget everything, and hear the sources from wherever they begin now."""
        self._forget()
        self.start()

    @property
    def settled(self) -> bool:
        """The snapshot holds the history of all that was found at first, diagnosed."""
        return self._settled

    @property
    def revision(self) -> int:
        """Grows with every snapshot that differs from the one before."""
        return self._revision

    @property
    def over(self) -> bool:
        """Whether nothing can come any more."""
        return False

    @property
    def title(self) -> str:
        """What kind of present is shown."""
        return "LIVE, recording" if self._keeper is not None and self._keeper.recording else "LIVE"

    def hold(self) -> bool:
        """Stop the clock or let it go on; False: it is the world's."""
        return False

    def seek(self, moment: float) -> bool:
        """Show another moment; False: it can't be had."""
        return False

    def record(self) -> str:
        """Begin or end a recording of what is watched; says what came of it."""
        return self._keeper.toggle() if self._keeper is not None else "what is shown here is recorded already"

    def looked_at(self) -> list[str]:
        """Where jobs were looked for, and what was found there."""
        return [line for source in self._sources for line in source.looked_at]

    def snapshot(self) -> Snapshot:
        """The newest; made by ``tick``."""
        return self._snapshot

    def series(self, job_id: str, metric: str, start: float, end: float, buckets: int) -> list[Bucket | None]:
        return self.fleet.series(job_id, metric, start, end, buckets)

    def acknowledge(self, alert_id: str) -> None:
        if self._alerts.acknowledge(alert_id):
            self._raised = self._alerts.alerts()
            self._log_alerts(self._clock(), self._snapshot.jobs)
            self._view(self._snapshot.time, self._snapshot.jobs)

    def tick(self) -> None:
        """Look at what has come; diagnose if a second has gone by. Cheap when nothing is new."""
        now = self._clock()
        due = self._diagnosed is None or not 0 <= now - self._diagnosed < DIAGNOSE_EVERY
        if self._viewed is not None and 0 < now - self._viewed < self._pause:  # 0: a clock that was stopped
            return
        if not due and self.fleet.revision == self._seen_revision:
            return
        begun = time.thread_time()
        told = all(source.settled for source in self._sources)
        self._seen_revision = self.fleet.revision
        jobs = self.fleet.jobs(now)
        if due and (told or self._ready(now)):
            if self._diagnosed is None or now - self._diagnosed > REPLAY_STEP:
                self._replay(now)
                begun = time.thread_time()
            self._diagnose(now, jobs, DIAGNOSE_EVERY)
            self._diagnosed = now
            self._log_alerts(now, jobs)
        self._view(now, jobs)
        self._settled = self._settled or (told and self._diagnosed is not None)
        self._pause = min(max(VIEW_EVERY, (time.thread_time() - begun) / VIEW_SHARE), DIAGNOSE_EVERY)

    def _ready(self, now: float) -> bool:
        """Whether it may be diagnosed before every history is at hand; the first time that is waited for a while."""
        return self._diagnosed is not None or not 0 <= now - self._began < FIRST_LOOK

    def _replay(self, now: float) -> None:
        """Diagnose what was not watched as if it had been, so that a first look has its verdicts and alerts.

        The same after a pause, and where a recording goes by faster than anybody looks.
        """
        oldest = self.fleet.oldest() if self._diagnosed is None else self._diagnosed
        if oldest is None:
            return
        moments = min(max(REPLAYED // max(1, self.fleet.size), 12), int(KEPT_SECONDS / REPLAY_STEP))
        span = min(KEPT_SECONDS, now - oldest, moments * REPLAY_STEP)
        step = max(DIAGNOSE_EVERY, span / moments)
        moment = now - span
        while moment < now - step / 2:
            self._diagnose(moment, self.fleet.jobs(moment), step)
            moment += step

    def _diagnose(self, now: float, jobs: list[Job], held: float) -> None:
        """Regimes and alerts at ``now``; ``held``: seconds since the moment before."""
        for job in jobs:
            seconds = window_seconds(job.step_time_s.median)
            windows = self.fleet.window(job.id, now, seconds)
            self._regimes[job.id] = self._engine.update(job.id, features_of(windows, job), now)
            if job.state not in AT_REST:
                self.fleet.note(job.id, "phi", now, job.noise.phi, held)
                self.fleet.note(job.id, "load_cv", now, job.moe.load_cv if job.moe else None, held)
        known = {job.id for job in jobs}
        self._engine.keep(known)
        self._regimes = {job_id: regime for job_id, regime in self._regimes.items() if job_id in known}
        self._raised = self._alerts.update(now, _with_regimes(jobs, self._regimes))

    def _log_alerts(self, now: float, jobs: list[Job]) -> None:
        if self._log is not None:
            self._log.note(now, self._raised, {job.id: job.name for job in jobs})

    def _view(self, now: float, jobs: list[Job]) -> None:
        """Put together what readers see."""
        gpus = self.fleet.gpus(now)
        self._snapshot = Snapshot(
            time=now,
            host=self._host,
            agent_versions=self.fleet.agent_versions(),
            jobs=_with_regimes(jobs, self._regimes),
            gpus=gpus.found,
            alerts=list(self._raised),
            unavailable=self._problems(gpus.reason),
        )
        self._viewed = now
        self._revision += 1

    def _problems(self, gpus: str | None) -> dict[str, str]:
        found = {"gpus": gpus} if gpus else {}
        for source in self._sources:
            problem = source.problem
            if problem and problem != gpus:
                found[f"sources.{source.name}"] = problem
        if self._log is not None and self._log.problem:
            found["alerts"] = self._log.problem
        return found


def _with_regimes(jobs: list[Job], regimes: dict[str, Regime]) -> list[Job]:
    return [msgspec.structs.replace(job, regime=regimes[job.id]) if job.id in regimes else job for job in jobs]
