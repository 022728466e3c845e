"""``bsmon snapshot``, ``bsmon watch``, ``bsmon jobs``: the same state as on the screen, for scripts and for reading."""

from __future__ import annotations

import json
import select
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from bsmon.commands.base import (
    NOTHING,
    WELL,
    CommandError,
    Parser,
    add_sources,
    seconds,
    settle,
    standing,
    watching,
)

if TYPE_CHECKING:
    from bsmon.model import Job, Snapshot
    from bsmon.services.monitor import Monitor

STDOUT = 1
EVERY = 2.0  # seconds between two looks
TICK = 0.25  # seconds
LAST_WORDS = 1.0  # seconds until the end of a process has been seen


def snapshot(arguments: list[str]) -> int:
    parser = Parser("bsmon snapshot", description="The present state once, as a table or JSON.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--wait", type=seconds, metavar="S", help="until every job found has a step, at most S seconds")
    parser.add_argument("--job", metavar="ID", help="everything about this job (its id or name)")
    add_sources(parser)
    options = parser.parse_args(arguments)
    with watching(options.sources) as monitor:
        settle(monitor, options.wait)
        found, looked_at = monitor.snapshot(), monitor.looked_at()
    if options.job is not None:
        found = only(found, options.job)
    if options.json:
        from bsmon.report.json import document

        print(document(found))
    else:
        _print_table(found, looked_at, detailed=options.job is not None)
    return standing(found.alerts) if found.jobs else NOTHING


def only(found: Snapshot, wanted: str) -> Snapshot:
    """The snapshot of one job, with its alerts."""
    jobs = [job for job in found.jobs if wanted in (job.id, job.name)]
    if not jobs:
        names = ", ".join(f"{job.name} ({job.id})" for job in found.jobs) or "none"
        raise CommandError(f"no job {wanted}; found: {names}", NOTHING)
    ids = {job.id for job in jobs}
    alerts = [alert for alert in found.alerts if alert.job in ids]
    return msgspec.structs.replace(found, jobs=jobs, alerts=alerts)


def _print_table(found: Snapshot, looked_at: list[str], detailed: bool) -> None:
    from bsmon.report import plain

    if not found.jobs:
        print(plain.nothing(looked_at, _width()), file=sys.stderr)
    elif detailed:
        print("\n\n".join(plain.detail(found, job, _width()) for job in found.jobs))
    else:
        print(plain.fleet(found, _width()))


def _width() -> int:
    """Of the terminal; of a pipe or file, as wide as reads well."""
    from bsmon.report.plain import WIDTH

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def watch(arguments: list[str]) -> int:
    parser = Parser("bsmon watch", description="A line per change, or JSON lines; until ctrl+c, or a recording's end.")
    parser.add_argument("--json", action="store_true", help="a snapshot a line")
    parser.add_argument(
        "--every", type=seconds, default=EVERY, metavar="S", help=f"seconds between (default {EVERY:g})"
    )
    add_sources(parser)
    options = parser.parse_args(arguments)
    with watching(options.sources) as monitor:
        follow(monitor, options.every, options.json, over=lambda: monitor.over)
    return WELL


def follow(monitor: Monitor, every: float, as_json: bool = False, over: Callable[[], bool] = lambda: False) -> None:
    """Print until it is over: a snapshot a line, or what has changed since the last lines."""
    from bsmon.report.changes import Changes
    from bsmon.report.json import line

    changes, printed = Changes(), -1
    settle(monitor)
    while True:
        ended = over()
        if ended:
            time.sleep(LAST_WORDS)
        monitor.tick()
        found, revision = monitor.snapshot(), monitor.revision
        if revision != printed:
            for text in [line(found)] if as_json else changes.lines(found):
                print(text, flush=True)
        if ended:
            return
        printed = revision
        _wait(monitor, every, over)


def _wait(monitor: Monitor, every: float, over: Callable[[], bool]) -> None:
    """Let time pass; the monitor goes on thinking, so that what is short is not missed."""
    until = time.monotonic() + max(every, 0.1)
    output = select.poll()
    output.register(STDOUT, 0)
    while (left := until - time.monotonic()) > 0 and not over():
        time.sleep(min(left, TICK))
        if any(event & select.POLLERR for _, event in output.poll(0)):
            raise BrokenPipeError  # the reader left; the next line, which would tell, may be hours away
        monitor.tick()


def jobs(arguments: list[str]) -> int:
    parser = Parser("bsmon jobs", description="The jobs found, and training processes that have no agent yet.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    from bsmon.report import plain
    from bsmon.sources.processes import unwatched

    with watching() as monitor:
        settle(monitor)
        found, looked_at = monitor.snapshot(), monitor.looked_at()
    others = unwatched({rank.pid for job in found.jobs for rank in job.ranks if rank.host == found.host})
    if options.json:
        shown = {"schema": 1, "jobs": [_brief(job) for job in found.jobs], "without_agent": msgspec.to_builtins(others)}
        print(json.dumps(shown, indent=1))
    elif found.jobs:
        print(plain.listing(found, _width()))
    else:
        print(plain.nothing(looked_at, _width()), file=sys.stderr)
    if not options.json:
        for one in others:
            print(f"without an agent: pid {one.pid}  {one.command[:200]}\n    {one.cure}")
    return WELL if found.jobs else NOTHING


def _brief(job: Job) -> dict[str, Any]:
    ranks = [{"rank": rank.rank, "pid": rank.pid, "host": rank.host, "state": rank.state} for rank in job.ranks]
    shown = {name: getattr(job, name) for name in ("id", "name", "state", "host", "source", "step", "started")}
    return {**shown, "world_size": job.world_size, "ranks": ranks}
