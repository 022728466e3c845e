"""From events to records: where one step ends, which number it has, what the probes read in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from bsmon_agent.card import Card
from bsmon_agent.cycle import Closed, Cycle
from bsmon_agent.dispatch import Dispatch
from bsmon_agent.governor import Governor
from bsmon_agent.tape import BACKWARD, BACKWARD_ENDED, CLEARED, FORWARD, STEPPED, Event, Stepped, blank


class Steps:
    """Reads the tape when the loop says so, in the training thread, right after a step."""

    def __init__(
        self, card: Card, dispatch: Dispatch, governor: Governor, deliver: Callable[[dict[str, Any]], None]
    ) -> None:
        self.cycle = Cycle()
        self.silent = False  # the last records had backwards, but no call of the root
        self.heard = False  # the last records had calls of the root
        self._card = card
        self._dispatch = dispatch
        self._governor = governor
        self._deliver = deliver
        self.tape = blank()
        self._open: list[Event] = []  # of the record that is not complete
        self._called = False  # the root, since the last step
        self._unapplied = False  # was there a backward of the model that no step has made use of?
        self._closed: int | None = None  # when the last record was closed, ns
        self._cpu = time.thread_time()  # the thread's, when the tape was read last
        self._offset = 0.0  # from the clock of the events to Unix time, seconds
        self._base = 0  # steps before the first that we counted
        self._base_of: int | None = None  # the optimizer whose own count says so
        self._uncounted: set[int] = set()  # optimizers without such a count

    def read(self) -> tuple[int, float]:
        """Cut the tape into records and hand them on. Says how many there were, and their seconds where known."""
        records: list[dict[str, Any]] = []
        self.silent = self.heard = False
        self._offset = time.time() - time.perf_counter()
        while self.tape:
            closed = self._next()
            if closed is not None:
                records.append(self._record(closed))
        if not records:
            return 0, 0.0
        self._share_cpu_time(records)
        if self._dispatch.live:
            self._dispatch.tell("collect", records[-1])
        for record in records:
            self._deliver(record)
        return len(records), sum(record.get("duration", 0.0) for record in records)

    def _next(self) -> Closed | None:
        """Take events into the open record until one of them may complete it."""
        tape, keep = self.tape, self._open.append
        while tape:
            event = tape.popleft()
            keep(event)
            kind, at, payload = event
            if kind == BACKWARD:
                self.cycle.backward()
            elif kind == FORWARD:
                self._called = True
            elif kind == BACKWARD_ENDED:
                self._unapplied |= self._called and not payload
            elif kind == STEPPED:
                return self._stepped(payload)
            elif kind == CLEARED and self._unapplied and self.cycle.members == {payload[0]}:
                self._open[-1] = STEPPED, at, payload
                return self._stepped(payload)
        return None

    def _stepped(self, stepped: Stepped) -> Closed | None:
        self._unapplied = self._called = False
        return self.cycle.step(stepped[0], stepped[2])

    def _share_cpu_time(self, records: list[dict[str, Any]]) -> None:
        """The thread's CPU time is asked for at each reading only; steps that are read together share it equally."""
        now = time.thread_time()
        known = [record for record in records if "duration" in record]
        for record in known:
            record["cpu_time"] = (now - self._cpu) / len(records)
        self._cpu = now

    def _record(self, closed: Closed) -> dict[str, Any]:
        events, self._open = self._open, []
        _, at, stepped = events[-1]
        self._number_from(stepped)
        record = {"step": self._base + self.cycle.count, "time": self._offset + at / 1e9, "optimizer": stepped[0]}
        if self._closed is not None:
            record["duration"] = (at - self._closed) / 1e9
        self._closed = at
        if closed.skipped:
            record["skipped"] = True
        kinds = {event[0] for event in events}
        self.heard |= FORWARD in kinds
        self.silent |= BACKWARD in kinds and FORWARD not in kinds
        self._dispatch.read(events, record)
        return record

    def _number_from(self, stepped: Stepped) -> None:
        """Steps made before we came are in the optimizer's own count, if it has one."""
        number, _, skipped = stepped
        if self._base_of not in self.cycle.members:
            self._base_of = None
            self._uncounted.intersection_update(self.cycle.members)
        if self._base_of is None and number not in self._uncounted and not skipped:
            own = own_count(self._card.optimizer(number))
            if own is None:
                self._uncounted.add(number)
            else:
                later = sum(kind == STEPPED and payload[0] == number for kind, _, payload in self.tape)
                self._base, self._base_of = own - later - self.cycle.count, number


def own_count(optimizer: Any) -> int | None:
    """Steps by the optimizer's own count; None if it has none, or only on a device."""
    state = next(iter(optimizer.state.values()), None) if optimizer is not None else None
    count = state.get("step") if isinstance(state, dict) else None
    if isinstance(count, torch.Tensor):
        return int(count.item()) if count.device.type == "cpu" and count.numel() == 1 else None
    return int(count) if isinstance(count, (int, float)) else None
