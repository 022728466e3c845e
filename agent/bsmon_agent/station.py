"""One place where a training process can be found: its two sockets and its entry, in one runtime directory."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import msgpack
import zmq

from bsmon_agent import rundir, wire
from bsmon_agent.sockets import Desk, Feed

FROM_HELLO = ("schema", "session", "name", "job", "rank", "world_size", "started", "agent", "python")


class Station:
    """Sockets, opened at once, and an entry. Raises OSError or ZMQError if this directory cannot hold them."""

    def __init__(self, context: zmq.Context[Any], directory: Path) -> None:
        rundir.clear(directory)
        stem = directory / str(os.getpid())
        self.entry = stem.with_suffix(".json")
        self.feed = Feed(context, stem.with_suffix(".live"))
        try:
            self.desk = Desk(context, stem.with_suffix(".history"))
        except Exception:
            self.feed.close()
            raise

    def write(self, hello: bytes, state: str, record: bytes | None = None, code: int | None = None) -> None:
        """(Re)write the entry. ``hello`` and ``record``, the newest one, are packed. Raises OSError."""
        known = _unpack(hello)
        entry = {name: known[name] for name in FROM_HELLO if name in known} | {
            "pid": os.getpid(),
            "pid_start": wire.process_start(os.getpid()),
            "host": socket.gethostname(),
            "live": f"ipc://{self.feed.path}",
            "history": f"ipc://{self.desk.path}",
            "state": state,
            "exit_code": code,
            "ended": time.time() if state == "finished" else None,
            "last": {"hello": known, "record": _unpack(record)} if record else None,
        }
        rundir.write_entry(self.entry, entry)

    def intact(self) -> bool:
        """Whether a viewer that comes now finds all of it."""
        return self.feed.intact() and self.desk.intact() and self.entry.exists()

    def close(self, linger: int = 0) -> None:
        """Close the sockets, remove their files, leave the entry. ``linger``: milliseconds for what is on its way."""
        self.feed.close(linger)
        self.desk.close()


def _unpack(packed: bytes) -> dict[str, Any]:
    values: dict[str, Any] = msgpack.unpackb(packed, strict_map_key=False)
    return values
