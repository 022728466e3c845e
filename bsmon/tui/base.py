"""The frame of the screen: one timer looks at the monitor, and the page in sight draws what changed."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

from rich.console import Console
from textual import events
from textual.app import App
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter

from bsmon.draw.look import GLYPHS, GlyphName, Look
from bsmon.draw.marks import WORTH_A_GLANCE, counts
from bsmon.draw.palette import Depth
from bsmon.tui import keys
from bsmon.tui.board import Board, Choices, View, Watched
from bsmon.tui.driver import Terminal
from bsmon.tui.screens.page import Page
from bsmon.tui.theme import Colourless, detect_depth

_LONG = 0.03  # seconds that drawing may take
_REST = 5  # times as long it rests after a long one

Form: TypeAlias = Literal["line", "table", "normal", "wide"]
"""What there is room for: one line, the table alone, one thing below the other, or fleet and job side by side."""


class BoardApp(App[int]):
    """Looks at a monitor, holds the choices, and knows the terminal. What keys do is in ``BsmonApp``."""

    CSS_PATH = "bsmon.tcss"
    TITLE = "bsmon"

    def __init__(
        self,
        monitor: Watched,
        depth: Depth | None = None,
        glyphs: GlyphName = "braille",
        rate: float = 4.0,
        differences: bool = True,
        driver_class: type[Driver] | None = None,
    ) -> None:
        self.differences = differences and not os.environ.get("BSMON_PLAIN_DRIVER")
        self.depth: Depth = depth or detect_depth(os.environ)
        super().__init__(driver_class=driver_class, ansi_color=True)
        self.console = Console(
            color_system="truecolor", file=io.StringIO(), force_terminal=True, legacy_windows=False, _environ={}
        )
        self.theme = "ansi-dark"
        self.monitor = monitor
        self.board = Board(monitor, Choices(rate=rate, look=self._look(glyphs)))
        self.view: View | None = None
        self._colourless = Colourless()
        self._seen: tuple[int, int] = (-1, -1)
        self._rest_until = 0.0
        self._mouse_on = False
        self._title = ""

    # ------------------------------------------------------------ looking

    def on_mount(self) -> None:
        self._catch_signals()
        self.monitor.tick()
        self.push_screen("fleet")
        self._timer = self.set_interval(1 / self.board.choices.rate, self.beat)

    def beat(self) -> None:
        """Look at the monitor; draw if anything arrived, or a second went by (ages count).

        Slower where nobody looks (the terminal lost the focus), and where drawing takes long.
        """
        self.monitor.tick()
        now = time.monotonic()
        seen = (self.monitor.revision if self.app_focus else 0, int(now))
        if seen == self._seen or now < self._rest_until:
            return
        self._seen = seen
        self.look_again(at_once=False)
        took = time.monotonic() - now
        self._rest_until = now + _REST * took if took > _LONG else 0.0

    def look_again(self, at_once: bool = True) -> None:
        """Take a view and show it on the page in sight."""
        self.view = self.board.view()
        page = self.page
        if page is not None:
            with suppress(NoMatches):  # its panels come after the page and go before it, and timers fire in between
                page.show(self.view, at_once)
        self._set_title(self.view)

    def choose_job(self, delta: int) -> None:
        if self.view is not None:
            self.board.move(self.view, delta)
            self.look_again()

    @property
    def page(self) -> Page | None:
        """The page in sight, be there a dialogue over it or not."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, Page)), None)

    @property
    def form(self) -> Form:
        width, height = self.size
        if width < 30 or height < 6:
            return "line"
        if width < 60 or height < 15:
            return "table"
        return "wide" if width >= 160 and height >= 36 else "normal"

    def hints(self) -> list[tuple[str, str]]:
        """What the bottom line names on the page in sight."""
        return keys.HINTS[self.page.name_of_page] if self.page is not None else []

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [self._colourless] if self.depth == "mono" else []

    def _look(self, glyphs: GlyphName) -> Look:
        return Look(GLYPHS[glyphs], colours=self.depth in ("truecolor", "256"))

    # ------------------------------------------------------------ the terminal

    def get_driver_class(self) -> type[Driver]:
        """Textual's own choice; in place of its LinuxDriver the one that writes only differences."""
        chosen = super().get_driver_class()
        return Terminal if chosen is LinuxDriver and self.differences else chosen

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Resize) and isinstance(self._driver, Terminal):
            self._driver.resized(*event.size)
        await super().on_event(event)

    def _set_title(self, view: View) -> None:
        """The terminal's title: what a glance at the tabs should tell."""
        tally = counts(view.standings.values())
        worst = [f"{tally[name]} {name}" for name in WORTH_A_GLANCE if tally[name]]
        title = "bsmon: " + (", ".join(worst) or f"{len(view.jobs)} ok")
        if title != self._title and isinstance(self._driver, Terminal):
            self._driver.set_title(title)
            self._title = title

    # ------------------------------------------------------------ leaving

    def _catch_signals(self) -> None:
        """Leave by the front door whoever asks, so that the terminal is whole afterwards."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self.exit, 128 + number)
            except (ValueError, RuntimeError):  # not in the main thread: whoever runs us there handles signals
                return
