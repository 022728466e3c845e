"""Load of experts as a strip of colour: each expert's share over the uniform share, on a log scale that diverges."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bsmon.draw.cells import Row
from bsmon.draw.look import Look
from bsmon.draw.palette import HEAT_LEVELS

RAMP = " .:-=+*#%@"
_MIDDLE = HEAT_LEVELS // 2
_HYSTERESIS = 0.3  # of a level: what keeps a cell from flickering between two colours


def position(ratio: float) -> float:
    """Place of share / uniform on the scale: half a doubling a level, 0 in the middle. No load: far below."""
    return 2 * math.log2(ratio) if ratio > 0 else -math.inf


def quantise(ratio: float, previous: int | None = None) -> int:
    """The level, ``0..8``. A cell leaves the level it had only when it is clearly past the border."""
    place = min(float(_MIDDLE), max(float(-_MIDDLE), position(ratio))) + _MIDDLE
    if previous is not None and abs(place - previous) < 0.5 + _HYSTERESIS:
        return previous
    return min(HEAT_LEVELS - 1, max(0, math.floor(place + 0.5)))


def ratios(counts: Sequence[int]) -> list[float]:
    """Each expert's share over the uniform share: 1 is balanced."""
    total = sum(counts)
    return [count * len(counts) / total if total else 0.0 for count in counts]


def strip(levels: Sequence[int], width: int, look: Look, widest: int = 3) -> Row:
    """The levels side by side, as wide a cell each as fits; where they do not fit, neighbours share a cell.

    A shared cell shows the level farthest from uniform, so that a hot or dead expert is not averaged away.
    """
    if not levels or width < 1:
        return []
    cell = max(1, min(widest, width // len(levels)))
    shown = list(levels) if len(levels) <= width else _farthest(levels, width)
    if not look.colours:
        return [("".join(_ramp(level) * cell for level in shown), "")]
    return [(" " * cell, f"heat{level}") for level in shown]


def _farthest(levels: Sequence[int], width: int) -> list[int]:
    count = len(levels)
    groups = (levels[cell * count // width : (cell + 1) * count // width] for cell in range(width))
    return [max(group, key=lambda level: abs(level - _MIDDLE)) for group in groups]


def _ramp(level: int) -> str:
    return RAMP[round(level * (len(RAMP) - 1) / (HEAT_LEVELS - 1))]


def legend(look: Look) -> Row:
    """The scale, always shown beside a strip."""
    swatch: Row = strip(range(HEAT_LEVELS), HEAT_LEVELS, look, widest=1)
    return [("1/4 ", "dim"), *swatch, (" 4x uniform", "dim")]
