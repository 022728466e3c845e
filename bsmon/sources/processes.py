"""Training processes that have no agent: Python with torch's library in its memory."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import psutil
from msgspec import Struct

from bsmon.sources.decode import clean_text


class Unwatched(Struct):
    """A process that may be training and tells nothing, and what to do about it."""

    pid: int
    user: str
    started: float
    command: str
    cure: str


def unwatched(watched: Container[int]) -> list[Unwatched]:
    """Processes of this user that have loaded torch, less those with an agent (``watched``), and their relatives.

    A launcher whose child has an agent needs none, and a data loader's workers are no trainings of their own.
    """
    loaded = {process.pid: process for process in psutil.process_iter() if _maps_torch(process.pid)}
    covered = {pid for pid in loaded if pid in watched}
    for pid in list(covered):
        covered.update(_relatives(loaded[pid]))
    heads = [process for pid, process in loaded.items() if pid not in covered and _parent(process) not in loaded]
    return [shown for process in heads if (shown := _describe(process))]


def _maps_torch(pid: int) -> bool:
    """From the plain map: psutil reads smaps, for which the kernel walks all pages of a large process."""
    try:
        return "/libtorch_cpu.so" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False  # gone, or somebody else's


def _relatives(process: psutil.Process) -> set[int]:
    try:
        return {other.pid for other in (*process.parents(), *process.children(recursive=True))}
    except psutil.Error:
        return set()


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _describe(process: psutil.Process) -> Unwatched | None:
    try:
        with process.oneshot():
            words = process.cmdline()
            user, started = process.username(), process.create_time()
    except psutil.Error:
        return None
    command = clean_text(" ".join(words))
    return Unwatched(pid=process.pid, user=user, started=started, command=command, cure=_cure(words))


def _cure(words: list[str]) -> str:
    """The same command line with the agent in it, where it can be told."""
    python = bool(words) and Path(words[0]).name.startswith("python")
    again = clean_text(" ".join(words[1:] if python else ["--", *words]))
    return f"start it with `bsmon run {again}`, or add `import bsmon_agent; bsmon_agent.attach()` to it"
