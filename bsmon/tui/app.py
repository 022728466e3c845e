"""The screen: one timer looks at the monitor, and the page in sight draws what changed."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from rich.console import Console
from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.filter import LineFilter
from textual.widgets import Input

from bsmon.draw.fleet import SORT_KEYS
from bsmon.draw.look import GLYPH_NAMES, GLYPHS, GlyphName, Look
from bsmon.draw.numbers import span
from bsmon.draw.palette import DEPTHS, Depth
from bsmon.tui import export, keys
from bsmon.tui.board import RATES, WINDOWS, Board, Choices, View, Watched, neighbour
from bsmon.tui.picture import picture
from bsmon.tui.screens.page import Page
from bsmon.tui.screens.pages import AlertPage, FleetPage, GpuPage, HelpPage, JobPage, MoePage
from bsmon.tui.theme import Colourless, detect_depth
from bsmon.tui.widgets.panel import JobPanel, Panel

Form: TypeAlias = Literal["line", "table", "normal", "wide"]
"""What there is room for: one line, the table alone, one thing below the other, or fleet and job side by side."""


class BsmonApp(App[int]):
    """Reads the monitor, and nothing else: no key can touch a training."""

    CSS_PATH = "bsmon.tcss"
    TITLE = "bsmon"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [*keys.GLOBAL]
    SCREENS: ClassVar = {
        "fleet": FleetPage,
        "job": JobPage,
        "moe": MoePage,
        "gpus": GpuPage,
        "alerts": AlertPage,
        "help": HelpPage,
    }

    def __init__(
        self,
        monitor: Watched,
        depth: Depth | None = None,
        glyphs: GlyphName = "braille",
        rate: float = 4.0,
        driver_class: type[Driver] | None = None,
    ) -> None:
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

    # ------------------------------------------------------------ looking

    def on_mount(self) -> None:
        self._catch_signals()
        self.push_screen("fleet")
        self._timer = self.set_interval(1 / self.board.choices.rate, self.beat)

    def beat(self) -> None:
        """Look at the monitor; draw if anything arrived, or a second went by (ages count)."""
        self.monitor.tick()
        seen = (self.monitor.revision, int(time.monotonic()))
        if seen != self._seen:
            self._seen = seen
            self.look_again(at_once=False)

    def look_again(self, at_once: bool = True) -> None:
        """Take a view and show it on the page in sight."""
        self.view = self.board.view()
        page = self.page
        if page is not None and page.is_attached:
            page.show(self.view, at_once)

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

    def bindings(self) -> list[Binding]:
        """The keys, as they are bound."""
        return list(keys.GLOBAL)

    def hints(self) -> list[tuple[str, str]]:
        """What the bottom line names on the page in sight."""
        return keys.HINTS[self.page.name_of_page] if self.page is not None else []

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [self._colourless] if self.depth == "mono" else []

    def _look(self, glyphs: GlyphName) -> Look:
        return Look(GLYPHS[glyphs], colours=self.depth in ("truecolor", "256"))

    # ------------------------------------------------------------ leaving

    def _catch_signals(self) -> None:
        """Leave by the front door whoever asks, so that the terminal is whole afterwards."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self.exit, 128 + number)
            except (ValueError, RuntimeError):  # not in the main thread: whoever runs us there handles signals
                return

    async def action_quit(self) -> None:
        self.exit(0)

    # ------------------------------------------------------------ choosing

    def choose_job(self, delta: int) -> None:
        if self.view is not None:
            self.board.move(self.view, delta)
            self.look_again()

    def action_move(self, delta: int) -> None:
        if self.page is not None:
            self.page.move(delta)

    def action_leap(self, direction: int) -> None:
        if self.page is not None:
            self.page.leap(direction)

    def action_job(self, delta: int) -> None:
        self.choose_job(delta)

    def action_sort(self, delta: int) -> None:
        names = list(SORT_KEYS)
        self.board.choose(sort=names[(names.index(self.board.choices.sort) + delta) % len(names)])
        self.look_again()
        self.notify(f"sorted by {self.board.choices.sort.replace('_', ' ')}", timeout=2)

    def action_reverse(self) -> None:
        self.board.choose(reverse=not self.board.choices.reverse)
        self.look_again()

    def action_window(self, delta: int) -> None:
        if self.view is not None and self.view.job is not None:
            window = neighbour(WINDOWS, self.view.window_of(self.view.job), delta)
            self.board.choose(window=window)
            self.look_again()
            self.notify(f"charts show {span(window)}", timeout=2)

    def action_rate(self, delta: int) -> None:
        rate = neighbour(RATES, self.board.choices.rate, delta)
        self.board.choose(rate=rate)
        self._timer.stop()
        self._timer = self.set_interval(1 / rate, self.beat)
        self.look_again()

    def action_pause(self) -> None:
        self.board.pause(None if self.board.paused or self.view is None else self.view.snapshot)
        self.look_again()

    # ------------------------------------------------------------ pages

    def action_page(self, name: str) -> None:
        if self.page is not None and self.page is not self.get_screen(name):
            self.switch_screen(name)

    def action_open(self) -> None:
        if self.view is not None and self.view.job is not None and isinstance(self.page, FleetPage):
            self.action_page("job")

    async def action_back(self) -> None:
        """Out of whatever is innermost: the filter, the zoom, the page."""
        page = self.page
        if page is None:
            return
        if page.query_one("#filter", Input).display:
            self._close_filter(clear=True)
        elif page.maximized is not None:
            page.minimize()
        elif self.board.choices.filter:
            self._filter("")
        else:
            self.action_page("fleet")

    def action_zoom(self) -> None:
        page = self.page
        if page is None:
            return
        if page.maximized is not None:
            page.minimize()
            return
        focused = page.focused if isinstance(page.focused, JobPanel) else None
        panel = focused or next((panel for panel in page.query(JobPanel) if panel.size.height), None)
        if panel is not None:
            page.maximize(panel, container=False)

    # ------------------------------------------------------------ the filter

    def action_filter(self) -> None:
        if self.page is not None:
            field = self.page.query_one("#filter", Input)
            field.value = self.board.choices.filter
            field.display = True
            field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self._filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_filter(clear=False)

    def _filter(self, text: str) -> None:
        self.board.choose(filter=text)
        self.look_again()

    def _close_filter(self, clear: bool) -> None:
        if self.page is not None:
            field = self.page.query_one("#filter", Input)
            field.display = False
            self.page.set_focus(None)
        if clear:
            self._filter("")

    # ------------------------------------------------------------ alerts, copies, files

    def action_acknowledge(self) -> None:
        """The chosen alert on the alert page, elsewhere the one in the alert line."""
        from bsmon.draw.marks import worst_alert

        page = self.page
        if self.view is None:
            return
        alert = page.alerts.chosen if isinstance(page, AlertPage) else worst_alert(self.view.snapshot.alerts)
        if alert is not None:
            self.monitor.acknowledge(alert.id)
            self.look_again()

    def action_copy(self) -> None:
        """The focused panel, else everything that the page shows, by OSC 52: it works over SSH too."""
        page = self.page
        if page is None:
            return
        focused = page.focused
        text = focused.as_text() if isinstance(focused, Panel) else self.text_of(page)
        self.copy_to_clipboard(text)
        self.notify(f"copied {len(text.splitlines())} lines", timeout=2)

    def text_of(self, page: Page) -> str:
        """The page as it stands there, as text."""
        lines = (strip.text.rstrip() for strip in page._compositor.render_strips())
        return "\n".join(lines)

    def picture(self) -> str:
        """The screen as SVG."""
        return picture(self.screen._compositor.render_strips(), self.size.width)

    def action_export(self) -> None:
        page = self.page
        if page is None or self.view is None:
            return
        try:
            paths = export.write(self.view.snapshot, self.picture(), self.text_of(page), Path.cwd())
        except OSError as problem:
            self.notify(f"nothing was written: {problem}", severity="error", markup=False)
        else:
            self.notify("wrote " + ", ".join(path.name for path in paths), markup=False)

    # ------------------------------------------------------------ the terminal

    def action_depth(self) -> None:
        """The next colour depth, for terminals that do not say what they can."""
        self.depth = DEPTHS[(DEPTHS.index(self.depth) + 1) % len(DEPTHS)]
        self.board.choose(look=self._look(self.board.choices.look.glyphs.name))
        self.action_redraw()
        self.notify(f"colours: {self.depth}", timeout=2)

    def action_glyphs(self) -> None:
        name = GLYPH_NAMES[(GLYPH_NAMES.index(self.board.choices.look.glyphs.name) + 1) % len(GLYPH_NAMES)]
        self.board.choose(look=self._look(name))
        self.action_redraw()
        self.notify(f"glyphs: {name}", timeout=2)

    def action_redraw(self) -> None:
        self.look_again()
        for screen in self.screen_stack:
            for widget in screen.walk_children():
                widget.notify_style_update()
            screen.refresh(layout=True)
