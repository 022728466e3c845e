"""The screen: what the keys do."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Input

from bsmon.draw.fleet import SORT_KEYS
from bsmon.draw.look import GLYPH_NAMES, GlyphName
from bsmon.draw.marks import worst_alert
from bsmon.draw.numbers import span
from bsmon.draw.palette import DEPTHS, Depth
from bsmon.tui import export, keys
from bsmon.tui.base import BoardApp
from bsmon.tui.board import RATES, WINDOWS, Watched, neighbour
from bsmon.tui.driver import Terminal
from bsmon.tui.picture import picture
from bsmon.tui.screens.page import Page
from bsmon.tui.screens.pages import AlertPage, FleetPage, GpuPage, HelpPage, JobPage, MoePage
from bsmon.tui.widgets.panel import JobPanel, Panel


class BsmonApp(BoardApp):
    """Reads the monitor, and nothing else: no key can touch a training."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.GLOBAL]
    SCREENS: ClassVar = {
        "fleet": FleetPage,
        "job": JobPage,
        "moe": MoePage,
        "gpus": GpuPage,
        "alerts": AlertPage,
        "help": HelpPage,
    }

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette offers what the keys do, and nothing else."""
        for binding in keys.GLOBAL:
            if binding.action.startswith(keys.MOVEMENT):
                continue
            shown = " ".join(keys.key_name(key) for key in binding.key.split(","))
            yield SystemCommand(binding.description.capitalize(), shown, partial(self.run_action, binding.action))

    async def action_quit(self) -> None:
        self.exit(0)

    def action_suspend_process(self) -> None:
        """Stop all that the shell started with us (make, a launcher), as its own ctrl+z would: it waits for all."""
        if self._driver is None or not self._driver.can_suspend:
            return
        if os.getpgrp() == os.getsid(0):
            self.notify("no shell waits behind this screen", timeout=2)
            return
        with self.suspend():
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # we stand still here until the shell continues us
            signal.signal(signal.SIGTSTP, handler)

    # ------------------------------------------------------------ choosing

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
        """A replay stops its clock; of what goes on anyway, only the view stands still."""
        if not self.monitor.hold():
            self.board.pause(None if self.board.paused or self.view is None else self.view.snapshot)
        self.look_again()

    def action_wind(self, seconds: float) -> None:
        if self.view is not None:
            self._seek(self.view.now + seconds)

    def _seek(self, moment: float) -> None:
        if self.monitor.seek(moment):
            self.look_again()
        else:
            self.notify("only `bsmon replay` can go to another time", timeout=2)

    def action_record(self) -> None:
        self.notify(self.monitor.record(), markup=False)

    # ------------------------------------------------------------ pages

    def action_page(self, name: str) -> None:
        if self.page is not None and self.page is not self.get_screen(name):
            self.switch_screen(name)

    def action_open(self) -> None:
        if self.view is not None and self.view.job is not None and isinstance(self.page, FleetPage):
            self.action_page("job")
        elif isinstance(self.page, AlertPage) and (alert := self.page.alerts.chosen) is not None:
            self._seek(alert.since)

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

    # ------------------------------------------------------------ how it is drawn

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
        if isinstance(self._driver, Terminal):
            self._driver.repaint()
        self.look_again()
        for screen in self.screen_stack:
            for widget in screen.walk_children():
                widget.notify_style_update()
            screen.refresh(layout=True)

    def action_mouse(self) -> None:
        if isinstance(self._driver, Terminal):
            self._mouse_on = not self._mouse_on
            self._driver.set_mouse(self._mouse_on)
            self.notify(f"mouse {'on: click a row' if self._mouse_on else 'off: text can be selected'}", timeout=2)


def run(monitor: Watched, glyphs: GlyphName = "braille", depth: Depth | None = None, differences: bool = True) -> int:
    """The screen until it is left; the exit code is 0, or 128 and the number of the signal that ended it."""
    app = BsmonApp(monitor, depth=depth, glyphs=glyphs, differences=differences)
    return app.run(mouse=False) or 0
