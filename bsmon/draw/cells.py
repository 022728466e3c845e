"""Rows of styled text, the one currency of this package, and the care that text from outside needs.

A row is a list of ``(text, style-name)``; names are those of ``palette``, joined with ``+`` where two apply. Every
function that draws returns rows no wider than the width it was given, counted in terminal cells.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from rich.cells import cell_len, set_cell_size

Segment: TypeAlias = tuple[str, str]
Row: TypeAlias = list[Segment]
Align: TypeAlias = Literal["left", "right", "center"]

_UNSAFE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Me", "Mc", "Zl", "Zp"))
_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN", "RLE", "RLO", "RLI"))


@lru_cache(4096)
def clean(text: str) -> str:
    """Text from a job as it may reach a terminal: no controls, no combining marks, nothing right-to-left, no emoji."""
    return "".join(char if " " <= char <= "~" else _safe(char) for char in text)


def _safe(char: str) -> str:
    if unicodedata.category(char) in _UNSAFE_CATEGORIES or unicodedata.bidirectional(char) in _RIGHT_TO_LEFT:
        return "?"
    if unicodedata.category(char) == "So" and cell_len(char) != 1:
        return "?"
    return char if cell_len(char) else "?"


def fit(text: str, width: int, align: Align = "left", ellipsis: str = "…") -> str:
    """Exactly ``width`` cells: padded, or cut with an ellipsis."""
    room = width - cell_len(text)
    if room < 0:
        return set_cell_size(text, max(0, width - len(ellipsis))) + ellipsis[: max(0, width)]
    if align == "right":
        return " " * room + text
    if align == "center":
        return " " * (room // 2) + text + " " * (room - room // 2)
    return text + " " * room


def width_of(row: Iterable[Segment]) -> int:
    return sum(cell_len(text) for text, _ in row)


def crop(row: Iterable[Segment], width: int) -> Row:
    """The row's first ``width`` cells."""
    kept: Row = []
    for text, style in row:
        length = cell_len(text)
        if length >= width:
            return [*kept, (set_cell_size(text, width), style)] if width > 0 else kept
        kept.append((text, style))
        width -= length
    return kept


def pad(row: Row, width: int, style: str = "") -> Row:
    """The row at exactly ``width`` cells."""
    cropped = crop(row, width)
    room = width - width_of(cropped)
    return [*cropped, (" " * room, style)] if room else cropped


def spread(left: Row, right: Row, width: int) -> Row:
    """Left and right of one row; the right part wins where both do not fit, as it is the shorter one."""
    tail = crop(right, width)
    return pad(left, width - width_of(tail)) + tail


def restyle(row: Row, style: str) -> Row:
    """The row with another style laid over each segment."""
    return [(text, f"{own}+{style}" if own else style) for text, own in row]


def merge(cells: Sequence[Segment]) -> Row:
    """Single cells joined into runs of one style."""
    row: Row = []
    for char, style in cells:
        if row and row[-1][1] == style:
            row[-1] = (row[-1][0] + char, style)
        else:
            row.append((char, style))
    return row


def wrap(text: str, width: int, limit: int, ellipsis: str = "…") -> list[str]:
    """Words in at most ``limit`` lines of ``width`` cells; what does not fit ends in an ellipsis."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if line and cell_len(joined) > width:
            lines.append(line)
            line = word
        else:
            line = joined
    lines.append(line)
    shown = [fit(each, width, ellipsis=ellipsis).rstrip() for each in lines[:limit]]
    if len(lines) > limit and shown:
        shown[-1] = fit(shown[-1] + " " + lines[limit] + " ", width, ellipsis=ellipsis).rstrip()
    return shown


def plain(rows: Iterable[Row]) -> str:
    """Rows as text, for the clipboard and for files."""
    return "\n".join("".join(text for text, _ in row).rstrip() for row in rows)
