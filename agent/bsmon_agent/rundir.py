"""The runtime directory: where a training process leaves its sockets and its ``<pid>.json``, and who may be there.

::

    <pid>.live      XPUB socket         <pid>.json      who this is, where its sockets are, how it ended
    <pid>.history   ROUTER socket

An entry outlives its process, so that a late viewer sees how the run ended; a later agent clears it away after a day.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bsmon_agent import wire

KEEP_SECONDS = 86400.0  # how long the entry of a dead process stays
KEEP_ENTRIES = 32  # and how many of them
LONGEST = ".history"  # the longest ending of a socket's name
BACKLOG = 64


def candidates(notes: list[str]) -> Iterator[Path]:
    """Directories of our own in which a socket fits, made where they are missing; why others do not serve is noted."""
    for directory in (path.absolute() for path in wire.runtime_directories()):
        reason = _prepare(directory)
        if reason is None:
            yield directory
        elif directory.parent.is_dir() or str(directory) in _named():
            notes.append(f"{directory} passed over: {reason}")


def _named() -> set[str]:
    """What the environment names: said where missing. Where nobody logs in, /run/user/UID is missing anyway."""
    chosen, login = _chosen(), os.environ.get("XDG_RUNTIME_DIR")
    return {path for path in (chosen, login and str(Path(login, "bsmon").absolute())) if path}


def _prepare(directory: Path) -> str | None:
    """Make it if need be. None if it can be used, else why it cannot."""
    needed = len(os.fsencode(directory / f"{os.getpid()}{LONGEST}"))
    if needed > wire.MAX_PATH:
        return f"a socket's path would have {needed} bytes, {wire.MAX_PATH} fit; set BSMON_DIR to a shorter one"
    try:
        directory.mkdir(mode=0o700, parents=str(directory) == _chosen())
    except FileExistsError:
        pass
    except OSError as error:
        return f"it cannot be made ({error.strerror})"
    reason = wire.private(directory)
    if reason is None and not os.access(directory, os.W_OK | os.X_OK):
        return "it cannot be written to"
    return reason


def _chosen() -> str | None:
    """The user's own choice; only its parents are made too: a runtime directory of the system is the system's."""
    chosen = os.environ.get("BSMON_DIR")
    return str(Path(chosen).absolute()) if chosen else None


def listen(path: Path) -> socket.socket:
    """A listening Unix socket at this path, whatever lay there before. Its file is ours to remove, not ZeroMQ's."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def write_entry(path: Path, entry: dict[str, Any]) -> None:
    """Put an entry in its place at one stroke, readable by its owner only. Raises OSError.

    One that a reader would refuse for its size goes without what the process said last.
    """
    temporary = path.with_suffix(".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    content = json.dumps(finite(entry))
    if len(content) > wire.MAX_PAYLOAD:
        content = json.dumps(finite({**entry, "last": None}))
    try:
        temporary.unlink(missing_ok=True)  # a pipe put there would make us wait for its reader
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def finite(value: Any) -> Any:
    """For JSON, which has no NaN: such a value is None, in a map it is left out, a list that has one is None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        kept = {key: finite(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None or value[key] is None}
    if isinstance(value, (list, tuple)):
        items = [finite(item) for item in value]
        return None if any(item is None for item in items) else items
    return value


def clear(directory: Path) -> None:
    """Remove what dead processes of this host left: their sockets now, their entries when they are old or many."""
    dead: list[tuple[float, Path]] = []
    for path in directory.iterdir():
        if path.stem.isdecimal() and path.suffix in (".json", ".live", ".history", ".tmp") and _is_dead(path):
            if path.suffix == ".json":
                dead.append((_age(path), path))
            else:
                _remove(path)
    for place, (age, path) in enumerate(sorted(dead)):
        if age > KEEP_SECONDS or place >= KEEP_ENTRIES:
            _remove(path)


def _remove(path: Path) -> None:
    """What cannot be removed, say a directory of that name, stays."""
    with contextlib.suppress(OSError):
        path.unlink()


def _is_dead(path: Path) -> bool:
    """Whether the process that this file is named after has ended. Of another host's that cannot be told: no."""
    started = wire.process_start(int(path.stem))
    try:
        entry = json.loads(_content(path.with_suffix(".json")))
        return bool(entry["host"] == socket.gethostname() and entry["pid_start"] != started)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return started is None


def _content(path: Path) -> bytes:
    """Of a regular file, no link, as large as an entry may be; what else bears its name may block or never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a file")
        return file.read(wire.MAX_PAYLOAD)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
