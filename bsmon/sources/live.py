"""The training processes of this host, as their agents tell it: found by directory, heard over Unix sockets."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time

import zmq

from bsmon.config import ENDED_KEPT
from bsmon.model import Gone, Hello, Steps
from bsmon.sources.base import Ingest
from bsmon.sources.discovery import Entry, Found, Last, Scan, Scanner
from bsmon.sources.link import Link
from bsmon_agent import wire

SCAN_INTERVAL = 0.5  # seconds between two looks at the directories
GATHER = 0.02  # seconds to let messages of many processes come together
STOP_WITHIN = 0.1  # seconds


class LiveSource:
    """One thread that finds agents, listens to them, and says when a process has ended."""

    name = "live"

    def __init__(self) -> None:
        self.settled = False
        self._scanner = Scanner()
        self._seen = Scan()
        self._links: dict[str, Link] = {}  # by session
        self._over: set[str] = set()  # sessions whose end was told
        self._failure: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._host = socket.gethostname()

    @property
    def looked_at(self) -> list[str]:
        return list(self._seen.looked_at)

    @property
    def problem(self) -> str | None:
        """Entries and messages that were refused, and why."""
        found = [self._failure] if self._failure else []
        found += [f"{path}: {reason}" for path, reason in self._seen.refused.items()]
        for link in list(self._links.values()):
            if link.refused:
                found.append(f"{link.refused} messages of pid {link.entry.pid} refused: {link.problem}")
        if len(found) > 3:
            found[3:] = [f"and {len(found) - 3} more"]
        return "; ".join(found) or None

    def start(self, ingest: Ingest) -> None:
        if self._thread is None:
            _allow_many_files()
            self._ingest = ingest
            self._thread = threading.Thread(target=self._run, name="bsmon-live", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, min(10000, self._context.get(zmq.SOCKET_LIMIT)))
        try:
            next_scan = 0.0
            while not self._stop.wait(GATHER):
                now = time.monotonic()
                if now >= next_scan:
                    self._scan(now)
                    next_scan = now + SCAN_INTERVAL
                self._listen()
        except Exception as error:  # the thread's last word: the screen lives on and says it
            self._failure = f"stopped listening ({type(error).__name__}: {error}); restart bsmon"
        finally:
            self.settled = True
            for link in list(self._links.values()):
                link.close()
            self._context.destroy(linger=0)

    def _listen(self) -> None:
        """Wait for a message or a moment, and take what has come."""
        sockets = [(channel, zmq.POLLIN) for link in self._links.values() for channel in link.sockets]
        ready = {channel for channel, _ in zmq.zmq_poll(sockets, int(STOP_WITHIN * 1000))}
        now = time.monotonic()
        for link in self._links.values():
            if not ready.isdisjoint(link.sockets):
                link.receive(now)
            link.tend(now)
        self.settled = bool(self._seen.looked_at) and all(link.settled for link in self._links.values())

    def _scan(self, now: float) -> None:
        self._seen = self._scanner.scan(wire.runtime_directories())
        present = {found.entry.session: found for found in self._seen.found}
        self._over &= present.keys()
        for found in present.values():
            self._meet(found, now)
        for session, link in list(self._links.items()):
            if session not in present and not self._alive(link.entry):
                self._end(Found(link.entry, time.time()))

    def _meet(self, found: Found, now: float) -> None:
        """Connect to a process that is new, and tell the end of one that is over."""
        entry = found.entry
        if entry.session in self._over:
            return
        if entry.state == "finished" or not self._alive(entry):
            self._end(found)
        elif entry.session not in self._links:
            self._links[entry.session] = Link(self._context, entry, self._ingest, now)

    def _alive(self, entry: Entry) -> bool:
        """Whether that very process still runs. One of another host, or a container, can only be heard or not."""
        if entry.host != self._host:
            return True
        if entry.pid_start is not None:
            return wire.process_start(entry.pid) == entry.pid_start
        try:
            os.kill(entry.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def _end(self, found: Found) -> None:
        """Take the process's last words, from its socket or its entry, and say that it is over."""
        entry = found.entry
        self._over.add(entry.session)
        link = self._links.pop(entry.session, None)
        ended = entry.ended or (time.time() if link else found.written)
        if link is not None:
            link.receive(time.monotonic())
            link.close()
        elif time.time() - ended > ENDED_KEPT:
            return
        last = entry.last or Last()
        self._ingest(last.hello or _hello(entry))
        if last.record is not None:
            self._ingest(Steps(schema=wire.SCHEMA, session=entry.session, records=[last.record]))
        finished = entry.state == "finished"
        self._ingest(Gone(session=entry.session, time=ended, finished=finished, exit_code=entry.exit_code))


def _hello(entry: Entry) -> Hello:
    """What an entry alone tells of its process."""
    return Hello(
        schema=entry.schema,
        session=entry.session,
        pid=entry.pid,
        pid_start=entry.pid_start,
        host=entry.host,
        name=entry.name,
        job=entry.job,
        rank=entry.rank,
        world_size=entry.world_size,
        started=entry.started,
        time=entry.started,
    )


def _allow_many_files() -> None:
    """Raise this process's limit of open files: each training process takes four."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, 65536), hard))
        except (OSError, ValueError):
            pass  # as many as are allowed, then
