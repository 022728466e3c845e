"""Tables whose columns follow the width: the least important go first, the flexible ones take what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bsmon.draw.cells import Align, Row, fit

GAP = 2


class Column(NamedTuple):
    """``rank`` 0 stays longest. ``most`` cells at most, where there is room."""

    key: str
    title: str
    least: int
    align: Align = "right"
    rank: int = 0
    most: int = 0


def layout(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit into ``width`` cells, and how wide each becomes; gaps of two cells lie between them."""
    shown = list(columns)
    while len(shown) > 1 and _needed(shown) > width:
        shown.remove(max(shown, key=lambda column: column.rank))
    room = width - _needed(shown)
    widths = []
    for column in shown:
        extra = min(max(0, column.most - column.least), max(0, room))
        widths.append((column, column.least + extra))
        room -= extra
    return widths


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.least for column in columns) + GAP * (len(columns) - 1)


def heading(placed: Sequence[tuple[Column, int]], sort: str | None = None, reverse: bool = False) -> Row:
    """The titles; the sorted one is underlined."""
    row: Row = []
    for index, (column, width) in enumerate(placed):
        title = fit(column.title, width, column.align)
        gap = " " * GAP if index else ""
        if column.key != sort:
            row.append((gap + title, "column"))
            continue
        text = title.strip()
        before, after = title.split(text, 1) if text else (title, "")
        row += [(gap + before, "column"), (text, "column+underline"), (after, "column")]
    return row
