"""Horizontal bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bsmon.draw.cells import Row, Segment
from bsmon.draw.look import Glyphs


def bar(share: float | None, width: int, glyphs: Glyphs) -> str:
    """``share`` (0..1) of ``width`` cells, in eighths where the glyphs have them, padded with blanks."""
    if share is None or not math.isfinite(share):
        return " " * width
    parts = len(glyphs.eighths)
    filled = round(min(1.0, max(0.0, share)) * width * parts)
    whole, rest = divmod(filled, parts)
    return (glyphs.bar * whole + (glyphs.eighths[rest - 1] if rest else "")).ljust(width)


def meter(share: float | None, width: int, glyphs: Glyphs, style: str = "series") -> list[Segment]:
    """A bar on a dotted track, so that its full length can be seen."""
    text = bar(share, width, glyphs).rstrip()
    return [(text, style), (glyphs.track * (width - len(text)), "rule")]


def edges(shares: Sequence[float], width: int) -> list[int]:
    """Cell at which each part of a stacked bar ends: rounded from the running sum, so that the parts fill the bar."""
    ends: list[int] = []
    running = 0.0
    for share in shares:
        running += max(0.0, share)
        ends.append(min(width, round(running * width)))
    return ends


def stacked(parts: Sequence[tuple[str, float, str]], width: int, glyphs: Glyphs) -> Row:
    """One bar of all parts, ``(letter, share, style)`` each; in ASCII a part is made of its letter."""
    row: Row = []
    start = 0
    for (letter, _, style), end in zip(parts, edges([share for _, share, _ in parts], width), strict=True):
        if end > start:
            body = glyphs.bar * (end - start) if glyphs.name != "ascii" else letter * (end - start)
            row.append((body, style))
        start = max(start, end)
    return row


def waterfall(parts: Sequence[float], width: int, glyphs: Glyphs) -> list[tuple[int, str]]:
    """For each part of a whole, where its bar begins and the bar: below one another they read as a stacked bar."""
    ends = edges(parts, width)
    starts = [0, *ends[:-1]]
    placed = []
    for start, end, share in zip(starts, ends, parts, strict=True):
        sliver = glyphs.eighths[0] if share > 0 else ""
        placed.append((min(start, width - 1), glyphs.bar * (end - start) or sliver))
    return placed
