"""The terminal, written to by a thread of its own: only what differs, at most ten times a second.

A slow link never holds up the screen: while one write lasts, newer states replace each other, and the next write
brings the terminal from what it shows to the latest.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

from bsmon.tui.grid import Grid, Rows, blank, difference

_INTERVAL = 0.1
_SYNC_START, _SYNC_END = "\x1b[?2026h", "\x1b[?2026l"
_ENTER, _LEAVE, _CLEAR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[m\x1b[2J"
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"


class Painter:
    """Holds the wanted cells and what was sent. ``send`` writes bytes and may block; it raises OSError when gone."""

    def __init__(self, send: Callable[[bytes], None], size: tuple[int, int]) -> None:
        self._send = send
        self._grid = Grid(*size)
        self._sent: Rows = blank(*size)
        self._passed: list[str] = []
        self._changed = threading.Condition()
        self._dirty = self._stopping = False
        self._drawing = False  # only on the alternate screen: the shell's own is not ours to paint
        self._thread = threading.Thread(target=self._run, name="bsmon-painter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, data: str) -> None:
        """Take in what should be shown. Never blocks for longer than reading it takes."""
        with self._changed:
            passed = self._grid.feed(data)
            if passed:
                self._passed.append(passed)
                self._drawing = (self._drawing or _ENTER in passed) and _LEAVE not in passed
            self._dirty = True
            self._changed.notify()

    def resize(self, size: tuple[int, int]) -> None:
        with self._changed:
            self._grid.resize(*size)
            self._clear()

    def forget(self) -> None:
        """Send everything again: somebody else wrote to the terminal."""
        with self._changed:
            self._clear()
            self._dirty = True
            self._changed.notify()

    def _clear(self) -> None:
        self._passed.append(_CLEAR)
        self._sent = blank(self._grid.width, self._grid.height)

    def stop(self, timeout: float = 2.0) -> None:
        """Write what is left and end. A terminal that takes nothing any more is given up."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except OSError:  # the terminal is gone; the application ends by SIGHUP or by its own decision
            return

    def _step(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._dirty or self._stopping)
            passed, self._passed, self._dirty = "".join(self._passed), [], False
            stopping, drawing = self._stopping, self._drawing
            wanted, sent = self._grid.copy(), self._sent
            self._sent = wanted
        drawn = difference(sent, wanted) if drawing else ""
        if drawn and self._grid.synchronised:
            drawn = _SYNC_START + drawn + _SYNC_END
        if passed or drawn:
            self._send((passed + drawn).encode())
        if not stopping:
            time.sleep(_INTERVAL)
        return not stopping


def write_all(fileno: int, data: bytes) -> None:
    """Write every byte, however slowly the terminal takes them."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fileno, rest) :]


class Terminal(LinuxDriver):
    """Textual's driver, with the painter between it and the terminal."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._out = sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
        self._painter: Painter | None = None

    def write(self, data: str) -> None:
        if self._painter is not None:
            self._painter.write(data)

    def _get_terminal_size(self) -> tuple[int, int]:
        """What the terminal says: COLUMNS and LINES, where a parent exported them, do not follow a resize."""
        try:
            width, height = os.get_terminal_size(self._out)
        except OSError:
            return super()._get_terminal_size()
        return (width, height) if width and height else super()._get_terminal_size()

    def start_application_mode(self) -> None:
        self._painter = Painter(lambda data: write_all(self._out, data), self._get_terminal_size())
        self._painter.start()
        self.write(_SAVE_TITLE)
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        super().stop_application_mode()
        self.write(_RESTORE_TITLE)
        if self._painter is not None:
            self._painter.stop()
            self._painter = None

    def resized(self, width: int, height: int) -> None:
        """The terminal has another size now, and shows what it likes."""
        if self._painter is not None:
            self._painter.resize((width, height))

    def repaint(self) -> None:
        if self._painter is not None:
            self._painter.forget()

    def set_title(self, title: str) -> None:
        self.write(f"\x1b]2;{title}\x07")

    def set_mouse(self, on: bool) -> None:
        """Report the mouse, or leave it to the terminal, so that text can be selected."""
        if on:
            self._mouse = True
            self._enable_mouse_support()
        else:
            self._disable_mouse_support()
            self._mouse = False
