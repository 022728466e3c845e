"""Axes with round numbers, and a scale that holds still."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

Scale: TypeAlias = tuple[float, float]


def nice_step(span: float, count: int) -> float:
    """The smallest of 1, 2, 2.5, 5 x 10^k that cuts ``span`` into at most ``count`` parts."""
    rough = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= rough * (1 - 1e-9)), 10 * power)


def nice_scale(low: float, high: float, from_zero: bool = False, parts: int = 4) -> Scale:
    """Round bounds around the data. A flat series gets room on both sides."""
    if from_zero:
        low = min(0.0, low)
    if not high - low > 1e-12 * max(abs(low), abs(high)):
        margin = abs(high) * 0.1 or 1.0
        low, high = (low if from_zero else low - margin), high + margin
    step = nice_step(high - low, parts)
    return min(low, math.floor(low / step + 1e-9) * step), max(high, math.ceil(high / step - 1e-9) * step)


def hold(previous: Scale | None, values: Sequence[float], from_zero: bool = False, parts: int = 4) -> Scale:
    """The scale to draw with: the previous one until data leaves it or uses under half of it."""
    if not values:
        return previous or (0.0, 1.0)
    low, high = min(values), max(values)
    if from_zero:
        low = min(0.0, low)
    if previous is not None and previous[0] <= low and high <= previous[1]:
        flat = not high - low > 1e-12 * max(abs(low), abs(high))
        if flat or high - low >= 0.5 * (previous[1] - previous[0]):
            return previous
    return nice_scale(low, high, from_zero, parts)


def ticks(scale: Scale, count: int) -> list[float]:
    """At most ``count + 1`` round values within the scale, ascending; where that leaves one, the ends of the scale."""
    low, high = scale
    if not high > low:
        return [low]
    step = nice_step(high - low, count)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    marks = [index * step for index in range(first, last + 1)]
    return marks if len(marks) > 1 else [low, high]


def labels(marks: Sequence[float], percent: bool = False) -> list[str]:
    """The ticks in one unit, with as many decimals as their step needs: 0, 50k, 100k; 0.8, 0.9, 1.0; 2%, 4%."""
    values = [mark * 100 for mark in marks] if percent else list(marks)
    top = max((abs(value) for value in values), default=0.0)
    step = min((b - a for a, b in pairwise(values)), default=top) or 1.0
    if top >= 1e15 or 0 < top < 1e-3:
        return ["0" if value == 0 else f"{value:.0e}" for value in values]
    power, suffix = next(((power, suffix) for power, suffix in _UNITS if top >= power), (1.0, ""))
    decimals = next((count for count in range(4) if _whole(step / power * 10**count)), 4)
    end = "%" if percent else suffix
    return [f"{value / power:.{decimals}f}{end}" if value else "0" for value in values]


def _whole(value: float) -> bool:
    return value > 0.5 and abs(value - round(value)) < 1e-6


_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def row_of(value: float, scale: Scale, rows: int) -> int:
    """The row, counted from the top, that a value falls into."""
    low, high = scale
    share = (value - low) / (high - low) if high > low else 0.5
    return min(rows - 1, max(0, round((1 - share) * (rows - 1))))
