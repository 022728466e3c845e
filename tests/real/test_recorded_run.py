"""A real training, recorded by a real recorder that is killed and begun again: it tells what the live jobs told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.torch]

SCRIPT = """
import pathlib, sys, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(32, 16), nn.Flatten(), nn.Linear(256, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(4000):
    tokens = torch.randint(0, 32, (4, 16))
    nn.functional.cross_entropy(model(tokens), tokens[:, 0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    if pathlib.Path("stop").exists():
        sys.exit(3)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        yield Path(folder)


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bsmon", *arguments]
        begun.append(subprocess.Popen(command, cwd=place, env=environment(place), stderr=subprocess.PIPE, text=True))
        return begun[-1]

    yield begin
    for one in begun:
        one.kill()
        one.communicate()


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "BSMON_DIR": str(place / "run"), "OMP_NUM_THREADS": "1"}


def bsmon(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bsmon", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment(place), cwd=place
    )


def job(place: Path, *source: str) -> dict[str, Any]:
    done = bsmon(place, "snapshot", "--json", "--job", place.name, *source)
    (found,) = json.loads(done.stdout)["jobs"] if done.stdout else ({},)
    return dict(found)


def until(condition: Callable[[], Any], seconds: float = 40.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)
    return found


def test_a_recorded_run_is_the_run(place: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    training = start("run", "--python", sys.executable, "--name", place.name, "train.py")
    first = start("record", "a.bsm")
    until(lambda: (place / "a.bsm").exists() and (job(place, "a.bsm").get("step") or 0) > 20)
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    before = job(place, "a.bsm")["step"]
    second = start("record", "a.bsm")
    until(lambda: job(place, "a.bsm")["step"] > before + 50)
    (place / "stop").touch()
    assert training.wait(20) == 3
    until(lambda: job(place, "a.bsm")["state"] == "finished")
    live = job(place)
    second.send_signal(signal.SIGTERM)
    said = second.communicate(timeout=20)[1]
    assert second.returncode == 0, said

    kept = job(place, "a.bsm")
    same = ("id", "name", "state", "exit_code", "started", "step", "batch", "model", "world_size", "dropped_records")
    assert {name: kept[name] for name in same} == {name: live[name] for name in same}
    assert kept["loss"] == pytest.approx(live["loss"]) and kept["dropped_records"] == 0
    assert kept["step"] > before

    report = bsmon(place, "report", "a.bsm")
    told = report.stdout[report.stdout.index(place.name) :].split("\n\n")[0]
    assert report.returncode == 2
    assert "ended with exit code 3" in told and "cut off" not in report.stdout and "damage" not in report.stdout
    rate = re.search(r"([\d.]+)(k?) tok/s in the median", told)
    assert rate is not None
    assert 200 < float(rate[1]) * (1000 if rate[2] else 1) < 64 / 0.02, "64 tokens a step that lasts over 20 ms"
    assert f"{kept['step']:,}, loss" in told
