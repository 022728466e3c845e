"""Starts the two trainings through the agent's launcher, and sees to it that none outlives who started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bsmon.sources.decode import RefusedError
from bsmon.sources.discovery import read
from bsmon_agent import wire

TRAININGS = {"demo-dense": "bsmon.demo.dense", "demo-moe": "bsmon.demo.moe"}
PR_SET_PDEATHSIG = 1  # linux/prctl.h
NICE = 10  # the user's own work goes first
BUDGET = "0.05"  # of the step time, for the agent: a demo is looked at for minutes, and so sampled more often
GRACE = 5.0  # seconds from the request to stop until it is enforced
UP_WITHIN = 120.0  # seconds; importing torch from a cold disk takes long
TAIL = 15  # lines of its output shown when a training fails


@dataclass
class Training:
    """One of them: its process, and the file that takes what it prints."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path
    began: int | None  # as wire.process_start tells it

    @property
    def up(self) -> bool:
        """Its agent is heard of: the screen has something to show."""
        return any(self._entry(directory) for directory in wire.runtime_directories())

    def _entry(self, directory: Path) -> bool:
        try:
            found = read(directory / f"{self.process.pid}.json").entry
        except (OSError, RefusedError):
            return False
        return found.pid_start == self.began

    def tail(self) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-TAIL:])


class FailedError(Exception):
    """A training did not come to train; the text has its last words."""


@contextmanager
def trainings(steps: int | None = None) -> Iterator[list[Training]]:
    """Both running while the block does. They also end when this process is killed."""
    with tempfile.TemporaryDirectory(prefix="bsmon-demo-") as folder:
        started: list[Training] = []
        try:
            for name, module in TRAININGS.items():
                started.append(_start(name, module, steps, Path(folder)))
            yield started
        finally:
            stop(started)


def _start(name: str, module: str, steps: int | None, folder: Path) -> Training:
    command = [sys.executable, "-m", "bsmon_agent.launch", "--name", name, "-m", module]
    if steps is not None:
        command += ["--steps", str(steps)]
    output = folder / f"{name}.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={"BSMON_BUDGET": BUDGET, **os.environ},
            preexec_fn=_leash(),
        )
    return Training(name, process, output, wire.process_start(process.pid))


def _leash() -> Callable[[], None]:
    """What the child does before it becomes the training: it asks to be killed when its parent dies."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def hold() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.nice(NICE)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return hold


def stop(started: list[Training]) -> None:
    for training in started:
        training.process.terminate()
    deadline = time.monotonic() + GRACE
    for training in started:
        try:
            training.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            training.process.kill()
            training.process.wait()


def wait_until_up(started: list[Training], tell: Callable[[str], None]) -> None:
    """Return when every training is heard of; raises FailedError, with its last words, if one ends before."""
    begun = time.monotonic()
    while not all(training.up for training in started):
        for training in started:
            code = training.process.poll()
            if code is not None and not training.up:
                raise FailedError(f"{training.name} ended with {code} and was never heard of:\n{training.tail()}")
        waited = time.monotonic() - begun
        if waited > UP_WITHIN:
            raise FailedError(f"no word from the trainings in {UP_WITHIN:.0f} s:\n{started[0].tail()}")
        names = ", ".join(training.name for training in started if not training.up)
        tell(f"starting {names} (importing torch) … {waited:.0f} s")
        time.sleep(0.1)
