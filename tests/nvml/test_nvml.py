"""The NVML source on scripted GPUs: every figure on its own, and a reason with its cure for what can't be had."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

H100 = """\
version 570.86.15
gpus 1
gpu0.uuid GPU-8f2b1c44-0000-4000-8000-00000000beef
gpu0.name NVIDIA H100 80GB HBM3
gpu0.utilization 97
gpu0.memory_total 85520809984
gpu0.memory_used 42949672960
gpu0.temperature 64
gpu0.power 651250
gpu0.power_limit 700000
gpu0.sm_clock 1755
gpu0.throttle 4
gpu0.energy 123456789
gpu0.gpm 1
gpu0.gpm2 61.5
gpu0.gpm5 38.25
gpu0.gpm10 44
"""
A100 = H100.replace("H100 80GB HBM3", "A100-SXM4-80GB").replace("gpu0.gpm 1", "gpu0.gpm 0")
UNITS = ("sm_active", "tensor_active", "dram_active")


def without(text: str, *figures: str) -> str:
    return "".join(line for line in text.splitlines(True) if not line.startswith(tuple(f"gpu0.{f}" for f in figures)))


def only(sample: dict[str, Any]) -> dict[str, Any]:
    (gpu,) = sample["gpus"]
    return gpu  # type: ignore[no-any-return]


def test_h100_gives_every_figure_in_our_units(host: Any, library: Path) -> None:
    gpus = host(library, H100)
    first = only(gpus.sample())
    assert all(first[unit] is None and "next poll" in first["unavailable"][unit] for unit in UNITS)
    time.sleep(0.15)  # what GPM wants between two samples
    gpu = only(gpus.sample())
    assert gpu == {
        "uuid": "GPU-8f2b1c44-0000-4000-8000-00000000beef",
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "utilization": 0.97,
        "memory_used": 42949672960,
        "memory_total": 85520809984,
        "temperature_c": 64.0,
        "power_w": 651.25,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1755.0,
        "throttle": ["sw_power_cap"],
        "energy_j": 123456.789,
        "sm_active": 0.615,
        "tensor_active": 0.3825,
        "dram_active": 0.44,
        "unavailable": {},
    }


def test_gpm_tells_each_unit_on_its_own_and_never_nan(host: Any, library: Path) -> None:
    gpus = host(library, without(H100, "gpm2", "gpm10") + "gpu0.gpm2 !3\ngpu0.gpm10 nan\n")
    gpus.sample()
    time.sleep(0.15)
    gpu = only(gpus.sample())
    assert [gpu[unit] for unit in UNITS] == [None, 0.3825, None]
    assert set(gpu["unavailable"]) == {"sm_active", "dram_active"}


def test_a100_has_no_gpm_and_says_what_would(host: Any, library: Path) -> None:
    gpu = only(host(library, A100).sample())
    assert gpu["utilization"] == 0.97
    assert all(gpu[unit] is None and "Hopper" in gpu["unavailable"][unit] for unit in UNITS)


def test_gb10_has_no_memory_figures(host: Any, library: Path) -> None:
    gpu = only(host(library, without(H100, "memory", "power_limit")).sample())
    assert gpu["memory_used"] is gpu["memory_total"] is gpu["power_limit_w"] is None
    assert "does not give it" in gpu["unavailable"]["memory_total"]
    assert gpu["power_w"] == 651.25


@pytest.mark.parametrize("which", ["library", "old_library"])
def test_throttle_reasons_by_either_name(host: Any, which: str, request: pytest.FixtureRequest) -> None:
    scenario = without(H100, "throttle") + f"gpu0.throttle {0x01 | 0x08 | 0x40 | 0x80}\n"
    gpu = only(host(request.getfixturevalue(which), scenario).sample())
    assert gpu["throttle"] == ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"]


def test_an_idle_gpu_is_not_throttled(host: Any, library: Path) -> None:
    assert only(host(library, without(H100, "throttle") + "gpu0.throttle 1\n").sample())["throttle"] == []


def test_a_gpu_that_falls_off_the_bus_leaves_the_other(host: Any, library: Path) -> None:
    two = H100.replace("gpus 1", "gpus 2") + H100.replace("gpu0", "gpu1").replace("beef", "cafe")
    gpus = host(library, two)
    assert [gpu["utilization"] for gpu in gpus.sample()["gpus"]] == [0.97, 0.97]
    gpus.script("gpu0 !15\n" + two)
    lost, well = gpus.sample()["gpus"]
    assert lost["uuid"].endswith("beef") and lost["utilization"] is None
    assert all("fell off the bus" in why and "xid" in why for why in lost["unavailable"].values())
    assert len(lost["unavailable"]) == 12
    assert well["utilization"] == 0.97


def test_a_gpu_that_is_lost_from_the_start_is_said(host: Any, library: Path) -> None:
    sample = host(library, "gpu0 !15\n" + H100).sample()
    assert sample["gpus"] == [] and sample["reason"].startswith("GPU 0: the GPU fell off the bus")


@pytest.mark.parametrize(
    ("code", "cure"), [(9, "modprobe nvidia"), (18, "reboot"), (4, "/dev/nvidia"), (999, "nvidia-smi")]
)
def test_a_driver_that_does_not_answer_has_a_reason_with_its_cure(
    host: Any, library: Path, code: int, cure: str
) -> None:
    sample = host(library, f"driver !{code}\n").sample()
    assert sample["gpus"] == [] and cure in sample["reason"]


def test_a_driver_that_goes_and_comes_back(host: Any, library: Path) -> None:
    gpus = host(library, H100)
    assert gpus.sample()["reason"] is None
    gpus.script("driver !9\n")
    gone = gpus.sample()
    assert gone["gpus"] == [] and "not loaded" in gone["reason"]
    gpus.script(H100)
    assert only(gpus.sample())["utilization"] == 0.97


def test_no_library_at_all(host: Any, tmp_path: Path) -> None:
    sample = host(tmp_path).sample()
    assert sample["gpus"] == [] and "libnvidia-ml.so.1 was not found" in sample["reason"]


def test_no_gpu(host: Any, library: Path) -> None:
    assert "CUDA_VISIBLE_DEVICES" in host(library, "gpus 0\n").sample()["reason"]


def test_mig_instances_are_listed_and_read_by_instance(host: Any, library: Path) -> None:
    scenario = without(H100, "utilization") + (
        "gpu0.mig 1\ngpu0.mig_places 4\n"
        "gpu0.mig2.uuid MIG-0d4c\ngpu0.mig2.name NVIDIA H100 80GB HBM3 MIG 1g.10gb\n"
        "gpu0.mig2.memory_total 10737418240\ngpu0.mig2.memory_used 1073741824\ngpu0.mig2.gpm2 12\n"
    )
    gpus = host(library, scenario)
    gpus.sample()
    time.sleep(0.15)
    whole, part = gpus.sample()["gpus"]
    assert whole["utilization"] is None and whole["power_w"] == 651.25
    assert (part["uuid"], part["index"], part["memory_total"]) == ("MIG-0d4c", 0, 10737418240)
    assert part["sm_active"] == 0.12 and part["power_w"] is None
