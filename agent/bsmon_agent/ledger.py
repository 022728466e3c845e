"""Between the training thread and the publisher: steps that wait to be sent, and the history of those that were.

The training thread only appends to a bounded deque. When the publisher falls behind, the oldest records go, and the
loss shows twice: as a gap in ``seq``, and in ``dropped``.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

PENDING = 2048  # records that wait for the publisher: two seconds at a thousand steps a second
HISTORY_SECONDS = 600.0
HISTORY_BYTES = 8 << 20
PER_RECORD = 150  # bytes that Python itself needs to keep one packed record


class Ledger:
    """Records on their way to the publisher. ``push`` is the training thread's, all else the publisher's."""

    def __init__(self, maxlen: int = PENDING) -> None:
        self.seq = 0  # of the newest record
        self.dropped = 0  # records that no reader will ever get
        self._taken = 0  # seq of the newest record that left
        self._pending: deque[dict[str, Any]] = deque(maxlen=maxlen)
        self._closed = False

    def push(self, record: dict[str, Any]) -> None:
        """Number a record and queue it. Costs a fraction of a microsecond, whatever the publisher does."""
        self.seq += 1
        if self._closed:
            return
        record["seq"] = self.seq
        self._pending.append(record)

    def drain(self) -> list[dict[str, Any]]:
        """Everything that waits, oldest first."""
        records = [self._pending.popleft() for _ in range(len(self._pending))]
        for record in records:
            self.dropped += record["seq"] - self._taken - 1
            self._taken = record["seq"]
        return records

    def close(self) -> None:
        """Nobody will drain it again: let go of what waits and keep nothing more."""
        self._closed = True
        self._pending = deque(maxlen=0)


class History:
    """The newest packed records, as many as fit in a stretch of time and in a number of bytes."""

    def __init__(self, seconds: float = HISTORY_SECONDS, size: int = HISTORY_BYTES) -> None:
        self.seconds = seconds
        self.size = size
        self.held = 0  # bytes
        self.seq = 0  # of the newest record
        self._records: deque[tuple[int, float, bytes]] = deque()

    @property
    def last(self) -> bytes | None:
        """The newest record."""
        return self._records[-1][2] if self._records else None

    def add(self, seq: int, packed: bytes, now: float | None = None) -> None:
        """Keep one record, let the oldest go. ``now`` is on the monotonic clock."""
        now = time.monotonic() if now is None else now
        self.seq = seq
        self.held += len(packed) + PER_RECORD
        self._records.append((seq, now, packed))
        while len(self._records) > 1 and (self.held > self.size or now - self._records[0][1] > self.seconds):
            self.held -= len(self._records.popleft()[2]) + PER_RECORD

    def after(self, seq: int) -> list[bytes]:
        """All that is kept with a larger ``seq``, oldest first."""
        newer: list[bytes] = []
        for number, _, packed in reversed(self._records):
            if number <= seq:
                break
            newer.append(packed)
        return newer[::-1]
