"""``bsmon record``, ``bsmon replay``, ``bsmon report``: keep a run, watch it again, sum it up."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bsmon.commands.base import (
    NOTHING,
    UNAVAILABLE,
    WELL,
    CommandError,
    Parser,
    host_sources,
    readable,
    recording,
    refuse_sources,
    standing,
)
from bsmon.draw.header import plural
from bsmon.units import age, size

if TYPE_CHECKING:
    from types import FrameType

    from bsmon.services.recorder import Recorder

TELL_EVERY = 5.0  # seconds between two lines of progress …
FIRST_WORD = 1.0  # … and until the first
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
AGES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
LEAST_SIZE = 1 << 20  # bytes


def record(arguments: list[str]) -> int:
    parser = Parser(
        "bsmon record",
        description="Keep what the jobs of this host say in FILE, until ctrl+c or SIGTERM. A FILE that is there is "
        "continued; at half of its bounds it becomes FILE.1, which is a part of it, and what that was is gone.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="jobs elsewhere (default: those of this host)")
    parser.add_argument(
        "--max-size", type=_size, default="1G", metavar="N", help="bytes of both at most, as 500M (default 1G)"
    )
    parser.add_argument(
        "--max-age", type=_age, default="inf", metavar="T", help="as 12h: what is older goes (default: nothing)"
    )
    options = parser.parse_args(arguments)
    refuse_sources(options.sources)
    with _told_to_stop() as stop, readable(str(options.file)):
        recorder = _recorder(options)
        try:
            _tell(recorder, stop)
        finally:
            recorder.stop()
    return _sum_up(recorder)


def _recorder(options: argparse.Namespace) -> Recorder:
    from bsmon.services.recorder import Recorder

    try:
        recorder = Recorder(options.file, host_sources(), options.max_size, options.max_age)
    except BlockingIOError:
        raise CommandError(
            f"{options.file}: another `bsmon record` writes it; name another file", UNAVAILABLE
        ) from None
    try:
        recorder.start()
    except OSError as error:
        raise CommandError(f"{options.file}: {error.strerror}; nothing was recorded", UNAVAILABLE) from None
    return recorder


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Set by the signals that ask a program to end; what `nohup` shields from stays shielded."""
    stop = threading.Event()

    def told(number: int, frame: FrameType | None) -> None:
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] != signal.SIG_IGN:
            signal.signal(number, told)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(recorder: Recorder, stop: threading.Event) -> None:
    """Progress: on a terminal one line that is written over, elsewhere a line when there is news."""
    began, said, terminal = time.monotonic(), "", sys.stderr.isatty()
    while not stop.wait(TELL_EVERY if said else FIRST_WORD):
        into = f"{plural(recorder.jobs, 'job')} into {recorder.path}"
        news = f"bsmon record: {recorder.problem or into}"
        if terminal:
            grown = f"{size(recorder.size)}, {age(time.monotonic() - began)}"
            print(f"\r\033[K{news}, {grown}", end="", file=sys.stderr, flush=True)
        elif news != said:
            print(news, file=sys.stderr, flush=True)
        said = news
    if terminal:
        print(file=sys.stderr)


def _sum_up(recorder: Recorder) -> int:
    if recorder.lost:
        raise CommandError(f"{recorder.lost} events could not be written; the rest is in {recorder.path}", UNAVAILABLE)
    if not recorder.jobs:
        raise CommandError(
            f"no job was heard; {recorder.path} holds none (`bsmon doctor` looks for the cause)", NOTHING
        )
    print(
        f"bsmon record: {size(recorder.size)} in {recorder.path}; see `bsmon report {recorder.path}`", file=sys.stderr
    )
    return WELL


def replay(arguments: list[str]) -> int:
    from bsmon.commands.screen import add_screen, draw, has_screen

    parser = Parser("bsmon replay", description="The screen on a recording, from its beginning.")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="X", help="recorded seconds a second (default 1)")
    add_screen(parser)
    options = parser.parse_args(arguments)
    monitor = recording([options.file], options.speed)
    monitor.start()
    try:
        if has_screen():
            return draw(monitor, options)
        from bsmon.commands.observe import follow

        follow(monitor, every=0.5, over=lambda: monitor.over)
        return WELL
    finally:
        monitor.stop()


def report(arguments: list[str]) -> int:
    parser = Parser(
        "bsmon report", description="A recording in one text screen: did it run, how fast, what limited it."
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    from bsmon.report.morning import text
    from bsmon.services.review import review

    with readable(str(options.file)):
        night, alerts = review(options.file, _progress)
    _progress(None)
    print(text(night))
    return standing(alerts) if night.courses else NOTHING


def _progress(share: float | None) -> None:
    """One line that is written over on a terminal; elsewhere nothing."""
    if sys.stderr.isatty():
        said = "" if share is None else f"bsmon report: {share:.0%} read"
        print(f"\r\033[K{said}", end="", file=sys.stderr, flush=True)


def _size(text: str) -> float:
    value = _scaled(text, SIZES)
    if value < LEAST_SIZE:
        raise argparse.ArgumentTypeError(f"at least 1M, not {text!r}")
    return value


def _age(text: str) -> float:
    value = float("inf") if text == "inf" else _scaled(text, AGES)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1 second, not {text!r}")
    return value


def _speed(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"a number above 0, not {text!r}")
    return value


def _scaled(text: str, units: dict[str, int]) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]?)", text.lower())
    if found is None or found[2] not in units:
        raise argparse.ArgumentTypeError(f"a number and one of {' '.join(units).strip()}, not {text!r}")
    return float(found[1]) * units[found[2]]
