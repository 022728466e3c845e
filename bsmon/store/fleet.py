"""Everything that is known of all jobs: events go in from any thread, views come out."""

from __future__ import annotations

import threading

from bsmon.config import ENDED_SESSIONS, KEPT_RECORDS, SESSIONS
from bsmon.model import Beat, Event, Gone, GpuSample, Hello, Job, RankWindow, Steps
from bsmon.store.buckets import Bucket, together
from bsmon.store.estimates import Memo
from bsmon.store.groups import current, group
from bsmon.store.process import Process, Room, Seen
from bsmon.store.view import Gpus, data_parallel, view

KEPT_NUMBERS = 400_000  # in per-expert lists, over all processes
CHARTED = 100  # processes that a job's series is made of, at most
GPU_SILENCE = 10.0  # seconds after which a sample of a GPU says nothing about now
PARALLEL = ("tokens_per_s", "samples_per_s")  # metrics that add up over data-parallel ranks
METRICS = (
    *PARALLEL,
    "loss",
    "grad_norm",
    "learning_rate",
    "step_time",
    "data_wait",
    "drop_rate",
    "load_cv",
    "phi",
    "gpu_util",
    "gpu_power",
)


class Fleet:
    """Bounded and thread-safe. Views are made outside the lock, from copies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[str, Process] = {}
        self._samples: dict[str, GpuSample] = {}  # by host
        self._memos: dict[str, Memo] = {}  # by job
        self._revision = 0
        self._runs: dict[str, list[Process]] | None = None  # None: who belongs to which job may have changed

    @property
    def revision(self) -> int:
        """Grows with every event that was taken."""
        return self._revision

    def ingest(self, event: Event, source: str = "live") -> None:
        """Take one event. Steps and beats of a process that did not say who it is are left out."""
        with self._lock:
            self._revision += 1
            if isinstance(event, Hello):
                self._greet(event, source)
            elif isinstance(event, GpuSample):
                self._sample(event)
            elif (process := self._processes.get(event.session)) is None:
                return
            elif isinstance(event, Steps):
                process.add(event.records, self._room())
            elif isinstance(event, Beat):
                process.pulse(event)
            elif isinstance(event, Gone):
                process.end(event)
                self._runs = None

    def jobs(self, now: float) -> list[Job]:
        """Every job as it stood at ``now``, the newest first; regime and alerts are somebody else's."""
        with self._lock:
            self._runs = None
            runs = {job_id: current(run, now) for job_id, run in self._grouped().items()}
            seen = {job_id: [process.at(now) for process in run] for job_id, run in runs.items() if run}
            samples = dict(self._samples)
        self._memos = {job_id: self._memos.get(job_id) or Memo() for job_id in seen}
        views = [
            view(job_id, ranks, _gpus_of(ranks, samples, now), now, self._memos[job_id])
            for job_id, ranks in seen.items()
        ]
        return sorted(views, key=lambda job: (-(job.started or 0.0), job.id))

    def window(self, job_id: str, end: float, seconds: float) -> list[RankWindow]:
        """What each rank reported in the ``seconds`` up to ``end``."""
        with self._lock:
            run = current(self._grouped().get(job_id, []), end)
            return [RankWindow(one.hello, one.beat, one.between(end - seconds, end)) for one in run]

    def series(self, job_id: str, metric: str, start: float, end: float, buckets: int) -> list[Bucket | None]:
        """A metric of a job in equal stretches of time; None where nothing is known. See ``METRICS``."""
        if buckets < 1 or not end > start:
            return []
        with self._lock:
            run = self._grouped().get(job_id, [])[-CHARTED:]
            newest = max((one.heard for one in run), default=end)
            charts = [one.series[metric] for one in run if metric in one.series]
            parts = [chart.query(start, end, buckets, newest) for chart in charts]
            factor = _factor(metric, run[-1].hello, len(parts)) if run else None
        if not parts or (metric in PARALLEL and factor is None):
            return [None] * buckets
        return together(parts, factor)

    def note(self, job_id: str, metric: str, time: float, value: float | None, duration: float = 0.0) -> None:
        """Add a value that was worked out elsewhere to a job's series."""
        with self._lock:
            run = current(self._grouped().get(job_id, []), time)
            if run:
                run[0].note(metric, time, value, duration)

    def oldest(self) -> float | None:
        """When the oldest record that is still kept ended."""
        with self._lock:
            return min((one.oldest for one in self._processes.values() if one.oldest is not None), default=None)

    @property
    def size(self) -> int:
        """How many jobs there are."""
        with self._lock:
            return len(self._grouped())

    def gpus(self, now: float) -> Gpus:
        """All GPUs of all hosts, or why there are none."""
        with self._lock:
            return _fresh(list(self._samples.values()), now)

    def agent_versions(self) -> list[str]:
        with self._lock:
            return sorted({one.hello.agent for one in self._processes.values() if one.hello.agent})

    def _greet(self, hello: Hello, source: str) -> None:
        process = self._processes.get(hello.session)
        if process is not None:
            process.greet(hello)
            return
        self._processes[hello.session] = Process(hello, source)
        self._runs = None
        self._make_room()

    def _make_room(self) -> None:
        """Let go of the ended processes that were heard longest ago, then of any."""
        ended = [session for session, one in self._processes.items() if one.over]
        surplus = max(len(ended) - ENDED_SESSIONS, len(self._processes) - SESSIONS)
        if surplus > 0:
            order = sorted(self._processes, key=lambda session: self._rank_of(self._processes[session]))
            for session in order[:surplus]:
                del self._processes[session]

    @staticmethod
    def _rank_of(process: Process) -> tuple[bool, float]:
        return (not process.over, process.heard)

    def _room(self) -> Room:
        count = len(self._processes)
        return Room(records=max(128, min(4096, KEPT_RECORDS // count)), numbers=KEPT_NUMBERS // count)

    def _grouped(self) -> dict[str, list[Process]]:
        if self._runs is None:
            self._runs = group(self._processes.values())
        return self._runs

    def _sample(self, sample: GpuSample) -> None:
        """Keep it, and add it to the series of the jobs that train on these GPUs."""
        before = self._samples.get(sample.host)
        self._samples[sample.host] = sample
        held = min(5.0, max(0.0, sample.time - before.time)) if before is not None else 0.0
        by_uuid = {_uuid(gpu.uuid): gpu for gpu in sample.gpus}
        for process in self._processes.values():
            gpu = by_uuid.get(_uuid(process.hello.device.uuid))
            if gpu is not None and not process.over:
                process.note("gpu_util", sample.time, gpu.utilization, held)
                process.note("gpu_power", sample.time, gpu.power_w, held)


def _factor(metric: str, hello: Hello, parts: int) -> float | None:
    """What turns the mean over processes into the job's figure; None: the mean is the figure."""
    if metric == "gpu_power":
        return parts
    return data_parallel(hello) if metric in PARALLEL else None


def _uuid(uuid: str | None) -> str | None:
    """NVML says GPU-…, torch leaves it out; a process that names none matches nothing."""
    if uuid is None:
        return None
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def _fresh(samples: list[GpuSample], now: float) -> Gpus:
    """The GPUs of samples that are still about the present."""
    found = [gpu for sample in samples if abs(now - sample.time) <= GPU_SILENCE for gpu in sample.gpus]
    if found:
        return Gpus(found, None)
    reasons = [sample.reason for sample in samples if sample.reason]
    if reasons:
        return Gpus([], reasons[0])
    return Gpus([], "NVML has gone silent" if samples else "NVML has not been read")


def _gpus_of(ranks: list[Seen], samples: dict[str, GpuSample], now: float) -> Gpus:
    """The GPUs that a job trains on, joined by uuid: indices and process ids mean something else in a container."""
    devices = [seen.hello.device for seen in ranks]
    if all(device.type != "cuda" for device in devices):
        return Gpus([], f"it trains on {devices[0].type}, not on a GPU that NVML knows")
    fresh = _fresh(list(samples.values()), now)
    if not fresh.found:
        return fresh
    wanted = {_uuid(device.uuid) for device in devices if device.uuid is not None}
    found = [gpu for gpu in fresh.found if _uuid(gpu.uuid) in wanted]
    if found:
        return Gpus(found, None)
    return Gpus([], "its GPU is not among those seen here" if wanted else "the process does not tell its GPU's uuid")
