"""GPUs as the commands show them, with the scripted library under the real bindings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from test_nvml import A100, H100

Told = tuple[int, dict[str, Any]]


@pytest.fixture
def bsmon(library: Path, tmp_path: Path) -> Any:
    scenario = tmp_path / "scenario"
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as directory:
        surroundings = {"NVML_SCENARIO": str(scenario), "LD_LIBRARY_PATH": str(library), "BSMON_DIR": directory}

        def run(text: str, *arguments: str) -> Told:
            scenario.write_text(text)
            done = subprocess.run(
                [sys.executable, "-m", "bsmon", *arguments, "--json"],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
                env={**os.environ, **surroundings},
            )
            return done.returncode, json.loads(done.stdout)

        yield run


def test_a_snapshot_has_every_gpu_even_what_takes_two_samples(bsmon: Any) -> None:
    _, found = bsmon(H100, "snapshot")
    (gpu,) = found["gpus"]
    assert (gpu["utilization"], gpu["power_w"], gpu["sm_active"]) == (0.97, 651.25, 0.615)
    assert not any(path.startswith("gpus.") for path in found["unavailable"])


def test_what_a_gpu_does_not_give_has_its_reason_by_path(bsmon: Any) -> None:
    _, found = bsmon(A100, "snapshot")
    assert found["gpus"][0]["tensor_active"] is None
    assert "Hopper" in found["unavailable"]["gpus.0.tensor_active"]


def test_without_a_driver_the_reason_stands_for_all(bsmon: Any) -> None:
    _, found = bsmon("driver !9\n", "snapshot")
    assert found["gpus"] == [] and "modprobe" in found["unavailable"]["gpus"]


def test_the_doctor_names_driver_and_gpu_and_what_is_missing(bsmon: Any) -> None:
    _, told = bsmon(A100, "doctor")
    (gpu,) = [finding for finding in told["findings"] if finding["area"] == "gpus"]
    assert gpu["state"] == "ok" and "A100" in gpu["found"] and "570.86.15" in gpu["found"]
    assert "not given: dram_active, sm_active, tensor_active" in gpu["found"]


def test_the_doctor_has_the_cure(bsmon: Any) -> None:
    _, told = bsmon("driver !18\n", "doctor")
    (gpu,) = [finding for finding in told["findings"] if finding["area"] == "gpus"]
    assert "reboot" in gpu["cure"]
