"""Where the time of a step goes."""

from __future__ import annotations

import math

from bsmon.draw.bars import stacked, waterfall
from bsmon.draw.cells import Row, crop, fit
from bsmon.draw.header import heading
from bsmon.draw.look import Look
from bsmon.draw.trend import absent
from bsmon.model import Job
from bsmon.units import percent, seconds

NAMES = {
    "data_wait": "data wait",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "communic.",
    "other": "other",
}
_LABEL = 11
_FIGURES = 15
_ENTRY = 18


def parts(job: Job) -> dict[str, float]:
    """The phases that were measured, seconds a step."""
    measured = {name: getattr(job.phases_s, name) for name in NAMES}
    return {name: value for name, value in measured.items() if value is not None and 0 <= value < math.inf}


def phases(job: Job, width: int, height: int, look: Look, focused: bool = False) -> list[Row]:
    """A row a phase; each bar begins where the one above ends, so that the whole is the step."""
    median, p95 = job.step_time_s.median, job.step_time_s.p95
    value: Row = [(seconds(median), ""), (f" p95 {seconds(p95)}", "dim")] if median else []
    rows = [heading("step time", value, width, look, focused)]
    measured = parts(job)
    whole = sum(measured.values())
    if not whole > 0:
        return [*rows, *absent(job.unavailable.get("phases_s", "no step was timed yet"), width, look)][:height]
    if len(measured) + 1 > height:
        return [*rows, *_compact(measured, whole, width, look)][:height]
    room = max(1, width - _LABEL - _FIGURES - 1)
    placed = waterfall([value / whole for value in measured.values()], room, look.glyphs)
    for (name, took), (start, bar) in zip(measured.items(), placed, strict=True):
        rows.append(_phase(name, took, took / whole, start, bar, room, width))
    return rows


def _compact(measured: dict[str, float], whole: float, width: int, look: Look) -> list[Row]:
    """One bar, and below it the phases in two columns, for where a row a phase is too much."""
    bar = stacked([(NAMES[name][0], took / whole, name) for name, took in measured.items()], width - 2, look.glyphs)
    across = max(1, min(len(measured), width // _ENTRY))
    entries = [
        [(f" {look.glyphs.swatch} ", name), (f"{NAMES[name]:<10}{percent(took / whole, 0):>3}%", "")]
        for name, took in sorted(measured.items(), key=lambda item: -item[1])
    ]
    groups = [entries[first : first + across] for first in range(0, len(entries), across)]
    lines = [crop([segment for entry in group for segment in entry], width) for group in groups]
    return [crop([(" ", ""), *bar], width), *lines]


def _phase(name: str, value: float, share: float, start: int, bar: str, room: int, width: int) -> Row:
    label = fit(f" {NAMES[name]}", _LABEL)
    figures = f"{seconds(value):>8}{percent(share, 0):>5}%"
    placed: Row = [(label, ""), (" " * start, ""), (bar, name), (" " * (room - start - len(bar)), "")]
    return crop([*placed, (figures, "dim")], width)
