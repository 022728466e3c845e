"""Training processes for the tests of the app: typed events, and an agent's sockets without a training behind them."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
import zmq

from bsmon.model import Beat, Gone, Hello, Record, Steps
from bsmon_agent import wire

SESSION = "0123456789abcdef"
START = 1_764_500_000.0  # of made-up runs, Unix seconds


def hello(session: str = SESSION, **fields: Any) -> Hello:
    known = {"schema": 1, "session": session, "pid": 100, "host": "node1", "name": "run", "job": "job1"}
    return Hello(**{**known, "started": START, "time": START, **fields})


def record(seq: int, time: float | None = None, **fields: Any) -> Record:
    """Step ``seq`` of a run with one step each half second, 64 tokens of 4 samples in each."""
    known = {"step": seq, "time": START + seq / 2 if time is None else time, "duration": 0.5, "tokens": 64}
    return Record(seq=seq, **{**known, "samples": 4, "micro": 2, "accumulation": 2, "sequence_length": 16, **fields})


def steps(*records: Record, session: str = SESSION) -> Steps:
    return Steps(schema=1, session=session, records=list(records))


def run_of(count: int, first: int = 1, session: str = SESSION, **fields: Any) -> Steps:
    return steps(*(record(seq, **fields) for seq in range(first, first + count)), session=session)


def beat(time: float, session: str = SESSION, **fields: Any) -> Beat:
    return Beat(schema=1, session=session, time=time, **fields)


def gone(time: float, session: str = SESSION, finished: bool = False, exit_code: int | None = None) -> Gone:
    return Gone(session=session, time=time, finished=finished, exit_code=exit_code)


class FakeAgent:
    """An agent's entry and sockets, driven by the test; history is answered from ``history`` by a thread.

    ``deaf``: requests for history are not answered. ``alone``: no thread, the test calls ``serve``. ``stem``: of the
    files' names, where one process plays several.
    """

    def __init__(
        self,
        directory: Path,
        pid: int | None = None,
        *,
        deaf: bool = False,
        alone: bool = False,
        stem: int | None = None,
        context: zmq.Context[Any] | None = None,
        **fields: Any,
    ) -> None:
        self.pid = pid or os.getpid()
        self.session = uuid.uuid4().hex
        self.hello = {
            "schema": wire.SCHEMA,
            "session": self.session,
            "pid": self.pid,
            "pid_start": wire.process_start(self.pid),
            "host": socket.gethostname(),
            "name": "run",
            "job": f"job-{self.session[:6]}",
            "started": time.time(),
            "time": time.time(),
            **fields,
        }
        self.path = directory / f"{stem or self.pid}.json"
        self.history: list[dict[str, Any]] = []
        self.requests: list[int] = []
        self._subscriptions = 0
        self.deaf = deaf
        self._own = zmq.Context() if context is None else None
        self._context = context or self._own
        self._live = self._context.socket(zmq.XPUB)
        self._desk = self._context.socket(zmq.ROUTER)
        self._endpoints = {name: f"ipc://{directory}/{stem or self.pid}.{name}" for name in ("live", "history")}
        for one, name in ((self._live, "live"), (self._desk, "history")):
            one.linger = 0
            one.bind(self._endpoints[name])
        self._over = threading.Event()
        self._clerk = None if alone else threading.Thread(target=self._answer, daemon=True)
        if self._clerk is not None:
            self._clerk.start()
        self.announce()

    def announce(self, **changes: Any) -> None:
        """Write the entry, as an agent does: aside first, then in place."""
        keys = ("schema", "session", "pid", "pid_start", "host", "name", "job", "started")
        entry = {key: self.hello[key] for key in keys} | self._endpoints
        entry |= {"state": "live", "exit_code": None, "ended": None, "last": None, **changes}
        aside = self.path.with_suffix(".tmp")
        aside.write_text(json.dumps(entry))
        aside.replace(self.path)

    def viewed(self) -> bool:
        """Whether somebody has subscribed to everything: what is sent from now on reaches them."""
        while self._live.poll(0):
            self._subscriptions += 1 if self._live.recv()[:1] == b"\x01" else -1
        return self._subscriptions >= len(wire.TOPICS)

    def send(self, topic: bytes, payload: dict[str, Any] | bytes) -> None:
        packed = payload if isinstance(payload, bytes) else msgspec.msgpack.encode(payload)
        self._live.send_multipart([topic, packed])

    def step(self, seq: int, tell: bool = True, keep: bool = True, **fields: Any) -> None:
        """One optimizer step; ``tell`` broadcasts it, ``keep`` puts it into the history."""
        made = {"seq": seq, "step": seq, "time": time.time(), "duration": 0.1, "tokens": 64, **fields}
        if keep:
            self.history.append(made)
        if tell:
            self.send(wire.STEPS, {"schema": wire.SCHEMA, "session": self.session, "records": [made]})

    def beat(self, **fields: Any) -> None:
        self.send(wire.BEAT, self._beat(**fields))

    def close(self) -> None:
        """Hang up, as a killed process does: the entry stays."""
        self._over.set()
        if self._clerk is not None:
            self._clerk.join()
        self._live.close()
        self._desk.close()
        if self._own is not None:
            self._own.term()

    def _beat(self, **fields: Any) -> dict[str, Any]:
        newest = self.history[-1]["seq"] if self.history else 0
        return {"schema": wire.SCHEMA, "session": self.session, "time": time.time(), "seq": newest, **fields}

    def serve(self, patience: int = 0) -> None:
        """Answer one request, if there is one within ``patience`` milliseconds."""
        if not self._desk.poll(patience):
            return
        peer, topic, request = self._desk.recv_multipart()
        assert topic == wire.HISTORY
        after = msgspec.msgpack.decode(request)["after"]
        self.requests.append(after)
        if not self.deaf:
            for message in self._messages(after):
                self._desk.send_multipart([peer, *message])

    def _answer(self) -> None:
        while not self._over.is_set():
            self.serve(20)

    def _messages(self, after: int) -> list[tuple[bytes, bytes]]:
        records = [made for made in self.history if made["seq"] > after]
        common = {"schema": wire.SCHEMA, "session": self.session}
        newest = self.history[-1]["seq"] if self.history else 0
        payloads = [(wire.HELLO, self.hello), (wire.BEAT, self._beat())]
        if records:
            payloads.append((wire.STEPS, common | {"records": records}))
        payloads.append((wire.END, common | {"seq": newest}))
        return [(topic, msgspec.msgpack.encode(payload)) for topic, payload in payloads]
