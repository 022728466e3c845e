"""Axes with round numbers, and a scale that holds still."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


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
    """At most ``count + 1`` round values within the scale, ascending, its ends among them where they are round."""
    low, high = scale
    if not high > low:
        return [low]
    step = nice_step(high - low, count)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def row_of(value: float, scale: Scale, rows: int) -> int:
    """The row, counted from the top, that a value falls into."""
    low, high = scale
    share = (value - low) / (high - low) if high > low else 0.5
    return min(rows - 1, max(0, round((1 - share) * (rows - 1))))
