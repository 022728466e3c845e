"""The screen, and the demo under it; where there is no terminal to draw on, the same as plain lines."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from bsmon.commands.base import DATA, UNAVAILABLE, CommandError, Parser, add_sources, watching
from bsmon.draw.look import GLYPH_NAMES

if TYPE_CHECKING:
    from bsmon.demo.start import Training
    from bsmon.services.monitor import Monitor

INSTALL = "pip install 'bsmon[demo]'"


def add_screen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--glyphs", choices=GLYPH_NAMES, default="braille", help="of charts (default %(default)s)")
    parser.add_argument("--whole", action="store_true", help="send whole regions to the terminal, not what changed")


def screen(arguments: list[str]) -> int:
    parser = Parser("bsmon", description="The screen, on every job found on this host, or on a recording.")
    add_screen(parser)
    add_sources(parser)
    options = parser.parse_args(arguments)
    if not has_screen():
        from bsmon.commands import observe

        return observe.snapshot(["--", *options.sources])
    with watching(options.sources, log=True) as monitor:
        return draw(monitor, options)


def demo(arguments: list[str]) -> int:
    parser = Parser("bsmon demo", description="Two small real trainings on this CPU, and the screen on them.")
    parser.add_argument("--steps", type=_count, help="optimizer steps of each (default: as long as you look)")
    add_screen(parser)
    options = parser.parse_args(arguments)
    _check_demo()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    from bsmon.demo.start import FailedError, trainings, wait_until_up

    try:
        with trainings(options.steps) as started:
            wait_until_up(started, _progress)
            _progress("")
            code = _show_demo(options, started)
            _progress("ending the trainings …")
        _progress("")
        return code
    except FailedError as error:
        _progress("")
        raise CommandError(str(error), UNAVAILABLE) from None


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Asked to end: by the front door, which ends the trainings too."""
    raise SystemExit(128 + number)


def _count(text: str) -> int:
    value = int(text)
    if value < 2:  # a learning-rate schedule of one step has no slope
        raise argparse.ArgumentTypeError("at least 2")
    return value


def _check_demo() -> None:
    if importlib.util.find_spec("torch") is None:
        raise CommandError(f"the demo trains with torch, which is not here; get it with\n    {INSTALL}", UNAVAILABLE)
    if os.environ.get("BSMON") == "0":
        raise CommandError("BSMON=0 keeps the agent out of every training, the demo's too; unset it", UNAVAILABLE)


def _progress(text: str) -> None:
    """One line that is written over on a terminal; elsewhere nothing."""
    if sys.stderr.isatty():
        print(f"\r\033[K{'bsmon demo: ' if text else ''}{text}", end="", file=sys.stderr, flush=True)


def has_screen() -> bool:
    """Whether there is a terminal to draw on: keys come from stdin, and Textual draws on stderr."""
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return terminal and os.environ.get("TERM", "dumb") != "dumb"


def draw(monitor: Monitor, options: argparse.Namespace) -> int:
    """The screen until it is left."""
    from bsmon.tui.app import run

    return run(monitor, glyphs=options.glyphs, differences=not options.whole)


def _show_demo(options: argparse.Namespace, trainings: list[Training]) -> int:
    if has_screen():
        with watching(log=True) as monitor:
            return draw(monitor, options)
    from bsmon.commands import observe

    with watching() as monitor:
        observe.follow(monitor, every=2.0, over=lambda: all(one.process.poll() is not None for one in trainings))
    failed = [one for one in trainings if one.process.returncode]
    if failed:
        raise CommandError(f"{failed[0].name} ended with {failed[0].process.returncode}:\n{failed[0].tail()}", DATA)
    return 0
