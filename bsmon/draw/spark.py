"""One series in one row."""

from __future__ import annotations

import math
from statistics import median

from bsmon.draw.chart import Values, columns_of
from bsmon.draw.look import Glyphs


def spark(values: Values, width: int, glyphs: Glyphs, top: float | None = None) -> str:
    """Columns from zero to ``top``; a gap is a blank. Without a top a steady series stands at two thirds."""
    columns = columns_of(values, width)
    known = [value for value in columns if value is not None and math.isfinite(value)]
    full = top or max([*known, 1.5 * median(known)], default=0.0) if known else 0.0
    return "".join(_level(value, full, glyphs.spark) for value in columns)


def _level(value: float | None, full: float, levels: str) -> str:
    if value is None or not math.isfinite(value):
        return " "
    if full <= 0:
        return levels[0]
    return levels[min(len(levels) - 1, max(0, round(value / full * len(levels)) - 1))]
