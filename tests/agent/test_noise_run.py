"""The noise scale of a script that knows nothing of bsmon, through `bsmon run` and `bsmon snapshot`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.real, pytest.mark.timeout(400)]

DATA = Path(__file__).parents[1] / "data" / "noise"
BSMON = [sys.executable, "-m", "bsmon"]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Every step measured, in a runtime directory of its own."""
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as folder:
        yield {**os.environ, "BSMON_DIR": folder, "BSMON_BUDGET": "1"}


def noise_of(environment: dict[str, str]) -> dict[str, Any] | None:
    found = subprocess.run([*BSMON, "snapshot", "--json"], env=environment, capture_output=True, text=True, check=False)
    jobs = json.loads(found.stdout)["jobs"] if found.stdout else []
    return jobs[0]["noise"] if jobs and jobs[0]["state"] == "live" else None


def measured(environment: dict[str, str], options: list[str], steps: int) -> dict[str, Any]:
    """The view as soon as so many steps were measured."""
    script = [*BSMON, "run", str(DATA / "train_frozen.py"), str(DATA / "checkpoint_300.pt"), *options]
    training = subprocess.Popen(script, env=environment, stdout=subprocess.DEVNULL)
    try:
        while training.poll() is None:
            found = noise_of(environment)
            if found and (found["steps_measured"] or 0) >= steps:
                return found
            time.sleep(0.5)
    finally:
        training.terminate()
        training.wait()
    raise AssertionError(f"the training ended before {steps} steps were measured")


@pytest.mark.parametrize(
    ("options", "steps", "error"),
    [([], 128, 0.15), (["--clip", "0.1", "--scale", "1024", "--sum"], 64, 0.2)],
    ids=["plain", "scaled, summed and clipped"],
)
def test_a_plain_script(environment: dict[str, str], options: list[str], steps: int, error: float) -> None:
    known = json.loads((DATA / "truth.json").read_text())["checkpoints"]["300"]
    found = measured(environment, ["--steps", "5000", *options], steps)
    assert found["state"] == "number"
    assert found["phi"] == pytest.approx(known["phi_at_batch_32"], rel=error)
    assert found["b_noise_sequences"] == pytest.approx(known["b_simple_sequences"], rel=error)
    assert found["b_noise_tokens"] == pytest.approx(found["b_noise_sequences"] * 64)
    assert (found["estimator"], found["coverage"]) == ("accumulation", 1.0)
    if not options:
        assert found["noise"] * 32 == pytest.approx(known["trace_sigma"], rel=0.10)
