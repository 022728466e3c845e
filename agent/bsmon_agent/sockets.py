"""The two sockets of a training process, and what keeps a slow or hostile peer from costing it anything.

``Feed`` sends what is new to whoever has subscribed. ``Desk`` answers requests for history. Both never wait: a peer
that does not read loses messages, and sees so by ``seq``. Used by the publisher's thread alone.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import zmq

from bsmon_agent import rundir, wire

QUEUE = 64  # messages that wait for one peer, at most
LARGEST_REQUEST = 512  # bytes of any frame a peer may send; ZeroMQ hangs up on larger ones
FOREIGN_TOPICS = 100  # subscriptions to what we do not send, before all peers are hung up on
AT_ONCE = 500  # messages of peers that are looked at in one turn; so many subscriptions are a flood

ANSWERS_PER_SECOND = 10.0  # over all peers
ANSWERS_PER_PEER = 2.0  # a second
ANSWERS_OPEN = 8  # answers under way
ANSWER_SECONDS = 10.0  # after which an answer that is not taken is given up

COMMON = {"LINGER": 0, "SNDHWM": QUEUE, "MAXMSGSIZE": LARGEST_REQUEST}

Message = tuple[bytes, bytes]  # topic, payload


class Bound:
    """A ZeroMQ socket bound to a file of ours."""

    def __init__(self, context: zmq.Context[Any], kind: int, path: Path, **options: int) -> None:
        self._open = partial(_bind, context, kind, path, **options)
        self.path = path
        self.socket = self._open()
        self._inode = path.stat().st_ino

    def intact(self) -> bool:
        """Whether its file is still the one we made: directories vanish at logout, cleaners come by."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def renew(self) -> None:
        """Hang up on all peers and let go of all that was kept for them. Those who want to come back by themselves."""
        self.socket.close(0)
        self.socket = self._open()
        self._inode = self.path.stat().st_ino

    def close(self, linger: int = 0) -> None:
        """``linger``: milliseconds that what was sent may still take to leave."""
        self.socket.close(linger)
        if self.intact():
            self.path.unlink(missing_ok=True)


def _bind(context: zmq.Context[Any], kind: int, path: Path, **options: int) -> zmq.Socket[bytes]:
    opened: zmq.Socket[bytes] = context.socket(kind)
    try:
        for name, value in {**COMMON, **options}.items():
            opened.set(getattr(zmq, name), value)
        opened.set(zmq.USE_FD, rundir.listen(path).detach())
        opened.bind(f"ipc://{path}")
    except Exception:
        opened.close()
        path.unlink(missing_ok=True)
        raise
    return opened


class Feed(Bound):
    """The live side. It subscribes peers by hand, and only to ``wire.TOPICS``.

    ZeroMQ keeps every subscription that a peer sends, wanted or not. Past ``FOREIGN_TOPICS`` of them the socket is
    opened anew; a viewer that is no part of it comes back and asks for what it missed.
    """

    def __init__(self, context: zmq.Context[Any], path: Path) -> None:
        super().__init__(context, zmq.XPUB, path, XPUB_MANUAL=1, RCVHWM=10)
        self._foreign = 0
        self.floods = 0

    def welcome(self) -> bool:
        """Take the subscriptions that came in. True if there is a new one to hello: whoever sent it waits for one."""
        fresh = False
        for _ in range(AT_ONCE):
            try:
                request = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            fresh |= self._take(request)
        else:
            self._foreign += AT_ONCE
        if self._foreign > FOREIGN_TOPICS:
            self._foreign = 0
            self.floods += 1
            self.renew()
        return fresh

    def _take(self, request: bytes) -> bool:
        topic = request[1:]
        if topic not in wire.TOPICS:
            self._foreign += 1
            return False
        joins = request[:1] == b"\x01"
        self.socket.set(zmq.SUBSCRIBE if joins else zmq.UNSUBSCRIBE, topic)
        return joins and topic == wire.HELLO

    def send(self, topic: bytes, payload: bytes) -> None:
        """Never waits; a peer whose queue is full loses it."""
        self.socket.send_multipart((topic, payload), zmq.NOBLOCK)


class Bucket:
    """A token bucket: ``rate`` a second, ``burst`` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._time = burst, time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._time) * self._rate)
        self._time = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Answer:
    """An answer under way: what is still to be sent to one peer, and until when it is tried."""

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages = messages
        self._next: Message | None = next(messages, None)
        self.until = time.monotonic() + ANSWER_SECONDS

    def proceed(self, socket: zmq.Socket[bytes], peer: bytes) -> bool:
        """Send as much as the peer takes now. True when nothing is left to do."""
        while self._next is not None:
            try:
                socket.send_multipart((peer, *self._next), zmq.NOBLOCK)
            except zmq.Again:
                return time.monotonic() > self.until
            except zmq.ZMQError:  # the peer has left
                return True
            self._next = next(self._messages, None)
        return True


class Desk(Bound):
    """The history side: takes requests within the rates above, sends each answer as fast as its peer reads."""

    def __init__(self, context: zmq.Context[Any], path: Path) -> None:
        super().__init__(context, zmq.ROUTER, path, ROUTER_MANDATORY=1, RCVHWM=QUEUE)
        self._all = Bucket(ANSWERS_PER_SECOND, 2 * ANSWERS_PER_SECOND)
        self._peers: OrderedDict[bytes, Bucket] = OrderedDict()
        self._answers: dict[bytes, Answer] = {}

    def wait(self, seconds: float) -> bool:
        """Until a request is there; False if none came in this time."""
        return bool(self.socket.poll(max(1, round(seconds * 1000))))

    def requests(self) -> Iterator[tuple[bytes, int]]:
        """Peers whose request may be answered now, and the ``seq`` after which they want to know."""
        for _ in range(AT_ONCE):
            try:
                peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            after = _after(frames)
            if after is not None and self._may(peer):
                yield peer, after

    def _may(self, peer: bytes) -> bool:
        bucket = self._peers.setdefault(peer, Bucket(ANSWERS_PER_PEER, 2 * ANSWERS_PER_PEER))
        self._peers.move_to_end(peer)
        while len(self._peers) > QUEUE:
            self._peers.popitem(last=False)
        return (peer in self._answers or len(self._answers) < ANSWERS_OPEN) and bucket.take() and self._all.take()

    def answer(self, peer: bytes, messages: Iterator[Message]) -> None:
        """Send these, now and in later turns. A newer answer takes the place of one that is under way."""
        self._answers[peer] = Answer(messages)
        self.proceed()

    def proceed(self) -> None:
        under_way = self._answers.items()
        self._answers = {peer: answer for peer, answer in under_way if not answer.proceed(self.socket, peer)}


def _after(frames: list[bytes]) -> int | None:
    """The ``seq`` that a request names; None if it is not a request of ours."""
    if len(frames) != 2 or frames[0] != wire.HISTORY:
        return None
    try:
        after = msgpack.unpackb(frames[1])["after"]
    except Exception:  # whatever foreign bytes may cause
        return None
    return after if isinstance(after, int) and after >= 0 else None
