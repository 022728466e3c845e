"""Reading a recording: every complete block, in order, also while it is written; what can't be read is counted."""

from __future__ import annotations

import fcntl
import os
import stat
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bsmon.model import Event
from bsmon.sources import blocks
from bsmon.sources.blocks import END, HEADER, KEY, MAGIC, Head
from bsmon.sources.decode import RefusedError, decode_kept
from bsmon.units import size

MOST_KEYS = 100_000  # of a year's recording
CHUNK = 1 << 20  # bytes searched at a time for the next block after damage


class Arrived(NamedTuple):
    """An event, and when it arrived."""

    time: float
    event: Event


def older_part(path: Path) -> Path:
    """Where the part before the newest one of a bounded recording is kept."""
    return path.with_name(path.name + ".1")


class Part:
    """One file. ``advance`` goes to the next block; None at the end, and asked again it sees what was added."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.end = 0  # of the last block that was found
        self.damaged = 0  # bytes before it that are in no block
        self._payload_at = 0
        self._searched = 0

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    @property
    def inode(self) -> int:
        return os.fstat(self._file.fileno()).st_ino

    def close(self) -> None:
        self._file.close()

    def step_back(self) -> None:
        """To before the block that ``advance`` has come to."""
        self.end = self._payload_at - HEADER

    def advance(self) -> Head | None:
        """The next block's header, if the block is complete."""
        at = self.end
        head = self._head(at)
        if head is None or not self._whole(at, head):
            found = None if head is not None else self._search()
            if found is None:
                return None
            at, head = found
        self.damaged += at - self.end
        self._payload_at = at + HEADER
        self.end = self._searched = self._payload_at + head.length
        return head

    def peek(self) -> Head | None:
        """What ``advance`` would come to."""
        head = self.advance()
        if head is not None:
            self.step_back()
        return head

    def begins_as_one(self) -> bool:
        """Whether it could become a recording: it is empty, or begins with what one begins with."""
        begin = os.pread(self._file.fileno(), len(MAGIC), 0)
        return MAGIC.startswith(begin)

    def payload(self, head: Head) -> bytes:
        """Of the block that ``advance`` has come to."""
        return os.pread(self._file.fileno(), head.length, self._payload_at)

    def written_now(self) -> bool:
        """Whether a recorder holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def _head(self, offset: int) -> Head | None:
        return blocks.head_of(os.pread(self._file.fileno(), HEADER, offset))

    def _whole(self, offset: int, head: Head) -> bool:
        return offset + HEADER + head.length <= self.size

    def _search(self) -> tuple[int, Head] | None:
        """The next complete block after something that is none. Remembers how far it looked."""
        offset, total = max(self._searched, self.end + 1), self.size
        while offset < total:
            chunk = os.pread(self._file.fileno(), CHUNK + HEADER, offset)
            place = chunk.find(MAGIC)
            while 0 <= place < CHUNK:
                head = blocks.head_of(chunk[place : place + HEADER])
                if head is not None:
                    self._searched = offset + place
                    return (offset + place, head) if self._whole(offset + place, head) else None
                place = chunk.find(MAGIC, place + 1)
            offset += CHUNK
        self._searched = max(self._searched, total - HEADER)
        return None


class Recording:
    """A recording from its first block on: FILE.1 if that is its older part, then FILE, and FILE anew when it turns.

    Raises ``RefusedError`` for what is no recording, and ``OSError`` for what can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended = False  # by a recorder that was asked to end
        self.missing = 0  # blocks that are not there or can't be read
        self.refused = 0  # events that are none
        self._reason = ""  # of the last of either
        self._damaged = 0  # bytes in parts that were read to their end
        self._newest = _open(path)
        self._part = self._newest
        self._find_older()
        head = self._first_head()
        self.recording = head.recording
        self.first = self.last = head.first
        self._number = head.number  # of the next block

    @property
    def damaged(self) -> int:
        """Bytes that are in no block, a torn end included."""
        torn = self._part.size - self._part.end
        return self._damaged + self._part.damaged + (0 if self.written_now() else torn)

    @property
    def problem(self) -> str | None:
        """What of it can't be read."""
        found = []
        if self.missing:
            found.append(f"{self.missing} of its blocks can't be read or were never written")
        if self.refused:
            found.append(f"{self.refused} events are not what they should be")
        if self._reason:
            found.append(f"the last reason: {self._reason}")
        if self.damaged:
            found.append(f"{size(self.damaged)} of it are no complete block")
        return "; ".join(found) or None

    @property
    def size(self) -> int:
        """Bytes in what has not been left behind."""
        return self._newest.size + (self._part.size if self._part is not self._newest else 0)

    def written_now(self) -> bool:
        return self._newest.written_now()

    def close(self) -> None:
        self._part.close()
        self._newest.close()

    def events(self) -> Iterator[Arrived]:
        """What has not been read yet, up to the present end."""
        while (head := self._advance()) is not None:
            yield from self._events_of(head)

    def heads(self) -> Iterator[Head]:
        """The headers of what has not been read yet."""
        while (head := self._advance()) is not None:
            yield head

    def skip_to(self, number: int) -> None:
        """Go on with the block of that number, or the next there is."""
        while (head := self._advance()) is not None:
            if head.number >= number:
                self._part.step_back()
                self._number = head.number
                return

    def _events_of(self, head: Head) -> Iterator[Arrived]:
        try:
            entries = blocks.unpack(head, self._part.payload(head))
        except RefusedError as error:
            self.missing += 1
            self._reason = str(error)
            return
        time = head.first
        for one in entries:
            time = min(max(one.arrival, time), head.last)
            try:
                yield Arrived(time, decode_kept(one.topic, bytes(one.event)))
            except RefusedError as error:
                self.refused += 1
                self._reason = str(error)

    def _advance(self) -> Head | None:
        head = self._part.advance()
        if head is None and self._turn():
            head = self._part.advance()
        if head is None or head.recording != self.recording:
            return None
        self.missing += max(0, head.number - self._number)
        self._number = head.number + 1
        self.last = max(self.last, head.last)
        self.ended = bool(head.flags & END)
        return head

    def _turn(self) -> bool:
        """Go on to the next part, if there is one: after the older one, or when the newest was moved aside."""
        if self._part is self._newest:
            try:
                if self.path.stat().st_ino == self._newest.inode:
                    return False
                self._newest = _open(self.path)
            except (OSError, RefusedError):
                return False
        self._damaged += self._part.damaged + self._part.size - self._part.end
        self._part.close()
        self._part = self._newest
        return True

    def _find_older(self) -> None:
        """Begin with the older part, if it is one of the same recording."""
        mine = self._newest.peek()
        try:
            older = _open(older_part(self.path))
        except (OSError, RefusedError):
            return
        head = older.peek()
        if mine is not None and head is not None and head.recording == mine.recording:
            self._part = older
        else:
            older.close()

    def _first_head(self) -> Head:
        head = self._part.peek()
        if head is None:
            torn = self._part.begins_as_one()
            self.close()
            reason = "holds no complete block yet" if torn else "is not a recording; `bsmon record FILE` makes one"
            raise RefusedError(f"{self.path} {reason}")
        blocks.check_schema(head)
        return head


class Survey(NamedTuple):
    """What the headers alone tell: the moments of a recording, and its key blocks as moment and number, in order."""

    first: float
    last: float
    keys: list[tuple[float, int]]

    def key_before(self, moment: float) -> int:
        """The number of the block from which on one must read to know all that was known then."""
        place = bisect_right(self.keys, moment, key=lambda key: key[0])
        return self.keys[place - 1][1] if place else 0


def survey(path: Path) -> Survey:
    recording = Recording(path)
    keys: list[tuple[float, int]] = []
    for head in recording.heads():
        if head.flags & KEY and len(keys) < MOST_KEYS and (not keys or head.first >= keys[-1][0]):
            keys.append((head.first, head.number))
    recording.close()
    return Survey(recording.first, recording.last, keys)


def _open(path: Path) -> Part:
    if not stat.S_ISREG(path.stat().st_mode):
        raise RefusedError(f"{path} is not a file; a recording is one that `bsmon record FILE` wrote")
    return Part(path)
