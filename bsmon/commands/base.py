"""What the commands share: exit codes, a parser that keeps to them, and a monitor that has looked once."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from bsmon import __version__

if TYPE_CHECKING:
    from bsmon.model import Alert
    from bsmon.services.monitor import Monitor
    from bsmon.services.replay import Replay
    from bsmon.sources.base import Source

WELL, WARNING, CRITICAL, NOTHING = 0, 1, 2, 3
USAGE, DATA, UNAVAILABLE, INTERNAL, FORBIDDEN = 64, 65, 69, 70, 77
INTERRUPTED, PIPE_CLOSED = 128 + 2, 128 + 13

LOOK = 0.05  # seconds between two looks at whether they have


class CommandError(Exception):
    """A command that can't go on: what is wrong and what to do about it, and the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Parser(argparse.ArgumentParser):
    """Exits with 64 on a wrong command line: 2 means that a critical alert stands."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\n{self.format_usage()}")


def seconds(text: str) -> float:
    """An argument that is a length of time; raises what argparse reports."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of seconds, 0 or more, not {text!r}")
    return value


def add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="a recording (default: the jobs of this host)")


def refuse_sources(sources: list[str]) -> None:
    """Only this host can be looked at so far."""
    if sources:
        raise CommandError(
            f"{sources[0]}: bsmon {__version__} watches only the host it runs on; leave the source out there",
            UNAVAILABLE,
        )


@contextmanager
def watching(sources: Sequence[str] = (), log: bool = False) -> Iterator[Monitor]:
    """A monitor on this host's jobs and GPUs, or on a recording; ``log``: what is live keeps the alert log."""
    monitor = recording(sources) if sources else _live(log)
    monitor.start()
    try:
        yield monitor
    finally:
        monitor.stop()


def recording(sources: Sequence[str], speed: float | None = None) -> Replay:
    """A monitor on the one recording that the sources are."""
    from bsmon.services.replay import Replay

    refuse_sources([source for source in sources if "://" in source])
    if len(sources) > 1:
        raise CommandError(f"{sources[1]}: one recording at a time; leave the others out", USAGE)
    with readable(sources[0]):
        return Replay(Path(sources[0]), speed)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Says what is wrong with a file that should be a recording; without permission is a matter of its own."""
    from bsmon.sources.decode import RefusedError

    try:
        yield
    except RefusedError as error:
        raise CommandError(str(error), DATA) from None
    except PermissionError:
        raise
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}", DATA) from None


def _live(log: bool) -> Monitor:
    from bsmon.services.alert_log import AlertLog
    from bsmon.services.keeper import Keeper
    from bsmon.services.monitor import Monitor

    return Monitor(host_sources(), alert_log=AlertLog() if log else None, keeper=Keeper(host_sources))


def host_sources() -> list[Source]:
    """This host's jobs and GPUs."""
    from bsmon.sources.live import LiveSource
    from bsmon.sources.nvml import NvmlSource

    return [LiveSource(), NvmlSource()]


def settle(monitor: Monitor, wait: float | None = None) -> None:
    """Until the sources have told what they know; with ``wait``, until every job found has a step as well."""
    from bsmon.services.monitor import VIEW_EVERY

    until = time.monotonic() + (monitor.patience if wait is None else wait)
    while not (monitor.settled and (wait is None or _all_stepped(monitor))) and time.monotonic() < until:
        time.sleep(LOOK)
        monitor.tick()
    time.sleep(VIEW_EVERY)
    monitor.tick()  # with all that has come


def _all_stepped(monitor: Monitor) -> bool:
    jobs = monitor.snapshot().jobs
    return bool(jobs) and all(job.step is not None for job in jobs)


def standing(alerts: list[Alert]) -> int:
    """The exit code for the worst alert that stands."""
    severities = {alert.severity for alert in alerts if alert.state != "cleared"}
    return CRITICAL if "crit" in severities else WARNING if "warn" in severities else WELL
