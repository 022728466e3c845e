"""What tests of the agent's transport share: a directory of their own, a publisher with little to say, a viewer."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq

from bsmon_agent import wire
from bsmon_agent.ledger import Ledger
from bsmon_agent.publisher import Publisher


def hello(**more: Any) -> dict[str, Any]:
    session = secrets.token_hex(8)
    who = {"pid": os.getpid(), "host": "here", "name": "test", "job": "test-000000", "started": time.time()}
    return {"schema": wire.SCHEMA, "session": session, **who, **more}


def publisher(ledger: Ledger, beat: Callable[[], dict[str, Any]] = dict, **more: Any) -> Publisher:
    said = hello(**more)
    return Publisher(ledger, lambda: said, beat)


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"step": number, "time": time.time(), **more}


def entry(directory: Path, pid: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / f"{pid or os.getpid()}.json").read_text())
    return found


def wait_for(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true value of a condition."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
    return value


class Viewer:
    """Subscribes first, then asks, keeps one of each record by its number, asks again where there is a hole."""

    def __init__(self, context: zmq.Context[Any], entry: dict[str, Any]) -> None:
        self.sub = context.socket(zmq.SUB)
        self.dealer = context.socket(zmq.DEALER)
        for socket in (self.sub, self.dealer):
            socket.set(zmq.LINGER, 0)
        for topic in wire.TOPICS:
            self.sub.subscribe(topic)
        self.sub.connect(entry["live"])
        self.dealer.connect(entry["history"])
        self.records: dict[int, dict[str, Any]] = {}
        self.heard: list[tuple[bytes, Any]] = []

    def ask(self, after: int = 0) -> None:
        self.dealer.send_multipart([wire.HISTORY, msgpack.packb({"after": after})])

    def listen(self, seconds: float) -> None:
        """Take everything that comes in this time."""
        until = time.monotonic() + seconds
        poller = zmq.Poller()
        poller.register(self.sub, zmq.POLLIN)
        poller.register(self.dealer, zmq.POLLIN)
        while (left := until - time.monotonic()) > 0:
            for socket, _ in poller.poll(left * 1000):
                topic, payload = socket.recv_multipart()
                message = msgpack.unpackb(payload)
                self.heard.append((topic, message))
                for record in message.get("records", ()):
                    self.records[record["seq"]] = record

    def drain(self) -> None:
        """Take everything until nothing comes for a moment."""
        before = -1
        while len(self.heard) > before:
            before = len(self.heard)
            self.listen(0.05)

    def last(self, topic: bytes) -> Any:
        return next((message for heard, message in reversed(self.heard) if heard == topic), None)

    def until(self, topic: bytes, seconds: float = 5.0) -> Any:
        """Listen until something of this topic came in."""
        before = len(self.heard)
        wait_for(lambda: self.listen(0.05) or any(heard == topic for heard, _ in self.heard[before:]), seconds)
        return self.last(topic)

    def holes(self) -> list[int]:
        numbers = sorted(self.records)
        return sorted(set(range(numbers[0], numbers[-1] + 1)) - set(numbers)) if numbers else []

    def close(self) -> None:
        self.sub.close()
        self.dealer.close()
