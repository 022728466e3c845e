"""Finding trainings that have no agent: real processes with torch in them, and their relatives."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bsmon.sources.processes import unwatched

pytestmark = [
    pytest.mark.real,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]

# A training with a data loader's worker.
TRAINING = """
import os, time, torch
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
time.sleep(120)
"""


@pytest.fixture(scope="module")
def pids() -> Iterator[tuple[int, int]]:
    command = ["sh", "-c", '"$@" & wait', "sh", sys.executable, "-c", TRAINING, "--lr", "3e-4"]
    shell = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # between us, who may have torch, and it
    assert shell.stdout is not None
    trainer, worker = map(int, shell.stdout.readline().split())
    yield trainer, worker
    for pid in (worker, trainer):
        os.kill(pid, signal.SIGKILL)
    shell.communicate()


def test_a_training_without_an_agent_is_named_once_with_its_cure(pids: tuple[int, int]) -> None:
    found = {one.pid: one for one in unwatched(set())}
    trainer, worker = pids
    assert trainer in found and worker not in found
    assert "--lr 3e-4" in found[trainer].command
    assert found[trainer].cure.startswith("start it with `bsmon run") and "bsmon_agent.attach()" in found[trainer].cure


def test_one_with_an_agent_and_its_workers_are_left_out(pids: tuple[int, int]) -> None:
    trainer, worker = pids
    assert not {trainer, worker} & {one.pid for one in unwatched({trainer})}


def test_a_launcher_whose_child_has_an_agent_is_left_out(pids: tuple[int, int]) -> None:
    trainer, worker = pids
    assert not {trainer, worker} & {one.pid for one in unwatched({worker})}
