"""What limits the selected job, and what to try."""

from __future__ import annotations

from typing import ClassVar

from bsmon.draw.cells import Row
from bsmon.draw.verdict import brief, full
from bsmon.tui.board import View
from bsmon.tui.layout import Want
from bsmon.tui.widgets.panel import Panel

BRIEF = 3
FULL = 8


class Verdict(Panel):
    """Three rows where room is scarce, else everything the diagnosis has to say."""

    every: ClassVar[float] = 1.0

    def draw(self, view: View) -> list[Row]:
        if view.job is None:
            return []
        width, height = self.size
        if height <= BRIEF:
            return brief(view.job, view.state, view.now, width, view.look)
        return full(view.job, view.state, view.now, width, height, view.look)

    def wants(self, view: View) -> Want:
        if view.job is None:
            return Want(0, 0, 0)
        needed = len(full(view.job, view.state, view.now, self.size.width or self.app.size.width, FULL, view.look))
        return Want(min(BRIEF, needed), needed, 0)
