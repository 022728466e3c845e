"""What all pages share: header, body, filter, alert line, keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from bsmon.tui.board import View
from bsmon.tui.widgets.frame import AlertLine, HeaderLine, KeyLine, Rule
from bsmon.tui.widgets.job_pane import JobPane
from bsmon.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from bsmon.tui.base import BoardApp


class Page(Screen[None]):
    """Subclasses yield their panels in ``body`` and say what the arrow keys move."""

    AUTO_FOCUS = ""
    name_of_page: ClassVar[str] = "fleet"

    @property
    def board_app(self) -> BoardApp:
        return cast("BoardApp", self.app)

    def body(self) -> Iterable[Widget]:
        return ()

    def compose(self) -> ComposeResult:
        yield HeaderLine()
        yield Rule(id="top-rule")
        with Vertical(id="body"):
            yield from self.body()
        yield Rule(id="bottom-rule")
        yield Input(placeholder="text  host:name  verdict:name  >warn", id="filter", compact=True)
        yield AlertLine()
        yield KeyLine()

    def show(self, view: View, at_once: bool = False) -> None:
        """Share the room, then let every panel in sight draw."""
        self.apportion(view)
        for panel in self.query(Panel):
            panel.show(view, at_once)

    def apportion(self, view: View) -> None:
        for pane in self.query(JobPane):
            if pane.display:
                pane.apportion(view)

    def on_screen_resume(self) -> None:
        self.board_app.look_again()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(True, f"-{self.board_app.form}")
        for form in ("line", "table", "normal", "wide"):
            self.set_class(form == self.board_app.form, f"-{form}")
        self.call_after_refresh(self.board_app.look_again)

    @property
    def mover(self) -> Panel | None:
        """The panel that the arrow keys scroll, where they do not choose a job."""
        return None

    def move(self, delta: int) -> None:
        """The arrow keys, home and end."""
        if self.mover is not None:
            self.mover.scroll_rows(delta)
        else:
            self.board_app.choose_job(delta)

    def leap(self, direction: int) -> None:
        """A page up or down."""
        step = max(1, (self.mover or self).size.height - 2) if self.mover else 10
        self.move(direction * step)
