"""Finding training processes: the runtime directories, and the ``<pid>.json`` that each agent keeps there."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bsmon.model import AgentState, Count, Hello, Moment, Name, Record, Session, Small, Text
from bsmon.sources.decode import MALFORMED, RefusedError, check_schema, clean, clean_text
from bsmon_agent import wire

MAX_ENTRIES = 4096  # in all directories together
_NAME = re.compile(r"[0-9]{1,10}\.json")
_SOCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Last(Struct, frozen=True):
    """What a process knew when it last wrote its entry: enough to show a run that ended before anybody looked."""

    hello: Hello | None = None
    record: Record | None = None


class Entry(Struct, frozen=True):
    """One ``<pid>.json``: the process that wrote it, where it listens, and how it ended."""

    schema: int
    session: Session
    pid: Small
    host: Name
    live: Text
    history: Text
    pid_start: Count | None = None
    name: Name = ""
    job: Name = ""
    rank: Small = 0
    world_size: Annotated[int, Meta(ge=1, le=2**24)] = 1
    started: Moment = 0.0
    state: AgentState = "starting"
    exit_code: int | None = None
    ended: Moment | None = None
    last: Last | None = None


class Found(Struct, frozen=True):
    """An entry, and when its file was last written."""

    entry: Entry
    written: float


class _Head(Struct):
    schema: int = 0


_Stamp = tuple[int, int, int]  # inode, time of the last write, size

_HEAD = msgspec.json.Decoder(_Head)
_ENTRY = msgspec.json.Decoder(Entry)


class Scan(Struct):
    """One look at every runtime directory."""

    found: list[Found] = []
    looked_at: list[str] = []
    refused: dict[str, str] = {}  # path of an entry -> why it was passed over


class Scanner:
    """Reads every entry in the directories that are ours alone; what did not change is not read again."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._limit = limit
        self._known: dict[Path, tuple[_Stamp, Found]] = {}

    def scan(self, directories: list[Path]) -> Scan:
        result = Scan()
        known, self._known = self._known, {}
        for directory in directories:
            reason = wire.private(directory)
            if reason is not None:
                result.looked_at.append(clean_text(f"{directory}: {reason}"))
                continue
            before = len(result.found)
            self._scan_one(directory, known, result)
            count = len(result.found) - before
            result.looked_at.append(clean_text(f"{directory}: {count or 'no'} process{'es' * (count != 1)}"))
        return result

    def _scan_one(self, directory: Path, known: dict[Path, tuple[_Stamp, Found]], result: Scan) -> None:
        try:
            with os.scandir(directory) as listing:
                names = sorted(item.name for item in listing if _NAME.fullmatch(item.name))
        except OSError as error:
            result.refused[clean_text(str(directory))] = error.strerror or "it cannot be read"
            return
        for name in names:
            if len(result.found) >= self._limit:
                reason = f"only the first {self._limit} entries are read; remove stale ones"
                result.refused[clean_text(str(directory))] = reason
                return
            try:
                result.found.append(self._look(directory / name, known))
            except FileNotFoundError:
                continue  # it ended between the listing and the look
            except (RefusedError, OSError) as error:
                result.refused[clean_text(str(directory / name))] = clean_text(str(error))

    def _look(self, path: Path, known: dict[Path, tuple[_Stamp, Found]]) -> Found:
        status = path.lstat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        before = known.get(path)
        found = before[1] if before is not None and before[0] == stamp else read(path)
        self._known[path] = (stamp, found)
        return found


def read(path: Path) -> Found:
    """Read one entry. Raises ``RefusedError`` with cause and cure if it is not what an agent writes."""
    content, written = _read_bounded(path)
    try:
        check_schema(_HEAD.decode(content).schema)
        entry = _ENTRY.decode(content)
    except RefusedError:
        raise
    except MALFORMED as error:
        raise RefusedError(f"not an agent's entry ({str(error)[:200]}); remove it") from None
    for endpoint in (entry.live, entry.history):
        if not _inside(endpoint, path.parent):
            raise RefusedError(f"it points out of its own directory ({endpoint[:100]!r}): forged; remove it")
    shown = msgspec.structs.replace(clean(entry), live=entry.live, history=entry.history)
    return Found(shown, written)


def _read_bounded(path: Path) -> tuple[bytes, float]:
    """A regular file of our own, no link, at most one payload long; and when it was written."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise RefusedError("it is not a file of our own; remove it")
        content = file.read(wire.MAX_PAYLOAD + 1)
    if len(content) > wire.MAX_PAYLOAD:
        raise RefusedError(f"it is longer than {wire.MAX_PAYLOAD} bytes; remove it")
    return content, found.st_mtime


def _inside(endpoint: str, directory: Path) -> bool:
    """Whether an endpoint is a socket in this very directory, and not a network address or a path elsewhere."""
    if not endpoint.startswith("ipc:///"):
        return False
    place, _, name = endpoint[len("ipc://") :].rpartition("/")
    return place in (str(directory), os.path.realpath(directory)) and _SOCKET.fullmatch(name) is not None
