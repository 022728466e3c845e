"""The line to one training process: its broadcast, its history, and the order between the two.

Subscribe first, then ask for the history; what is broadcast meanwhile waits until the history's end, so that records
are handed on once each and in order. A gap in the sequence numbers, or a heartbeat that is ahead of what arrived,
makes the line ask again for what is missing; what cannot be had again is left to the store to count.
"""

from __future__ import annotations

from collections import deque

import msgspec
import zmq

from bsmon.model import Beat, End, Hello, Steps
from bsmon.sources.base import Ingest
from bsmon.sources.decode import Message, RefusedError, decode
from bsmon.sources.discovery import Entry
from bsmon_agent import wire

HISTORY_TIMEOUT = 2.0  # seconds to wait for the end of an answer
ASK_AGAIN = 1.0  # seconds between two requests, at least
IN_VAIN = 5.0  # seconds until the next request after one that could not fill the gap
SILENCE = 5.0  # seconds without a heartbeat (they come every second) until the sockets are made anew
HELD = 512  # broadcast messages that may wait for the history
AT_ONCE = 256  # messages taken from one socket before others get their turn


class Link:
    """Two sockets to one agent. All methods belong to one thread; ``now`` is a monotonic clock's."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], entry: Entry, ingest: Ingest, now: float) -> None:
        self.entry = entry
        self.refused = 0  # messages that were none
        self.problem: str | None = None
        self._context = context
        self._ingest = ingest
        self._newest = 0  # sequence number handed on last
        self._greeted = False
        self._held: deque[Message] = deque(maxlen=HELD)
        self._promised = 0  # newest record there is, by the last heartbeat
        self._asked = now
        self._waiting = False  # for the end of an answer
        self._due: float | None = None  # when the next request is to go out
        self._no_use_before = now
        self._sub: zmq.Socket[bytes] | None = None
        self._dealer: zmq.Socket[bytes] | None = None
        self._tries = 0
        self._open(now)

    @property
    def settled(self) -> bool:
        """The history has come, or is not coming."""
        return self._calm

    @property
    def _calm(self) -> bool:
        return not self._waiting and self._due is None

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [socket for socket in (self._sub, self._dealer) if socket is not None]

    def receive(self, now: float) -> None:
        """Take what has arrived, without waiting."""
        for socket in self.sockets:
            for _ in range(AT_ONCE):
                if socket.closed:
                    break
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._take(frames, socket is self._dealer, now)

    def tend(self, now: float) -> None:
        """Give up waiting for an answer that does not come; renew the sockets after a silence."""
        if self._waiting and now - self._asked > HISTORY_TIMEOUT:
            self._answered(now)
        if self._due is not None and now >= self._due:
            self._ask(now)
        if now - self._heard > SILENCE * min(2**self._tries, 8):
            # A message over the size limit makes zmq drop the connection for good: only a new socket helps.
            self._tries += 1
            self.close()
            self._open(now)

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(linger=0)
        self._sub = self._dealer = None

    def _open(self, now: float) -> None:
        self._heard = now
        self._sub = self._socket(zmq.SUB)
        for topic in wire.TOPICS:
            self._sub.subscribe(topic)
        self._sub.connect(self.entry.live)
        self._ask(now)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_PAYLOAD)
        socket.setsockopt(zmq.RCVHWM, AT_ONCE)
        socket.setsockopt(zmq.RECONNECT_IVL, 200)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        return socket

    def _ask(self, now: float) -> None:
        """Request every record after the newest that was handed on."""
        if self._dealer is None:
            self._dealer = self._socket(zmq.DEALER)
            self._dealer.connect(self.entry.history)
        self._asked, self._waiting, self._due = now, True, None
        request = [wire.HISTORY, msgspec.msgpack.encode({"after": self._newest})]
        try:
            self._dealer.send_multipart(request, zmq.NOBLOCK)
        except zmq.Again:
            pass  # nobody there yet: asked again in a while

    def _answered(self, now: float) -> None:
        """The history is complete, or given up: hand on what was held back."""
        self._waiting = False
        if self._dealer is not None:
            self._dealer.close(linger=0)
            self._dealer = None
        if not self._greeted:
            self._due = now + IN_VAIN
            return
        if self._held and self._gap(self._held[0]):
            self._no_use_before = now + IN_VAIN
        while self._held:
            self._hand_on(self._held.popleft())

    def _take(self, frames: list[bytes], answer: bool, now: float) -> None:
        try:
            message = decode(frames)
        except RefusedError as error:
            self._refuse(str(error))
            return
        if message.session != self.entry.session:
            self._refuse("another process answers on its socket")
            return
        self._heard, self._tries = now, 0
        if isinstance(message, End):
            self._answered(now)
        elif answer or isinstance(message, Hello):
            self._hand_on(message)
        elif not self._calm or not self._greeted:
            self._held.append(message)
        else:
            self._deliver(message, now)

    def _deliver(self, message: Message, now: float) -> None:
        """A broadcast message, when no answer is awaited. On a gap, ask for what is missing first."""
        if self._gap(message) and now >= self._no_use_before:
            self._held.append(message)
            self._due = max(now, self._asked + ASK_AGAIN)
        else:
            self._hand_on(message)

    def _gap(self, message: Message) -> bool:
        """Whether records are missing before this message. A heartbeat may be one interval ahead of its records."""
        if isinstance(message, Steps):
            return bool(message.records) and message.records[0].seq > self._newest + 1
        return isinstance(message, Beat) and self._newest < self._promised

    def _hand_on(self, message: Message) -> None:
        if isinstance(message, Hello):
            self._greeted = True
        if isinstance(message, Steps):
            records = [record for record in message.records if record.seq > self._newest]
            if not records:
                return
            self._newest = records[-1].seq
            message = msgspec.structs.replace(message, records=records)
        if isinstance(message, Beat):
            self._promised = message.seq
        self._ingest(message)

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        self.problem = reason
