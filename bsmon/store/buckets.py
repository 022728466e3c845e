"""Time-aligned buckets of one metric: what a chart draws from, in flat memory however long a run lasts."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

_LIMIT = 3e38  # what a 32-bit float holds
_INSTANT = 1e-6  # seconds: the weight of a value that was measured at a point in time


class Bucket(NamedTuple):
    """The least, greatest and mean value in a stretch of time."""

    low: float
    high: float
    mean: float


class Level:
    """A ring of ``size`` buckets of ``width`` seconds. A slot remembers whose turn it holds, so gaps stay gaps."""

    def __init__(self, width: float, size: int) -> None:
        self.width = width
        self.size = size
        self._first: int | None = None  # number of the first bucket ever; slots count from it and grow as needed
        self._turn = array("q")
        self._low = array("f")
        self._high = array("f")
        self._sum = array("d")
        self._weight = array("d")

    @property
    def reach(self) -> float:
        return self.width * self.size

    def add(self, number: int, value: float, weight: float) -> None:
        """A value in the bucket that begins at ``number`` x width."""
        if self._first is None:
            self._first = number
        slot = (number - self._first) % self.size
        if slot >= len(self._turn):
            self._grow(slot)
        turn = self._turn[slot]
        if turn > number or number < self._first:
            return  # older than all that is kept
        if turn < number:
            self._turn[slot] = number
            self._low[slot] = self._high[slot] = value
            self._sum[slot] = self._weight[slot] = 0.0
        elif value < self._low[slot]:
            self._low[slot] = value
        elif value > self._high[slot]:
            self._high[slot] = value
        self._sum[slot] += value * weight
        self._weight[slot] += weight

    def between(self, start: float, end: float) -> Bucket | None:
        """All buckets that begin in [start, end), or the one around its middle if that is narrower than a bucket."""
        first, last = math.ceil(start / self.width), math.ceil(end / self.width)
        if end - start < self.width:
            first = math.floor((start + end) / 2 / self.width)
            last = first + 1
        slots = [slot for number in range(first, last) if (slot := self._slot(number)) is not None]
        weight = sum(self._weight[slot] for slot in slots)
        if weight <= 0:
            return None
        low, high = min(self._low[slot] for slot in slots), max(self._high[slot] for slot in slots)
        mean = sum(self._sum[slot] for slot in slots) / weight
        return Bucket(low, high, min(max(mean, low), high))  # rounding must not put it outside

    def _slot(self, number: int) -> int | None:
        if self._first is None or number < self._first:
            return None
        slot = (number - self._first) % self.size
        return slot if slot < len(self._turn) and self._turn[slot] == number else None

    def _grow(self, slot: int) -> None:
        missing = slot + 1 - len(self._turn)
        self._turn.extend([-1] * missing)
        for column in (self._low, self._high, self._sum, self._weight):
            column.extend([0.0] * missing)


class Series:
    """One metric of one process: 1 s buckets for half an hour, 30 s buckets for a day."""

    def __init__(self) -> None:
        self.levels = (Level(1.0, 1800), Level(30.0, 2880))

    def add(self, time: float, value: float, duration: float = 0.0) -> None:
        """A value that held for ``duration`` seconds up to ``time`` counts in every bucket it covers, by its share."""
        if not math.isfinite(value):
            return
        value = max(-_LIMIT, min(_LIMIT, value))
        for level in self.levels:
            start = time - min(duration, level.reach)
            first, last = math.floor(start / level.width), math.floor(time / level.width)
            for number in range(first, last):
                edge = (number + 1) * level.width
                level.add(number, value, edge - start)
                start = edge
            level.add(last, value, max(time - start, _INSTANT))

    def query(self, start: float, end: float, buckets: int, newest: float) -> list[Bucket | None]:
        """Equal stretches from ``start`` to ``end``, from the finest level that reaches back to ``start``."""
        level = next((one for one in self.levels if start >= newest - one.reach), self.levels[-1])
        width = (end - start) / buckets
        return [level.between(start + i * width, start + (i + 1) * width) for i in range(buckets)]


def together(parts: Sequence[Sequence[Bucket | None]], factor: float | None = None) -> list[Bucket | None]:
    """Series of several processes as one: the extremes of all and the mean of means.

    With a ``factor`` the metric adds up: each is the mean over processes times the factor (how many there are).
    """
    return [_merge([bucket for bucket in column if bucket is not None], factor) for column in zip(*parts, strict=True)]


def _merge(found: list[Bucket], factor: float | None) -> Bucket | None:
    if not found:
        return None
    mean = sum(bucket.mean for bucket in found) / len(found)
    if factor is None:
        return Bucket(min(bucket.low for bucket in found), max(bucket.high for bucket in found), mean)
    low = sum(bucket.low for bucket in found) / len(found)
    high = sum(bucket.high for bucket in found) / len(found)
    return Bucket(low * factor, high * factor, mean * factor)
