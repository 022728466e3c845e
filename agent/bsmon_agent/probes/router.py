"""Counts what the routers of a mixture-of-experts model do, in the steps that the governor gives it."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor, nn

from bsmon_agent import wire
from bsmon_agent.probes.base import Probe
from bsmon_agent.routers import wraps
from bsmon_agent.routers.blind import why_uncalled
from bsmon_agent.routers.counter import Counter, Mark, Start, marks
from bsmon_agent.routers.find import find
from bsmon_agent.routers.padding import padding_of
from bsmon_agent.routers.structure import Facts
from bsmon_agent.routers.tally import UnreadableError, tally

PATIENCE = 5.0  # seconds until modules are asked again for facts that may change (a capacity factor)


class Landing(dict[str, Any]):
    """One router's entry in a record. It is given tensors; once all of them have been read (see
    ``reductions.Lagged``) it turns into the fields of ``wire.MOE_FIELDS``.
    """

    def __init__(self, layer: int, counter: Counter, start: Start, whole: bool, why: str) -> None:
        delta = counter.since(start)
        super().__init__(layer=layer, ints=delta.ints, floats=delta.floats)
        self._counter, self._delta, self._whole, self._why = counter, delta, whole, why

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if all(isinstance(self.get(name), list) for name in ("ints", "floats")):
            self._settle(self.pop("ints"), self.pop("floats"))

    def _settle(self, ints: list[int], floats: list[float]) -> None:
        counter = self._counter
        try:
            counted = tally(counter.experts, ints, floats, self._delta.host, self._delta.fed)
        except UnreadableError as why:
            counter.trouble = str(why)
            return
        traced = bool(counted) and not any(self._delta.host)
        if traced and not self._whole and not counter.traced:
            counted = {}  # compiled, so it counted in steps that were not looked at; the next look knows
        counter.trouble = None if counted or traced else self._why
        counter.traced = traced if counted or traced else counter.traced
        counter.confirmed = bool(counted.get("confirmed"))
        counter.capacity = counted.pop("capacity", counter.capacity)
        self.update({name: value for name, value in counted.items() if name in wire.MOE_FIELDS and value is not None})


class RouterProbe(Probe):
    """Owns a counter for each router of the trained module."""

    name = "router"
    optional = True
    training_only = True

    def __init__(self) -> None:
        self.spent = 0
        self.padding: Tensor | None = None
        self._armed = True
        self._root: nn.Module | None = None
        self._counters: list[Counter] = []
        self._starts: list[Start] = []
        self._whole = True  # the starts were taken where the step before ended
        self._marks: list[Mark] = []
        self._wraps: list[Any] = []
        self._forwards = {True: 0, False: 0}
        self._facts: list[Facts] = []
        self._asked = 0.0

    @property
    def armed(self) -> bool:
        return self._armed

    @armed.setter
    def armed(self, value: bool) -> None:
        if value and not self._armed:
            self._whole = False
            self._starts = [
                counter.start() if counter.traced else start
                for counter, start in zip(self._counters, self._starts, strict=True)
            ]
        self._armed = value

    def model_found(self, root: Any, optimizer: Any) -> None:
        if root is self._root or not isinstance(root, nn.Module):
            return
        self.remove()
        sites = find(root)[: wire.MAX_LAYERS]
        self._root, self._wraps = root, wraps.acquire(sites)
        self._counters = [Counter(site, self) for site in sites]
        self._starts = [counter.start() for counter in self._counters]
        self._whole = True

    def remove(self) -> None:
        for counter in self._counters:
            counter.remove()
        wraps.release(self._wraps)
        self._counters, self._starts, self._wraps, self._root = [], [], [], None
        self._facts = []

    def forward_begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._counters and self._armed:
            self._forwards[bool(module.training)] += 1
            self.padding = padding_of(module, args, kwargs)

    def forward_end(self, module: Any) -> None:
        self.padding = None

    def backward_begin(self, roots: tuple[Any, ...]) -> None:
        """A compiled region inside a checkpoint counts again when it is recomputed; what a backward adds is undone."""
        if self._armed:
            self._marks = marks(self._counters)

    def backward_end(self, failed: bool) -> None:
        for mark in self._marks:
            mark.restore()
        self._marks = []

    def collect(self, record: dict[str, Any]) -> None:
        if not self._counters or not self._armed:
            return
        record["moe"] = [
            Landing(number, counter, start, self._whole, why_uncalled(self._forwards, self.training_only))
            for number, (counter, start) in enumerate(zip(self._counters, self._starts, strict=True))
            if counter.reason is None
        ]
        self._starts = [counter.start() for counter in self._counters]
        self._forwards = {True: 0, False: 0}
        self._whole = True

    def describe(self, hello: dict[str, Any]) -> None:
        counters = list(self._counters)
        if len(self._facts) != len(counters) or time.monotonic() - self._asked > PATIENCE:
            self._facts = [counter.site.facts() for counter in counters]
            self._asked = time.monotonic()
        hello["routers"] = [_info(*known) for known in zip(counters, self._facts, strict=True)]


def _info(counter: Counter, facts: Facts) -> dict[str, Any]:
    """The app's ``RouterInfo``."""
    site = counter.site
    reason = counter.reason or counter.trouble
    info = {
        "name": site.name[: wire.MAX_NAME],
        "router": site.router[: wire.MAX_NAME],
        "experts": counter.experts or facts.experts,
        "top_k": facts.top_k or (counter.seen[1] if counter.seen else None),
        "capacity_factor": facts.capacity_factor,
        "capacity": counter.capacity or facts.capacity,
        "dropless": facts.dropless,
        "classes": facts.classes,
        "tag": "unsupported" if reason else "derived" if counter.confirmed else site.tag,
        "reason": reason,
        "calls": counter.host[0],
    }
    return {name: value for name, value in info.items() if value is not None}
