"""What the difference driver sends, cell by cell in an emulator, and that a slow terminal holds nothing up."""

from __future__ import annotations

import threading
import time

import pyte
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmon.tui.driver import Painter
from bsmon.tui.grid import Grid, blank, difference

WIDTH, HEIGHT = 24, 6
STYLES = ("", "1", "38;5;74", "1;38;2;213;94;0", "48;5;236", "7")


@st.composite
def drawings(draw) -> str:
    """What Textual writes: moves, styles, text, ends of lines."""
    parts = []
    for _ in range(draw(st.integers(1, 8))):
        y, x = draw(st.integers(1, HEIGHT)), draw(st.integers(1, WIDTH))
        text = draw(st.text(st.sampled_from("ab ⣿█│模"), max_size=WIDTH))
        style = draw(st.sampled_from(STYLES))
        room = WIDTH - x + 1
        while sum(2 if char == "模" else 1 for char in text) > room:
            text = text[:-1]
        parts.append(f"\x1b[{y};{x}H" + (f"\x1b[{style}m{text}\x1b[0m" if style else text))
    return "".join(parts)


def shown(screen: pyte.Screen) -> list[list[tuple[object, ...]]]:
    return [
        [(c.data, c.fg, c.bg, c.bold, c.reverse) for c in (screen.buffer[y][x] for x in range(WIDTH))]
        for y in range(HEIGHT)
    ]


def halves_are_whole(grid: Grid) -> bool:
    """Whether no wide character was cut in two, which terminals answer in ways of their own."""
    for row in grid.rows:
        for x, (char, _) in enumerate(row):
            wide = char == "模"
            follows = x + 1 < len(row) and row[x + 1][0] == ""
            if wide != follows or (char == "" and (x == 0 or row[x - 1][0] != "模")):
                return False
    return True


@settings(max_examples=200, deadline=None)
@given(st.lists(drawings(), min_size=1, max_size=5))
def test_differences_add_up_to_the_same_picture(frames: list[str]) -> None:
    direct, ours = pyte.Screen(WIDTH, HEIGHT), pyte.Screen(WIDTH, HEIGHT)
    one, other = pyte.Stream(direct), pyte.Stream(ours)
    grid, sent = Grid(WIDTH, HEIGHT), blank(WIDTH, HEIGHT)
    for frame in frames:
        one.feed(frame)
        assert grid.feed(frame) == ""
        if not halves_are_whole(grid):
            return
        other.feed(difference(sent, grid.rows))
        sent = grid.copy()
        assert shown(ours) == shown(direct)


def test_nothing_new_sends_nothing() -> None:
    grid = Grid(WIDTH, HEIGHT)
    grid.feed("\x1b[1;1Hhello\x1b[2;1H\x1b[1mworld\x1b[0m")
    assert difference(grid.copy(), grid.copy()) == ""


def test_one_changed_digit_sends_one_cell() -> None:
    grid = Grid(WIDTH, HEIGHT)
    grid.feed("\x1b[1;1H12:00:01")
    before = grid.copy()
    grid.feed("\x1b[1;1H12:00:02")
    assert difference(before, grid.rows) == "\x1b[1;8H2"


def test_what_is_no_drawing_is_passed_on_in_order() -> None:
    grid = Grid(WIDTH, HEIGHT)
    modes = "\x1b[?1049h\x1b[?25l\x1b[>25u\x1b]52;c;aGk=\x07\x1b[?2048$p\x07"
    assert grid.feed(f"\x1b[?2026h\x1b[1;1Htext{modes}\x1b[?2026l") == modes
    assert grid.synchronised
    assert grid.rows[0][0] == ("t", "")


class Slow:
    """A terminal that takes a while for each write."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.writes: list[str] = []
        self.wrote = threading.Event()

    def __call__(self, data: bytes) -> None:
        time.sleep(self.seconds)
        self.writes.append(data.decode())
        self.wrote.set()


def test_a_slow_terminal_gets_the_latest_state_and_never_blocks() -> None:
    slow = Slow(0.3)
    painter = Painter(slow, (WIDTH, HEIGHT))
    painter.start()
    painter.write("\x1b[?1049h")
    began = time.monotonic()
    for number in range(200):
        painter.write(f"\x1b[1;1Hstate {number:03}")
    assert time.monotonic() - began < 0.25
    time.sleep(1.2)
    painter.stop()
    screen = pyte.Screen(WIDTH, HEIGHT)
    pyte.Stream(screen).feed("".join(slow.writes))
    assert len(slow.writes) <= 5
    assert screen.display[0].rstrip() == "state 199"


def test_nothing_is_drawn_before_or_after_the_alternate_screen() -> None:
    slow = Slow(0.0)
    painter = Painter(slow, (WIDTH, HEIGHT))
    painter.start()
    painter.write("\x1b[1;1Hearly")
    time.sleep(0.3)
    assert "early" not in "".join(slow.writes)
    painter.write("\x1b[?1049h\x1b[2;1Hinside")
    time.sleep(0.3)
    painter.write("\x1b[3;1Hlate\x1b[?1049l")
    painter.stop()
    text = "".join(slow.writes)
    assert "inside" in text
    assert "late" not in text
    assert text.endswith("\x1b[?1049l")


def test_a_terminal_that_is_gone_is_given_up() -> None:
    def gone(data: bytes) -> None:
        raise OSError("gone")

    painter = Painter(gone, (WIDTH, HEIGHT))
    painter.start()
    painter.write("\x1b[?1049h")
    began = time.monotonic()
    painter.stop()
    painter.write("more")
    assert time.monotonic() - began < 1.0
