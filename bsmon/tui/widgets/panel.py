"""The base of everything that is drawn: a widget that shows rows and repaints only those that changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, cast

from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from bsmon.draw.cells import Row, plain
from bsmon.tui.board import View
from bsmon.tui.layout import Want
from bsmon.tui.theme import style_of

if TYPE_CHECKING:
    from bsmon.tui.base import BoardApp


class Panel(Widget, can_focus=False):
    """Give it ``draw``: what it shows of a view, as rows no wider than itself.

    ``every`` is the least time between two looks at new data, in seconds.
    """

    every: ClassVar[float] = 0.25

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: list[Row] = []
        self.top = 0
        self._seen = 0.0
        self._drawn_at: tuple[int, int] | None = None

    @property
    def board_app(self) -> BoardApp:
        return cast("BoardApp", self.app)

    def draw(self, view: View) -> list[Row]:
        """The rows for a view."""
        return []

    def wants(self, view: View) -> Want:
        """Rows this panel can use for the selected job."""
        return Want(1, 1, 0)

    def show(self, view: View, at_once: bool = False) -> None:
        """Draw again if it is time to, and repaint the rows that differ."""
        size = (self.size.width, self.size.height)
        if 0 in size or not self.display:
            return
        now = time.monotonic()
        if not at_once and size == self._drawn_at and now - self._seen < self.every * 0.9:
            return
        self._seen, self._drawn_at = now, size
        before, first = self.rows, self.top
        self.rows = self.draw(view)
        self._keep_in_sight()
        self._repaint(before, moved=first != self.top)

    def _keep_in_sight(self) -> None:
        self.top = max(0, min(self.top, len(self.rows) - self.size.height))

    def _repaint(self, before: list[Row], moved: bool) -> None:
        width, height = self.size
        if moved:
            self.refresh()
            return
        old, new = before[self.top : self.top + height], self.rows[self.top : self.top + height]
        longest = max(len(old), len(new))
        old, new = old + [[]] * (longest - len(old)), new + [[]] * (longest - len(new))
        changed = [Region(0, y, width, 1) for y, (was, row) in enumerate(zip(old, new, strict=True)) if was != row]
        if changed:
            self.refresh(*changed)

    def scroll_rows(self, delta: int) -> None:
        """Move the rows that are shown, as far as there are any."""
        self.top += delta
        self._keep_in_sight()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        depth, place = self.board_app.depth, self.top + y
        row = self.rows[place] if place < len(self.rows) else []
        strip = Strip([Segment(text, style_of(depth, style)) for text, style in row if text])
        return strip.adjust_cell_length(self.size.width)

    def as_text(self) -> str:
        return plain(self.rows)

    def on_resize(self, event: events.Resize) -> None:
        self.redraw()

    def on_show(self) -> None:
        self.redraw()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        view = self.board_app.view
        if view is not None:
            self.show(view, at_once=True)


class JobPanel(Panel, can_focus=True):
    """A panel about the selected job, with a heading; it can have the focus and be zoomed."""

    ALLOW_MAXIMIZE = True
    every: ClassVar[float] = 0.5

    def relevant(self, view: View) -> bool:
        """Whether there is anything to show for this job."""
        return view.job is not None
