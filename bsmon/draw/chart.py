"""A line chart of one series: gaps stay gaps, limits are dashed lines, the axis is round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from bsmon.draw.axis import Scale, labels, row_of, ticks
from bsmon.draw.cells import Row, Segment, fit, merge, spread
from bsmon.draw.look import Glyphs

Values = Sequence["float | None"]

# Unicode braille: bit of the dot at (row from the top, column); Unicode 15, section 21.1
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_TICKS_FROM = 6  # rows; lower charts name the ends of their scale
_ASCII_LEVELS = "_-'"


class Limit(NamedTuple):
    """A level worth knowing, drawn as a dashed line with its name at the right."""

    value: float
    label: str
    style: str = "limit"


def columns_of(values: Values, columns: int) -> list[float | None]:
    """The series on ``columns`` columns: a value holds for its whole bucket, and fewer columns take the mean."""
    count = len(values)
    if not count:
        return [None] * columns
    if count <= columns:
        return [values[column * count // columns] for column in range(columns)]
    groups = [values[column * count // columns : (column + 1) * count // columns] for column in range(columns)]
    known = [[value for value in group if value is not None] for group in groups]
    return [sum(group) / len(group) if group else None for group in known]


def _levels(values: Values, scale: Scale, steps: int) -> list[int | None]:
    """Height of each value in ``0..steps-1`` from the bottom, clamped to the scale."""
    low, high = scale
    span = (high - low) or 1.0
    return [
        None if value is None or not math.isfinite(value) else min(steps - 1, max(0, int((value - low) / span * steps)))
        for value in values
    ]


def braille(values: Values, width: int, height: int, scale: Scale) -> list[str]:
    """A joined line, two by four dots a cell. A run of dots is broken where a value is None."""
    dots = [[0] * width for _ in range(height)]
    levels = _levels(columns_of(values, width * 2), scale, height * 4)
    previous: int | None = None
    for column, level in enumerate(levels):
        if level is not None:
            start = level if previous is None else previous + (level > previous) - (level < previous)
            for dot in range(min(start, level), max(start, level) + 1):
                row, inner = divmod(height * 4 - 1 - dot, 4)
                dots[row][column // 2] |= _DOTS[inner][column % 2]
        previous = level
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in dots]


def blocks(values: Values, width: int, height: int, scale: Scale, levels_of_cell: str) -> list[str]:
    """Filled columns in eighths of a cell."""
    levels = _levels(columns_of(values, width), scale, height * 8)
    rows = []
    for row in range(height):
        floor = (height - 1 - row) * 8
        rows.append("".join(" " if level is None else _eighth(level + 1 - floor, levels_of_cell) for level in levels))
    return rows


def _eighth(filled: int, glyphs: str) -> str:
    return " " if filled <= 0 else glyphs[min(filled, len(glyphs)) - 1]


def strokes(values: Values, width: int, height: int, scale: Scale) -> list[str]:
    """Three levels a cell in plain ASCII, with bars where the line climbs."""
    cells = [[" "] * width for _ in range(height)]
    previous: int | None = None
    for column, level in enumerate(_levels(columns_of(values, width), scale, height * 3)):
        if level is not None:
            row = height - 1 - level // 3
            for between in range(min(row, previous) + 1, max(row, previous)) if previous is not None else ():
                cells[between][column] = "|"
            cells[row][column] = _ASCII_LEVELS[level % 3]
            previous = row
        else:
            previous = None
    return ["".join(row) for row in cells]


def plot(values: Values, width: int, height: int, scale: Scale, glyphs: Glyphs) -> list[str]:
    """The bare plot, in the glyphs that were asked for."""
    if glyphs.name == "braille":
        return braille(values, width, height, scale)
    if glyphs.name == "block":
        return blocks(values, width, height, scale, glyphs.spark)
    return strokes(values, width, height, scale)


def _under(line: str, level: Limit, glyphs: Glyphs, style: str) -> list[Segment]:
    """A row of the plot with a limit behind it: dashes, and the label, wherever the line leaves room."""
    dashes = list(glyphs.dashes * len(line))
    label = f" {level.label} "
    for start in (1, len(line) - len(label) - 1):
        fits = start >= 1 and start + len(label) < len(line)
        if level.label and fits and not line[start : start + len(label)].strip():
            dashes[start : start + len(label)] = label
            break
    return [(own, style) if own != " " else (dash, level.style) for own, dash in zip(line, dashes, strict=True)]


def chart(
    values: Values,
    width: int,
    height: int,
    scale: Scale,
    glyphs: Glyphs,
    limits: Sequence[Limit] = (),
    style: str = "series",
    percent: bool = False,
    ends: tuple[str, str] = ("", ""),
) -> list[Row]:
    """``height`` rows of ``width`` cells: labels, axis and plot, and a last row with the ends of the time axis.

    ``ends`` are written at the left and right of the bottom row (which is left out
    when both are empty).
    """
    with_ends = any(ends) and height > 2
    rows = max(1, height - with_ends)
    values_at = ticks(scale, rows // 3) if rows >= _TICKS_FROM else list(scale)
    named = zip(values_at, labels(values_at, percent), strict=True)
    marks = {row_of(tick, scale, rows): label for tick, label in named}
    gutter = max(5, *(len(label) for label in marks.values())) if marks else 5
    inner = width - gutter - 1
    if inner < 4:
        return [[(" " * width, "")] for _ in range(height)]
    at = {row_of(limit.value, scale, rows): limit for limit in limits if scale[0] <= limit.value <= scale[1]}
    drawn: list[Row] = []
    for row, line in enumerate(plot(values, inner, rows, scale, glyphs)):
        label = fit(marks.get(row, ""), gutter, "right") + glyphs.axis
        cells = _under(line, at[row], glyphs, style) if row in at else [(char, style) for char in line]
        drawn.append([(label, "dim"), *merge(cells)])
    if with_ends:
        drawn.append([(" " * (gutter + 1), ""), *spread([(ends[0], "dim")], [(ends[1], "dim")], inner)])
    return drawn
