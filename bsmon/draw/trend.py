"""A panel with one chart: a heading with the present value, and the line below it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bsmon.draw.axis import Scale, hold
from bsmon.draw.cells import Row, clean, wrap
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
    label: str = "n/a",
    focused: bool = False,
    style: str = "series",
) -> list[Row]:
    """``reason`` is said in place of a chart that would be empty, after ``label``."""
    low = height < _ENDS_FROM
    rows = [heading(title, value, width, look, focused, f"{span(seconds)} " if low else "")]
    if not known(values) and reason:
        return [*rows, *absent(reason, width, look, label)][:height]
    ends = ("", "") if low else (f"-{span(seconds)}", "now ")
    return rows + chart(values, width - 1, height - 1, scale, look.glyphs, limits, style, percent, ends)


def absent(reason: str, width: int, look: Look, label: str = "n/a") -> list[Row]:
    """A value that can't be known, and why."""
    indent = len(label) + 2 if label else 1
    lines = wrap(clean(reason), max(1, width - indent - 1), 3, look.glyphs.ellipsis)
    heads = [f" {label} " if label else " ", *[" " * indent] * (len(lines) - 1)]
    return [[(head, "bold"), (line, "dim")] for head, line in zip(heads, lines, strict=True)]
