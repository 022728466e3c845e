"""The alert log: JSON lines that survive a restart, so that the morning after can be read.

One line a change of state: {"time", "state", "id", "job", "name", "rule", "severity", "where", "value", "limit",
"since", "message"}. Bounded: a full file becomes ``alerts.1.jsonl``, and the one before that is gone. What can't be
written or read is said in ``problem`` and never raised.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from bsmon.config import state_directory
from bsmon.model import Alert, Severity

MAX_BYTES = 2 << 20
SAME_ALERT = 5.0  # seconds by which two monitors may differ about when an alert began
NAME, OLDER = "alerts.jsonl", "alerts.1.jsonl"


class Entry(Struct, frozen=True):
    """One line of the log."""

    time: float
    state: Literal["raised", "acknowledged", "cleared"]
    id: str
    job: str
    rule: str
    severity: Severity
    since: float
    name: str = ""
    where: str = ""
    value: float | None = None
    limit: float | None = None
    message: str = ""


Key = tuple[str, str, str]  # job, rule, place


class AlertLog:
    """``note`` every list of alerts; only changes are written, also when several monitors share the file."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or state_directory()
        self._last: dict[Key, Entry] = {}
        self._read_to = (0, 0)  # inode and bytes of the file that ``_last`` knows
        self.problem: str | None = None

    @property
    def path(self) -> Path:
        return self._directory / NAME

    def note(self, now: float, alerts: Sequence[Alert], names: Mapping[str, str] | None = None) -> None:
        """Write what has changed. ``names`` gives a job's name by its id, for the reader."""
        if not alerts:
            return
        try:
            self._catch_up()
            oldest_first = sorted(alerts, key=lambda alert: alert.since)
            lines = [self._line(now, alert, names or {}) for alert in oldest_first if self._is_news(alert)]
            if lines:
                self._append(b"".join(lines))
            self.problem = None
        except OSError as error:
            self.problem = f"the alert log can't be kept in {self._directory}: {error.strerror or error}"

    def entries(self, since: float = 0.0) -> list[Entry]:
        """What was logged from ``since`` on, oldest first; lines that can't be read are left out."""
        return [
            entry for name in (OLDER, NAME) for entry in _parse(_bytes(self._directory / name)) if entry.time >= since
        ]

    def _is_news(self, alert: Alert) -> bool:
        """Not what the file has already, nor an older state of what it knows (a replayed history)."""
        known = self._last.get((alert.job, alert.rule, alert.where))
        if known is None:
            return alert.state != "cleared"
        if known.state == "cleared":
            return alert.state != "cleared" and alert.since > known.time
        if alert.since < known.since - SAME_ALERT:
            return False
        return alert.state != known.state and not (known.state == "acknowledged" and alert.state == "raised")

    def _line(self, now: float, alert: Alert, names: Mapping[str, str]) -> bytes:
        told = {field: getattr(alert, field) for field in alert.__struct_fields__}
        entry = Entry(time=now, name=names.get(alert.job, ""), **told)
        self._last[alert.job, alert.rule, alert.where] = entry
        return msgspec.json.encode(entry) + b"\n"

    def _catch_up(self) -> None:
        """Learn what is in the file, whoever wrote it."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return
        inode, known = self._read_to
        start = known if inode == found.st_ino and known <= found.st_size else 0
        if start == found.st_size:
            return
        for entry in _parse(_bytes(self.path, start)):
            self._last[entry.job, entry.rule, entry.where] = entry
        self._read_to = (found.st_ino, found.st_size)

    def _append(self, lines: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.exists() and self.path.stat().st_size + len(lines) > MAX_BYTES:
            self.path.replace(self._directory / OLDER)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, lines)
            found = os.fstat(descriptor)
            self._read_to = (found.st_ino, found.st_size)
        finally:
            os.close(descriptor)


def _bytes(path: Path, start: int = 0) -> bytes:
    """A file from an offset on, at most what a full log holds; empty if there is none or it can't be read."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(2 * MAX_BYTES)
    except OSError:
        return b""


def _parse(text: bytes) -> Iterator[Entry]:
    for line in text.splitlines():
        try:
            yield msgspec.json.decode(line, type=Entry)
        except msgspec.DecodeError:
            continue
