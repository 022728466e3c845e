"""What a training process says, as wire bytes: its hello, its beats, its records, its answers.

It calls what the session gives it in the publisher's thread, and survives whatever that raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bsmon_agent import fit, packing, wire
from bsmon_agent.ledger import History, Ledger

PAYLOAD = 1 << 18  # bytes of a steps payload, of which a number may wait for each viewer
MAX_NOTES = 32
MAX_NOTE = 500  # characters

Describe = Callable[[], dict[str, Any]]


class Bulletin:
    """Packs what the ledger and the session hold. ``notes`` is what a user should know of it."""

    def __init__(self, ledger: Ledger, describe: Describe, beat: Describe) -> None:
        self.history = History()
        self.hello = b""  # the newest, packed
        self.session = ""
        self.exit_code: int | None = None
        self.finished = False
        self._ledger = ledger
        self._describe = describe
        self._beat = beat
        self._notes: dict[str, None] = {}  # an ordered set

    @property
    def state(self) -> str:
        """As in the wire's beat."""
        if self.finished:
            return "finished"
        return "live" if self.history.seq else "starting"

    @property
    def notes(self) -> list[str]:
        return list(self._notes)

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if len(self._notes) < MAX_NOTES:
            self._notes[text[:MAX_NOTE]] = None

    def describe(self) -> bytes:
        """A new hello; the former one if the session cannot give one now. Raises only if there never was one."""
        try:
            hello = self._describe()
        except Exception as error:
            if not self.hello:
                raise
            self.note(f"the description could not be renewed ({why(error)})")
            return self.hello
        self.session = hello["session"]
        self.hello, left_out = packing.fields({**hello, "time": time.time()})
        for name in left_out:
            self.note(f"{name}: left out of the description, as it cannot be sent")
        return self.hello

    def beat(self) -> bytes:
        """A beat as of now."""
        try:
            given = self._beat()
        except Exception as error:
            self.note(f"cost and memory could not be told ({why(error)})")
            given = {}
        ours = {
            "schema": wire.SCHEMA,
            "session": self.session,
            "time": time.time(),
            "seq": self.history.seq,
            "state": self.state,
            "exit_code": self.exit_code,
            "dropped_records": self._ledger.dropped,
            "notes": [*given.get("notes", ()), *self._notes][:MAX_NOTES],
        }
        return packing.fields({**given, **ours})[0]

    def fresh(self) -> Iterator[bytes]:
        """Payloads of the records that came in since the last call; they are history from then on."""
        return packing.steps(self.session, [*self._take()], PAYLOAD)

    def _take(self) -> Iterator[bytes]:
        for record in self._ledger.drain():
            unfit = fit.unfit(record)
            fitting = {name: record[name] for name in record if name not in unfit} if unfit else record
            packed, left_out = packing.fields(fitting)
            left_out += unfit
            for name in left_out:
                self.note(f"{name}: a value that cannot be sent was left out")
            if fit.ESSENTIAL.isdisjoint(left_out):
                self.history.add(record["seq"], packed)
                yield packed
            else:
                self._ledger.dropped += 1

    def answer(self, after: int) -> Iterator[tuple[bytes, bytes]]:
        """The messages that answer a request for history, as of now."""
        records = self.history.after(after)
        end = {"schema": wire.SCHEMA, "session": self.session, "seq": self.history.seq}
        frame = [(wire.HELLO, self.hello), (wire.BEAT, self.beat())]
        return self._in_turn(frame, packing.steps(self.session, records, PAYLOAD), packing.pack(end))

    @staticmethod
    def _in_turn(first: list[tuple[bytes, bytes]], steps: Iterator[bytes], end: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from first
        for payload in steps:
            yield wire.STEPS, payload
        yield wire.END, end


def why(error: BaseException) -> str:
    """An error in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
