"""A panel with one chart: a heading with the present value, and the line below it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bsmon.draw.axis import Scale, hold
from bsmon.draw.cells import Row, clean, fit, wrap
from bsmon.draw.chart import Limit, Values, chart
from bsmon.draw.header import heading
from bsmon.draw.look import Look
from bsmon.draw.numbers import span

_ENDS_FROM = 6  # rows from which the time axis has a row of its own


def known(values: Values) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def scale_for(previous: Scale | None, values: Values, limits: Sequence[Limit], from_zero: bool) -> Scale:
    """The axis for these values; a limit is drawn in only when the data comes near it."""
    data = known(values)
    top = max(data, default=0.0)
    near = [limit.value for limit in limits if top and limit.value <= 2 * top]
    return hold(previous, [*data, *near], from_zero)


def trend(
    title: str,
    value: Row,
    values: Values,
    scale: Scale,
    seconds: float,
    width: int,
    height: int,
    look: Look,
    limits: Sequence[Limit] = (),
    percent: bool = False,
    reason: str = "",
    focused: bool = False,
    style: str = "series",
) -> list[Row]:
    """``reason`` is said in place of a chart that would be empty."""
    low = height < _ENDS_FROM
    rows = [heading(title, value, width, look, focused, f"{span(seconds)} " if low else "")]
    if not known(values) and reason:
        return [*rows, *absent(reason, width, look)][:height]
    ends = ("", "") if low else (f"-{span(seconds)}", "now ")
    return rows + chart(values, width - 1, height - 1, scale, look.glyphs, limits, style, percent, ends)


def absent(reason: str, width: int, look: Look) -> list[Row]:
    """A value that can't be known, and why."""
    lines = wrap(clean(reason), max(1, width - 6), 3, look.glyphs.ellipsis)
    return [
        [(" n/a " if not index else "     ", "bold"), (fit(line, width - 6), "dim")] for index, line in enumerate(lines)
    ]
