"""An unchanged training script under ``bsmon run``, seen by the commands for scripts: the numbers are its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.torch]

# 3 micro-batches of 4 sequences of 16 tokens to an optimizer step; an evaluation in between; ends when told to.
SCRIPT = """
import json, pathlib, sys, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
here = pathlib.Path(sys.argv[1])
model = nn.Sequential(nn.Embedding(32, 16), nn.Flatten(), nn.Linear(256, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.utils.data.TensorDataset(torch.randint(0, 32, (1200, 16)), torch.randint(0, 32, (1200,)))
step, losses = 0, []
while not (here / "stop").exists() and step < 2000:
    batches = iter(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
    for _ in range(100):
        total = 0.0
        for _ in range(3):
            tokens, target = next(batches)
            loss = nn.functional.cross_entropy(model(tokens), target) / 3
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        losses.append(total)
        if (here / "stop").exists():
            break
        time.sleep(0.01)
    with torch.no_grad():
        model(data.tensors[0][:64])
json.dump({"step": step, "loss": losses[-1], "norm": norm.item()}, (here / "told").open("w"))
print("out of", *sys.argv[2:])
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        yield Path(folder)


@pytest.fixture
def train(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(code: int = 0, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bsmon", "run", "--python", sys.executable, "--name", place.name, *options]
        process = subprocess.Popen(
            [*command, "train.py", ".", str(code)], cwd=place, env=environment(place), stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for one in started:
        one.kill()
        one.communicate()


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "BSMON_DIR": str(place / "run"), "OMP_NUM_THREADS": "1"}


def bsmon(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bsmon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment(place))


def seen(place: Path, wait: float = 0.0) -> dict[str, Any] | None:
    """Our job in a snapshot, with its own part of ``unavailable``."""
    done = bsmon(place, "snapshot", "--json", "--job", place.name, "--wait", str(wait))
    if not done.stdout:
        return None
    whole = json.loads(done.stdout)
    (job,) = whole["jobs"]
    job["unavailable"] = {path: why for path, why in whole["unavailable"].items() if path.startswith("jobs.0.")}
    return job


def until(condition: Callable[[], Any], seconds: float = 40.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)
    return found


def test_the_numbers_are_the_trainings_own(place: Path, train: Callable[..., subprocess.Popen[str]]) -> None:
    process = train(0)
    live = until(lambda: (job := seen(place, 5)) and (job["step"] or 0) > 40 and job)
    assert live["state"] == "live"
    assert (live["ranks"][0]["pid"], live["source"], live["optimizer"]) == (process.pid, "live", "SGD")
    batch = {"micro": 4, "accumulation": 3, "data_parallel": 1, "global_samples": 12, "global_tokens": 192}
    assert {name: live["batch"][name] for name in batch} == batch
    assert live["batch"]["sequence_length"] == 16
    assert live["model"]["parameters"] == 32 * 16 + 256 * 32 + 32
    assert live["learning_rate"] == pytest.approx(0.05)
    assert live["tokens_per_s"] == pytest.approx(192 / live["step_time_s"]["median"], rel=0.5)
    assert live["samples_per_s"] == pytest.approx(live["tokens_per_s"] / 16)
    assert live["step_time_s"]["median"] > 0.01
    phases = live["phases_s"]
    assert all(phases[name] > 0 for name in ("data_wait", "forward", "backward", "optimizer", "other"))
    assert phases["other"] > 0.009  # the sleep is none of the phases
    assert live["dropped_records"] == 0
    assert live["overhead"]["us_per_step"] > 0
    assert live["moe"] is None and live["unavailable"]["jobs.0.moe"]
    assert live["eta_s"] is None and "total_steps" in live["unavailable"]["jobs.0.eta_s"]

    check_text(place)
    (place / "stop").touch()
    assert process.communicate(timeout=30)[0] == "out of 0\n"
    assert process.returncode == 0
    told = json.loads((place / "told").read_text())
    ended = seen(place)
    assert ended is not None
    assert (ended["state"], ended["exit_code"], ended["step"]) == ("finished", 0, told["step"])
    assert ended["loss"] == pytest.approx(told["loss"], rel=1e-5)
    assert ended["grad_norm"] == pytest.approx(told["norm"], rel=1e-5)
    assert ended["tokens_per_s"] is None


def line_with(lines: Iterable[str] | None, text: str) -> str:
    """The first line that has the text; jobs that are not ours may come between."""
    assert lines is not None
    return next(line for line in lines if text in line)


def check_text(place: Path) -> None:
    """What people read of it, through a pipe."""
    table, jobs, detail = (
        bsmon(place, *command) for command in (["snapshot"], ["jobs"], ["snapshot", "--job", place.name])
    )
    assert any(place.name in line and "k" in line for line in table.stdout.splitlines()[1:])
    assert any(place.name in line and "live" in line for line in jobs.stdout.splitlines()[1:])
    assert "4 micro x 3 accumulation x 1 DP = 12 samples" in detail.stdout
    for done in (table, jobs, detail):
        assert "\x1b" not in done.stdout
        assert done.stderr == ""


def test_an_exit_code_passes_through_and_stays_to_be_seen(
    place: Path, train: Callable[..., subprocess.Popen[str]]
) -> None:
    process = train(5)
    until(lambda: (job := seen(place, 5)) and job["step"])
    watch = subprocess.Popen(
        [sys.executable, "-m", "bsmon", "watch", "--every", "0.2"],
        env=environment(place),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "step" in line_with(watch.stdout, place.name)
    (place / "stop").touch()
    assert process.wait(30) == 5
    assert "exit code 5" in line_with(watch.stdout, f"{place.name}  live ->")
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=10)
    ended = bsmon(place, "snapshot", "--json", "--job", place.name)
    job = json.loads(ended.stdout)["jobs"][0]
    assert (job["state"], job["exit_code"]) == ("finished", 5)
    assert ended.returncode == 2  # a run that failed is worth waking somebody for


def test_a_killed_training_is_lost(place: Path, train: Callable[..., subprocess.Popen[str]]) -> None:
    process = train(0)
    until(lambda: (job := seen(place, 5)) and job["step"])
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    job = seen(place)
    assert job is not None
    assert (job["state"], job["exit_code"], job["tokens_per_s"]) == ("lost", None, None)
