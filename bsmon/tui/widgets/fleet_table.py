"""The table of jobs."""

from __future__ import annotations

from typing import ClassVar

from textual import events

from bsmon.draw.cells import Row, crop
from bsmon.draw.chart import Values
from bsmon.draw.empty import empty, nothing_matches
from bsmon.draw.fleet import MARGIN, columns_for, job_row
from bsmon.draw.table import Column, heading, layout
from bsmon.model import Job
from bsmon.tui.board import View
from bsmon.tui.widgets.panel import Panel

_TREND_SECONDS = 120.0


class FleetTable(Panel):
    """A heading and a row a job; only the rows in sight are drawn, and the selected one stays in sight."""

    every: ClassVar[float] = 0.5

    def draw(self, view: View) -> list[Row]:
        width, height = self.size
        if not view.jobs:
            if view.hidden:
                return nothing_matches(view.choices.filter, view.hidden, width)
            return empty(view.looked_at, view.settled, width, height, view.look)
        placed = layout(columns_for(view.jobs), width - MARGIN - 1)
        first = self._first(view, height - 1)
        rows: list[Row] = [crop([(" " * MARGIN, ""), *heading(placed, view.choices.sort)], width)]
        for job in view.jobs[first : first + height - 1]:
            trend = self._trend(view, job, placed)
            rows.append(job_row(job, view.standings[job.id], placed, width, view.look, trend, job is view.job))
        return rows

    def _first(self, view: View, room: int) -> int:
        """The first job in sight: as before, unless the selected one would be out of sight."""
        place = view.jobs.index(view.job) if view.job in view.jobs else 0
        self._start = max(place - room + 1, min(self._start, place, max(0, len(view.jobs) - room)))
        return self._start

    _start = 0

    def on_click(self, event: events.Click) -> None:
        """With the mouse on: choose the row."""
        view = self.board_app.view
        place = self._start + event.y - 1
        if view is not None and event.y > 0 and place < len(view.jobs):
            self.board_app.board.choose(selected=view.jobs[place].id)
            self.board_app.look_again()

    def _trend(self, view: View, job: Job, placed: list[tuple[Column, int]]) -> Values:
        cells = next((width for column, width in placed if column.key == "trend"), 0)
        return view.series(job, "tokens_per_s", _TREND_SECONDS, cells) if cells else []
