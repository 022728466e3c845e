"""The recorder: hears sources as the store does, and keeps what they say in a file, as it came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bsmon.config import ENDED_KEPT, SESSIONS
from bsmon.model import Beat, End, Event, Gone, GpuSample, Hello, Steps
from bsmon.services.recording_file import RecordingFile
from bsmon.sources import blocks
from bsmon.sources.base import Source
from bsmon.sources.blocks import KEY, Entry, entry

FLUSH_EVERY = 2.0  # seconds: what a SIGKILL can cost
QUIET_AFTER = 10.0  # seconds without an event after which a block says just that
KEY_EVERY = 300.0  # seconds between two blocks from which reading can begin
BLOCK = 512 << 10  # bytes of events that make a block before its time
MAX_SIZE, MAX_AGE = float(1 << 30), float("inf")


class Known(msgspec.Struct):
    """The newest of each kind that one process said: what a reader must know who begins later."""

    hello: Hello
    steps: Steps | None = None
    beat: Beat | None = None
    gone: Gone | None = None

    def hear(self, event: Steps | Beat | End) -> None:
        if isinstance(event, Steps):
            self.steps = msgspec.structs.replace(event, records=event.records[-1:])
        elif isinstance(event, Beat):
            self.beat = event
        if self.gone is not None and not self.gone.finished:
            self.gone = None  # it was only out of hearing

    def events(self) -> Iterator[Event]:
        yield from (one for one in (self.hello, self.steps, self.beat, self.gone) if one is not None)


class Recorder:
    """Between ``start`` and ``stop`` it writes; what can't be written is counted, said in ``problem``, and left out."""

    def __init__(
        self,
        path: Path,
        sources: Sequence[Source],
        max_size: float = MAX_SIZE,
        max_age: float = MAX_AGE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.lost = 0  # events
        self._file = RecordingFile(path, max_size, max_age)
        self._sources = list(sources)
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}
        self._gpus: dict[str, GpuSample] = {}  # by host
        self._jobs: set[str] = set()
        self._pending: list[tuple[Entry, Event]] = []
        self._pending_size = 0
        self._told_to = self._key_at = clock()
        self._failure: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bsmon-recorder", daemon=True)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._file.size

    @property
    def jobs(self) -> int:
        """Different jobs that were heard."""
        return len(self._jobs)

    @property
    def problem(self) -> str | None:
        return self._failure

    def start(self) -> None:
        """Raises ``OSError`` if not even a first block can be written."""
        with self._lock:
            self._file.append([], (self._told_to, self._told_to), KEY)
        for source in self._sources:
            source.start(self.ingest)
        self._thread.start()

    def stop(self) -> None:
        """The last block says that this is the end."""
        for source in self._sources:
            source.stop()
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._flush(blocks.END)
            self._file.close()

    def ingest(self, event: Event) -> None:
        """Keep one event; from any thread. A disk that is slow makes the source wait, and memory stay flat."""
        arrival = self._clock()
        kept = entry(arrival, event)
        if kept is None:
            return
        with self._lock:
            if self._pending_size + len(kept.event) > BLOCK:
                self._flush()
            self._pending.append((kept, event))
            self._pending_size += len(kept.event)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_EVERY):
            with self._lock:
                if self._pending or self._clock() - self._told_to >= QUIET_AFTER:
                    self._flush()

    def _flush(self, flags: int = 0) -> None:
        """Write what has come; begin with all that is known where a reader may have to begin."""
        now = self._clock()
        pending, self._pending, self._pending_size = self._pending, [], 0
        entries = [kept for kept, _ in pending]
        try:
            if self._file.full(now):
                self._file.turn()
                self._key_at = 0.0
            if now - self._key_at >= KEY_EVERY:
                self._append_key(now)
            self._file.append(entries, self._span(entries, now), flags)
            self._failure = None
        except OSError as error:
            self.lost += len(entries)
            self._key_at = 0.0  # what is written next must be understood without this
            self._failure = f"{self.path}: {error.strerror or error}; {self.lost} events lost, still trying"
        self._told_to = now
        for kept, event in pending:  # not before: a key must not tell of what comes after it
            self._remember(event, kept.arrival)

    def _append_key(self, now: float) -> None:
        """What is known at the end of the last block, in as many blocks as it takes."""
        then = min(self._told_to, now)
        events = [event for known in self._known.values() for event in known.events()]
        entries = [one for event in [*events, *self._gpus.values()] if (one := entry(then, event)) is not None]
        flags = KEY
        for part in _parts(entries):
            self._file.append(part, (then, then), flags)
            flags = 0
        self._key_at = now

    def _span(self, entries: Sequence[Entry], now: float) -> tuple[float, float]:
        first = entries[0].arrival if entries else now
        return min(first, now), max(first, now)

    def _remember(self, event: Event, now: float) -> None:
        if isinstance(event, GpuSample):
            self._gpus[event.host] = event
        elif isinstance(event, Hello):
            self._greet(event, now)
        elif (known := self._known.get(event.session)) is None:
            return
        elif isinstance(event, Gone):
            known.gone = event
        else:
            known.hear(event)

    def _greet(self, hello: Hello, now: float) -> None:
        known = self._known.get(hello.session)
        if known is not None:
            known.hello = hello
            return
        self._jobs.add(hello.job)
        self._known[hello.session] = Known(hello)
        over = [session for session, one in self._known.items() if one.gone and now - one.gone.time > ENDED_KEPT]
        if len(self._known) - len(over) > SESSIONS:
            over.append(next(iter(self._known)))
        for session in over:
            self._known.pop(session, None)


def _parts(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Pieces that fit a block; one, be it empty, at least."""
    part: list[Entry] = []
    size = 0
    for one in entries:
        length = len(one.event)
        if part and size + length > BLOCK:
            yield part
            part, size = [], 0
        part.append(one)
        size += length
    yield part
