"""The screen in a real terminal: what it leaves behind, what it sends, how it takes a resize."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator

import pytest
from terminal import HERE, Terminal

SCREEN = str(HERE / "screen_on_feed.py")

pytestmark = pytest.mark.real


@pytest.fixture
def opened() -> Iterator[type[Terminal]]:
    """Terminals that are closed at the end."""
    made: list[Terminal] = []

    class Closing(Terminal):
        def __init__(self, *argv: str, size: tuple[int, int] = (80, 24), **environment: str) -> None:
            super().__init__(*argv, size=size, **environment)
            made.append(self)

    yield Closing
    for terminal in made:
        terminal.close()


def is_whole(terminal: Terminal) -> None:
    """Off the alternate screen, cursor shown, modes off, and lines read with echo as before."""
    raw = terminal.raw.decode(errors="replace")
    for on, off in (
        ("\x1b[?1049h", "\x1b[?1049l"),
        ("\x1b[?25l", "\x1b[?25h"),
        ("\x1b[?2004h", "\x1b[?2004l"),
        ("\x1b[?1004h", "\x1b[?1004l"),
        ("\x1b[22;2t", "\x1b[23;2t"),
        ("\x1b[?7l", "\x1b[?7h"),
    ):
        assert raw.rindex(off) > raw.rindex(on), on
    after = raw[raw.rindex("\x1b[?1049l") :]
    assert not re.search(r"\x1b\[\d+;\d+H", after), "something was drawn on the shell's own screen"
    assert "after" in after


@pytest.mark.parametrize("way", ["q", "\x03", "\x1b[21~", signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=str)
def test_every_way_out_leaves_the_terminal_whole(opened: type[Terminal], way: str | int) -> None:
    terminal = opened(SCREEN)
    before = termios.tcgetattr(terminal.fd)[:4]
    terminal.wait_for("moe-30b-sw3")
    assert termios.tcgetattr(terminal.fd)[:4] != before
    terminal.keys(way) if isinstance(way, str) else terminal.signal(way)
    assert terminal.end() == (0 if isinstance(way, str) else 128 + way)
    is_whole(terminal)
    assert termios.tcgetattr(terminal.fd)[:4] == before


def test_a_terminal_that_went_away_ends_it(opened: type[Terminal]) -> None:
    terminal = opened(SCREEN)
    terminal.wait_for("moe-30b-sw3")
    pid = terminal.pid
    os.close(terminal.fd)
    terminal.fd = os.open(os.devnull, os.O_RDONLY)
    limit = time.monotonic() + 15
    while time.monotonic() < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            terminal.code = os.waitstatus_to_exitcode(status)
            return
        time.sleep(0.1)
    pytest.fail("it went on without a terminal")


def test_a_storm_of_resizes_ends_in_a_right_picture(opened: type[Terminal]) -> None:
    terminal = opened(SCREEN)
    terminal.wait_for("moe-30b-sw3")
    for step in range(30):
        terminal.resize(40 + step * 7 % 160, 8 + step * 5 % 50)
        terminal.read(0.03)
    terminal.resize(120, 36)
    terminal.until(lambda own: "q quit" in own.lines[35] and len(own.lines[0]) > 110)
    terminal.read(1.0)
    assert terminal.lines[2].lstrip().startswith("JOB")
    assert sum("moe-30b-sw3" in line for line in terminal.lines) == 2
    assert sum("q quit" in line for line in terminal.lines) == 1


def test_the_difference_driver_shows_what_textual_would(opened: type[Terminal]) -> None:
    """Each picture on the way is the same in an emulator, cell by cell, with and without the difference driver."""
    pictures = []
    for options in ([], ["--plain"]):
        terminal = opened(SCREEN, *options, "--still", size=(120, 36))
        terminal.wait_for("moe-30b-sw3")
        seen = []
        for keys in ("", "j", "2", "]", "3", "5", "?", "1", "z"):
            terminal.keys(keys)
            while terminal.read(1.0):
                pass
            seen.append([_cells(terminal, y) for y in range(36)])
        pictures.append(seen)
    for step, (ours, theirs) in enumerate(zip(*pictures, strict=True)):
        assert ours == theirs, f"step {step}"


def _cells(terminal: Terminal, y: int) -> list[tuple[object, ...]]:
    row = terminal.screen.buffer[y]
    cells = [row[x] for x in range(terminal.screen.columns)]
    return [(c.data, c.fg, c.bg, c.bold, c.reverse, c.underscore) for c in cells]


def test_steady_state_sends_little(opened: type[Terminal]) -> None:
    terminal = opened(SCREEN, size=(80, 24))
    terminal.wait_for("moe-30b-sw3")
    terminal.read(2.0)
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < 4:
        sent += len(terminal.read(0.5))
    assert 0 < sent / 4 <= 4000


def test_no_color_sends_no_colour(opened: type[Terminal]) -> None:
    terminal = opened(SCREEN, NO_COLOR="1")
    terminal.wait_for("moe-30b-sw3")
    for keys in ("2", "3", "4", "5", "?", "1", "/", "\x1b", ":", "\x1b"):
        terminal.keys(keys)
        terminal.read(0.6)
    for parameters in re.findall(rb"\x1b\[([\d;]*)m", terminal.raw):
        numbers = [int(number) for number in parameters.split(b";") if number]
        assert all(number < 30 for number in numbers), parameters
    assert b"\x1b[0;7m" in terminal.raw or b";7m" in terminal.raw or b"\x1b[7m" in terminal.raw


@pytest.mark.parametrize(("term", "allowed"), [("xterm-256color", b"5"), ("xterm", b"")])
def test_depths_send_only_what_they_have(opened: type[Terminal], term: str, allowed: bytes) -> None:
    terminal = opened(SCREEN, TERM=term, COLORTERM="")
    terminal.wait_for("moe-30b-sw3")
    terminal.read(1.0)
    kinds = set(re.findall(rb"[34]8;([25]);", terminal.raw))
    assert kinds == ({allowed} if allowed else set())


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not here")
class TestTmux:
    """In tmux: detach, attach at another size, and leave."""

    @pytest.fixture
    def tmux(self) -> Iterator[list[str]]:
        # a server of its own: the one before may still be on its way out
        command = ["tmux", "-L", f"bsmon-test-{uuid.uuid4().hex}", "-f", "/dev/null"]
        yield command
        subprocess.run([*command, "kill-server"], capture_output=True, check=False)

    def show(self, tmux: list[str]) -> str:
        return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout

    def wait(self, tmux: list[str], text: str) -> str:
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            if text in (shown := self.show(tmux)):
                return shown
            time.sleep(0.2)
        raise AssertionError(shown)

    @pytest.fixture
    def session(self, tmux: list[str]) -> list[str]:
        env = [f"-ePYTHONPATH={os.pathsep.join(sys.path)}", "-eLANG=C.UTF-8", "-eLINES=24", "-eCOLUMNS=80"]
        command = f"{sys.executable} {SCREEN}; sleep 60"
        subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", *env, command], check=True)
        self.wait(tmux, "q quit")
        return tmux

    def test_leave(self, session: list[str]) -> None:
        subprocess.run([*session, "send-keys", "q"], check=True)
        shown = self.wait(session, "after 0")
        assert shown.splitlines()[:2] == ["before", "after 0"]

    def test_the_shell_comes_back_though_make_waits_between(self, tmux: list[str]) -> None:
        env = [f"-ePYTHONPATH={os.pathsep.join(sys.path)}", "-eLANG=C.UTF-8"]
        subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", *env, "bash --norc -i"], check=True)
        self.wait(tmux, "bash")
        subprocess.run([*tmux, "send-keys", f"clear; sh -c '{sys.executable} {SCREEN}; true'", "Enter"], check=True)
        self.wait(tmux, "q quit")
        subprocess.run([*tmux, "send-keys", "C-z"], check=True)
        self.wait(tmux, "Stopped")
        subprocess.run([*tmux, "send-keys", "fg", "Enter"], check=True)
        self.wait(tmux, "q quit")
        subprocess.run([*tmux, "send-keys", "q"], check=True)
        self.wait(tmux, "after 0")

    def test_without_a_shell_behind_it_the_screen_stays(self, session: list[str]) -> None:
        subprocess.run([*session, "send-keys", "C-z"], check=True)
        self.wait(session, "no shell waits behind")

    def test_resize_though_the_environment_tells_another_size(self, session: list[str]) -> None:
        subprocess.run([*session, "resize-window", "-x", "120", "-y", "36"], check=True)
        assert "│" in self.wait(session, "STEP TIME")
