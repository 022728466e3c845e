"""One training process as the store keeps it: what it said of itself, its newest records, its series."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

import msgspec

from bsmon.config import KEPT_SECONDS, LOST_AFTER
from bsmon.estimators.rates import data_wait_share
from bsmon.model import Beat, Gone, Hello, MoeCounts, Record
from bsmon.store.buckets import Series

MEASURED = 256  # newest steps in which the gradient noise was measured
USER_NAMES = 64
HANDOVER = 2.0  # seconds by which the news of an end may come after the next process's start


class Seen(msgspec.Struct, frozen=True):
    """A process as it was known at one moment; nothing in it changes any more."""

    hello: Hello
    beat: Beat | None
    gone: Gone | None
    heard: float
    source: str
    records: list[Record]
    measured: list[Record]
    user: dict[str, float]
    missing: int
    skipped: int

    @property
    def newest(self) -> Record | None:
        return self.records[-1] if self.records else None


class Room(msgspec.Struct, frozen=True):
    """What one process may fill of the store: records, and numbers in their per-expert lists."""

    records: int
    numbers: int


class Process:
    """Bounded memory of one session. Records come in order of ``seq``; older ones and repetitions are ignored."""

    def __init__(self, hello: Hello, source: str) -> None:
        self.hello = hello
        self.source = source
        self.beat: Beat | None = None
        self.gone: Gone | None = None
        self.heard = max(hello.time, hello.started)
        self.job_id: str | None = None
        self.missing = 0
        self.series: dict[str, Series] = {}
        self._records: list[Record] = []
        self._measured: deque[Record] = deque(maxlen=MEASURED)
        self._user: dict[str, float] = {}
        self._newest = 0
        self._skipped = 0
        self._numbers = 0  # in the per-expert lists of records[_stripped:]
        self._stripped = 0  # records whose lists were let go

    def greet(self, hello: Hello) -> None:
        self.hello = hello
        self._hear(hello.time)

    def pulse(self, beat: Beat) -> None:
        if self.beat is None or beat.time >= self.beat.time:
            self.beat = beat
        self._hear(beat.time)

    def end(self, gone: Gone) -> None:
        self.gone = gone

    def add(self, records: list[Record], room: Room) -> None:
        for record in records:
            if record.seq > self._newest:
                self._add(record)
        self._trim(room)
        if self._records:
            self._hear(self._records[-1].time)

    def note(self, metric: str, time: float, value: float | None, duration: float = 0.0) -> None:
        """One value of a series; ``duration`` is how long it held up to ``time``."""
        if value is None:
            return
        series = self.series.get(metric)
        if series is None:
            series = self.series[metric] = Series()
        series.add(time, value, duration)

    def at(self, now: float) -> Seen:
        """What was known at ``now``, as far as it is still kept."""
        count = bisect_right(self._records, now, key=lambda record: record.time)
        gone = self.gone if self.gone is not None and self.gone.time <= now else None
        return Seen(
            hello=self.hello,
            beat=self._beat_at(now),
            gone=gone,
            heard=min(self.heard, now),
            source=self.source,
            records=self._records[:count],
            measured=self._measured_by(now),
            user=dict(self._user),
            missing=max(self.missing, self.beat.dropped_records if self.beat else 0),
            skipped=self._skipped,
        )

    def _beat_at(self, now: float) -> Beat | None:
        """The newest, as no older one is kept; but an end that it tells of is not known before its time."""
        if self.beat is not None and self.beat.time > now and self.beat.state == "finished":
            return msgspec.structs.replace(self.beat, state="live", exit_code=None)
        return self.beat

    def _measured_by(self, now: float) -> list[Record]:
        measured = list(self._measured)
        if measured and measured[-1].time <= now:
            return measured
        return [record for record in measured if record.time <= now]

    def between(self, start: float, end: float) -> list[Record]:
        """Records of steps that ended in (start, end]."""
        first = bisect_right(self._records, start, key=lambda record: record.time)
        last = bisect_right(self._records, end, key=lambda record: record.time)
        return self._records[first:last]

    def over_before(self, moment: float) -> bool:
        """Whether it had ended, or was not heard any more, when something else began at ``moment``."""
        ended = self.gone.time if self.gone is not None else self.heard + (0.0 if self.over else LOST_AFTER)
        return ended <= moment + HANDOVER

    @property
    def over(self) -> bool:
        return self.gone is not None or (self.beat is not None and self.beat.state == "finished")

    @property
    def oldest(self) -> float | None:
        """When the oldest record that is kept ended."""
        return self._records[0].time if self._records else None

    def _hear(self, time: float) -> None:
        self.heard = max(self.heard, time)
        if self.gone is not None and not self.gone.finished and time > self.gone.time:
            self.gone = None  # it was only out of hearing

    def _add(self, record: Record) -> None:
        if self._newest:
            self.missing += record.seq - self._newest - 1
        self._newest = record.seq
        self._records.append(record)
        self._numbers += _numbers(record)
        self._skipped += record.skipped
        if record.noise is not None:
            self._measured.append(msgspec.structs.replace(record, moe=None))
        for name, value in (record.user or {}).items():
            if name in self._user or len(self._user) < USER_NAMES:
                self._user[name] = value
        self._chart(record)

    def _chart(self, record: Record) -> None:
        time, duration = record.time, record.duration or 0.0
        if duration > 0:
            self.note("step_time", time, duration, duration)
            self.note("tokens_per_s", time, None if record.tokens is None else record.tokens / duration, duration)
            self.note("samples_per_s", time, None if record.samples is None else record.samples / duration, duration)
            self.note("data_wait", time, data_wait_share(record), duration)
        for metric in ("loss", "grad_norm", "learning_rate"):
            self.note(metric, time, getattr(record, metric), duration)
        if record.moe:
            self.note("drop_rate", time, drop_rate(record.moe), duration)

    def _trim(self, room: Room) -> None:
        """Keep to the room: the oldest records go, and of those that stay the oldest lose their per-expert lists."""
        records = self._records
        if not records:
            return
        expired = bisect_right(records, records[-1].time - KEPT_SECONDS, key=lambda record: record.time)
        surplus = max(expired, len(records) - room.records)
        if surplus > len(records) // 8 or expired > 64:  # in one piece, not one by one
            self._numbers -= sum(_numbers(record) for record in records[self._stripped : surplus])
            del records[:surplus]
            self._stripped = max(0, self._stripped - surplus)
        while self._numbers > room.numbers and self._stripped < len(records) - 1:
            record = records[self._stripped]
            if record.moe is not None:
                self._numbers -= _numbers(record)
                records[self._stripped] = msgspec.structs.replace(record, moe=None)
            self._stripped += 1


def drop_rate(counts: list[MoeCounts]) -> float | None:
    """Dropped assignments / assignments, over the routers that tell both."""
    told = [one for one in counts if one.dropped is not None and one.assignments]
    assignments = sum(one.assignments for one in told)
    return sum(one.dropped or 0 for one in told) / assignments if assignments else None


def _numbers(record: Record) -> int:
    if record.moe is None:
        return 0
    lists = [(one.assigned, one.kept, one.padding, one.probability) for one in record.moe]
    return sum(len(column) for columns in lists for column in columns if column)
