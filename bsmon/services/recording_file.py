"""Writing a recording: one block at a time at the end of a file that is locked, private and bounded."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bsmon.sources import blocks
from bsmon.sources.blocks import Entry
from bsmon.sources.decode import RefusedError
from bsmon.sources.recorded import Part, Recording, older_part

LOCK_TRIES, LOCK_PAUSE = 5, 0.1  # a reader that asks whether it is written holds the lock for an instant


class RecordingFile:
    """FILE and its older part FILE.1, which together keep to ``max_size`` bytes and ``max_age`` seconds.

    What is there already is continued, less a torn end. Raises ``RefusedError`` where that is no recording,
    ``BlockingIOError`` where another recorder writes it, and any other ``OSError`` as the system gives it.
    """

    def __init__(self, path: Path, max_size: float, max_age: float) -> None:
        self.path = path
        self._part_size, self._part_age = max_size / 2, max_age / 2
        self._recording = secrets.randbits(64)
        self._number = 0
        self._size = self._older = 0  # bytes in each part
        self._began: float | None = None  # the first moment in this part
        self._descriptor = _open(path, 0)
        try:
            _lock(self._descriptor)
            self._continue()
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def size(self) -> int:
        """Bytes in both parts."""
        return self._size + self._older

    def full(self, now: float) -> bool:
        """Whether it is time to ``turn``."""
        return self._size >= self._part_size or (self._began is not None and now - self._began >= self._part_age)

    def turn(self) -> None:
        """The newest part becomes the older one, and what that was is gone."""
        fresh = self.path.with_name(self.path.name + ".new")
        descriptor = _open(fresh, os.O_TRUNC)
        _lock(descriptor)
        with suppress(FileNotFoundError):  # taken away by somebody
            self.path.replace(older_part(self.path))
        fresh.replace(self.path)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._size, self._older, self._began = 0, self._size, None

    def append(self, entries: Sequence[Entry], span: tuple[float, float], flags: int = 0) -> None:
        """Write one block whole, or nothing of it. Its number is used up either way, so that a reader sees the loss."""
        block = blocks.pack(self._recording, self._number, flags, span, entries)
        self._number += 1
        try:
            _write(self._descriptor, block)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(block)
        self._began = span[0] if self._began is None else self._began

    def close(self) -> None:
        os.close(self._descriptor)

    def _continue(self) -> None:
        """Go on after the last complete block of what is there."""
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedError(f"{self.path} is not a file; name one that can be kept")
        _check_older(older_part(self.path))
        if found.st_size == 0:
            return
        part = Part(self.path)
        try:
            if part.peek() is None and part.begins_as_one():
                os.ftruncate(self._descriptor, 0)  # it was torn in its first block
                return
            self._take_up(part)
        finally:
            part.close()

    def _take_up(self, part: Part) -> None:
        recording = Recording(self.path)
        self._recording = recording.recording
        self._older = recording.size - part.size
        recording.close()
        while (head := part.advance()) is not None:
            self._number = head.number + 1
            self._began = head.first if self._began is None else self._began
        self._size = part.end
        os.ftruncate(self._descriptor, self._size)


def _open(path: Path, extra: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | extra
    return os.open(path, flags, 0o600)


def _check_older(path: Path) -> None:
    """The older part's name must not be somebody else's file: it will be written over."""
    try:
        Recording(path).close()
    except FileNotFoundError:
        return


def _write(descriptor: int, data: bytes) -> None:
    """All of it, in as many pieces as the system takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _lock(descriptor: int) -> None:
    for _ in range(LOCK_TRIES - 1):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
