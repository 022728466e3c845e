"""The interval of a ratio of means, and whether a window still has one and the same ratio.

The noise scale is phi = mean N / mean Q. Near its critical values it is Q that may be zero, so the interval is made
for psi = mean Q / mean N with Student's t and inverted; where psi reaches zero, phi has no upper end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from bsmon.estimators.noise.pairs import Pair
from bsmon.estimators.student import quantile

CONFIDENCE = 0.95
MINIMUM = 24  # pairs before anything is shown
BATCH_FROM = 64  # pairs from which batch means carry the interval, so that correlated steps don't narrow it
BATCHES = 8
DRIFT = 3.5  # standard errors between two halves of a window that count as a drift


class Ratio(NamedTuple):
    """``value`` = mean(above) / mean(below), and the half-width of its interval."""

    value: float
    half: float

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half


def batched(values: Sequence[float]) -> list[float]:
    """Values for an interval: as they are when few, else the means of 8 contiguous batches (the oldest rest left)."""
    if len(values) < BATCH_FROM:
        return list(values)
    size = len(values) // BATCHES
    start = len(values) - size * BATCHES
    return [fmean(values[at : at + size]) for at in range(start, len(values), size)]


def mean(values: Sequence[float]) -> Ratio:
    """A mean and its half-width (a ratio to one)."""
    few = batched(values)
    half = quantile(CONFIDENCE, len(few) - 1) * stdev(few) / math.sqrt(len(few))
    return Ratio(fmean(values), half)


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The ratio of two means, its half-width to first order (delta method)."""
    bottom = fmean(below)
    value = fmean(above) / bottom
    return Ratio(value, mean([(a - value * b) / bottom for a, b in zip(above, below, strict=True)]).half)


def psi(pairs: Sequence[Pair]) -> Ratio:
    """Signal over noise, 1 / phi."""
    return ratio([pair.signal for pair in pairs], [pair.noise for pair in pairs])


def steady(pairs: Sequence[Pair]) -> list[Pair]:
    """The newest part of a window in which the ratio has not drifted: halved until its halves agree."""
    kept = list(pairs)
    while len(kept) >= 2 * MINIMUM and drifted(kept[: len(kept) // 2], kept[len(kept) // 2 :]):
        kept = kept[len(kept) // 2 :]
    return kept


def drifted(older: Sequence[Pair], newer: Sequence[Pair]) -> bool:
    """Whether two stretches differ by more than their spread explains."""
    (old, old_error), (new, new_error) = _with_error(older), _with_error(newer)
    return abs(new - old) > DRIFT * math.hypot(old_error, new_error)


def _with_error(pairs: Sequence[Pair]) -> tuple[float, float]:
    """psi and its standard error, the pairs taken as independent; no error is known without noise."""
    bottom = fmean(pair.noise for pair in pairs)
    if bottom <= 0:
        return 0.0, math.inf
    value = fmean(pair.signal for pair in pairs) / bottom
    return value, stdev((pair.signal - value * pair.noise) / bottom for pair in pairs) / math.sqrt(len(pairs))
