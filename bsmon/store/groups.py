"""Which processes are one job: equal ``hello.job``, unless the key was used again."""

from __future__ import annotations

from collections.abc import Iterable

from bsmon.store.process import Process


def group(processes: Iterable[Process]) -> dict[str, list[Process]]:
    """Jobs by id, each with its processes in the order of their start; ids stay with the processes.

    A process joins the first job of its key that is still running when it starts and has its rank free (a rank that
    was restarted takes the place of the one that ended). Otherwise it begins a job of its own: a run that was started
    again under the same key, or two at a time.
    """
    jobs: dict[str, list[list[Process]]] = {}
    for process in sorted(processes, key=lambda one: (one.hello.started, one.hello.session)):
        runs = jobs.setdefault(process.hello.job, [])
        home = next((run for run in runs if _joins(run, process)), None)
        if home is None:
            runs.append(home := [])
        home.append(process)
    taken = {process.job_id for runs in jobs.values() for run in runs for process in run if process.job_id}
    named: dict[str, list[Process]] = {}
    for key, runs in jobs.items():
        for run in runs:
            named[_identify(key, run, named, taken)] = run
    return named


def current(run: Iterable[Process], now: float) -> list[Process]:
    """The process that is each rank's newest at ``now``, in the order of ranks."""
    by_rank = {process.hello.rank: process for process in run if process.hello.started <= now}
    return [by_rank[rank] for rank in sorted(by_rank)]


def _joins(run: list[Process], process: Process) -> bool:
    start = process.hello.started
    active = [other for other in run if not other.over_before(start)]
    taken = any(other.hello.rank == process.hello.rank for other in active)
    return bool(active) and not taken and run[0].hello.world_size == process.hello.world_size


def _identify(key: str, run: list[Process], named: dict[str, list[Process]], taken: set[str]) -> str:
    """The id the run has had, else the key itself or, where that is taken, the key with a number."""
    known = next((process.job_id for process in run if process.job_id and process.job_id not in named), None)
    number = 1
    while known is None:
        candidate = key if number == 1 else f"{key}~{number}"
        known = candidate if candidate not in taken else None
        number += 1
    taken.add(known)
    for process in run:
        process.job_id = known
    return known
