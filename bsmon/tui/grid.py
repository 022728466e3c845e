"""A terminal's cells as they should be and as they are, and the least that turns one into the other.

Textual re-sends dirty regions whole. What it writes is read into a grid here, and only cells that differ from what
the terminal already shows are sent on: what falls behind on a slow link is skipped, as the latest state wins.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from rich.cells import cell_len

Cell: TypeAlias = tuple[str, str]  # (character, SGR parameters); the right half of a wide character is ("", style)
Rows: TypeAlias = list[list[Cell]]

BLANK: Cell = (" ", "")
_GAP = 5  # so many unchanged cells are cheaper to send again than to jump over
_TOKEN = re.compile(
    r"\x1b\[(?P<sgr>[\d;]*)m"
    r"|\x1b\[(?P<row>\d*);?(?P<column>\d*)H"
    r"|(?P<sync>\x1b\[\?2026[hl])"
    r"|(?P<other>\x1b\[[?><=]?[\d;$]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_][^\x1b]*\x1b\\|\x1b."
    r"|[\x00-\x09\x0b-\x1a\x1c-\x1f])"
    r"|(?P<line>\n)"
    r"|(?P<text>[^\x00-\x1f]+)"
)


class Grid:
    """What the terminal should show."""

    def __init__(self, width: int, height: int) -> None:
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Start over at another size: nothing is known of what a terminal shows after a resize."""
        self.width, self.height = width, height
        self.rows = blank(width, height)
        self._x = self._y = 0
        self._style = ""
        self.synchronised = False

    def feed(self, data: str) -> str:
        """Take in what Textual writes; returns what is no drawing (modes, clipboard, bell) and has to be passed on."""
        passed = []
        for token in _TOKEN.finditer(data):
            kind = token.lastgroup
            if kind == "text":
                self._put(token.group())
            elif kind == "sgr":
                self._restyle(token.group("sgr"))
            elif kind in ("row", "column"):
                self._y = int(token.group("row") or 1) - 1
                self._x = int(token.group("column") or 1) - 1
            elif kind == "line":
                self._x, self._y = 0, self._y + 1
            elif kind == "sync":
                self.synchronised = True
            else:
                passed.append(token.group())
        return "".join(passed)

    def _restyle(self, parameters: str) -> None:
        if parameters in ("", "0"):
            self._style = ""
        else:
            self._style = f"{self._style};{parameters}" if self._style else parameters

    def _put(self, text: str) -> None:
        if not 0 <= self._y < self.height:
            return
        row, style = self.rows[self._y], self._style
        if text.isascii() or cell_len(text) == len(text):
            cells: list[Cell] = [(char, style) for char in text]
        else:
            cells = [cell for char in text for cell in _wide(char, style)]
        room = max(0, self.width - self._x)
        row[self._x : self._x + min(len(cells), room)] = cells[:room]
        self._x += len(cells)

    def copy(self) -> Rows:
        return [row.copy() for row in self.rows]


def _wide(char: str, style: str) -> list[Cell]:
    return [(char, style), *[("", style)] * (cell_len(char) - 1)] if cell_len(char) else []


def blank(width: int, height: int) -> Rows:
    """What a terminal shows after it was cleared."""
    return [[BLANK] * width for _ in range(height)]


def difference(sent: Rows, wanted: Rows) -> str:
    """The bytes that make a terminal which shows ``sent`` show ``wanted``."""
    parts: list[str] = []
    style = ""
    for y, (old, new) in enumerate(zip(sent, wanted, strict=True)):
        if old == new:
            continue
        for start, end in _runs(old, new):
            parts.append(f"\x1b[{y + 1};{start + 1}H")
            for char, wished in new[start:end]:
                if wished != style:
                    parts.append(f"\x1b[0;{wished}m" if wished and style else f"\x1b[{wished}m")
                    style = wished
                parts.append(char)
    if style:
        parts.append("\x1b[m")
    return "".join(parts)


def _runs(old: list[Cell], new: list[Cell]) -> list[tuple[int, int]]:
    """Stretches of cells to send; each begins and ends on whole characters."""
    runs: list[tuple[int, int]] = []
    for x, (was, wished) in enumerate(zip(old, new, strict=True)):
        if was == wished:
            continue
        if runs and x - runs[-1][1] <= _GAP:
            runs[-1] = (runs[-1][0], x + 1)
        else:
            runs.append((x, x + 1))
    return [_whole(new, start, end) for start, end in runs]


def _whole(row: list[Cell], start: int, end: int) -> tuple[int, int]:
    while start > 0 and row[start][0] == "":
        start -= 1
    while end < len(row) and row[end][0] == "":
        end += 1
    return start, end
