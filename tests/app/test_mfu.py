"""MFU in a job's view: what is shown, and what is said where it can't be."""

from __future__ import annotations

import pytest
from agents import START, hello, run_of

from bsmon.draw.facts import model_line
from bsmon.model import Device, ModelInfo
from bsmon.store import Fleet
from bsmon.store import mfu as mfu_view

OTHER = "fedcba9876543210"
H100 = Device(type="cuda", index=0, name="NVIDIA H100 80GB HBM3")
MODEL = {
    "name": "GPT",
    "parameters": 2_000_000_000,
    "matmul": 10**12,  # so that the 128 tokens/s of ``run_of`` are worth something
    "attention_layers": 10,
    "attention_width": 10**8,
    "compute_dtype": "bfloat16",
}
ATTENTION = 12 * 10 * 10**8 * 16  # of 16 tokens
RATE, PEAK = 128.0, 989.4e12


def view_of(*hellos, now=START + 10, **fields):
    fleet = Fleet()
    for one in hellos:
        fleet.ingest(one)
        fleet.ingest(run_of(20, session=one.session, **fields))
    (job,) = fleet.jobs(now)
    return job


def greeting(device=H100, token_source="input_ids", model=None, **fields):
    return hello(device=device, token_source=token_source, model=ModelInfo(**{**MODEL, **(model or {})}), **fields)


def test_a_gpu_that_is_known():
    job = view_of(greeting(model={"matmul_recomputed": 10**12, "recomputed_layers": 10}))
    assert (job.model.flops_per_token, job.model.convention) == (6e12 + ATTENTION, "full")
    assert job.mfu.value == pytest.approx(RATE * (6e12 + ATTENTION) / PEAK)
    assert job.mfu.achievable == pytest.approx(job.mfu.value / 0.8)
    assert job.mfu.causal == pytest.approx(RATE * (6e12 + ATTENTION / 2) / PEAK)
    assert job.mfu.hfu == pytest.approx(job.mfu.value * 4 / 3)
    assert job.mfu.peak_flops == PEAK
    assert job.mfu.peak_source.startswith("h100-sxm, bf16 dense")
    assert not any(path.startswith(("mfu", "model.flops", "model.convention")) for path in job.unavailable)


def test_ranks_are_set_against_all_their_devices():
    ranks = [greeting(world_size=2, data_parallel=2), greeting(world_size=2, data_parallel=2, rank=1, session=OTHER)]
    both = view_of(*ranks)
    assert both.mfu.value == pytest.approx(view_of(greeting()).mfu.value)
    assert both.mfu.peak_flops == PEAK


def test_without_attention_only_six_n_by_that_name():
    job = view_of(greeting(model={"attention_layers": None}))
    assert (job.model.flops_per_token, job.model.convention) == (6e12, "sixN_noemb")
    assert job.mfu.value == pytest.approx(RATE * 6e12 / PEAK)
    assert job.unavailable["mfu.causal"] == mfu_view.NO_ATTENTION
    assert job.unavailable["mfu.hfu"] == mfu_view.NO_RECOMPUTE


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": {"matmul": None}, "unavailable": {"model.flops_per_token": "it convolves"}}, "it convolves"),
        ({"model": {"matmul": None}}, mfu_view.NOT_COUNTED),
        ({"model": {"matmul": None, "parameters": None}, "unavailable": {"model": "not found"}}, "not found"),
        ({"token_source": None}, mfu_view.NOT_TOKENS),
        ({"world_size": 4, "data_parallel": 2}, mfu_view.SHARED_OUT),
        ({"world_size": 4}, mfu_view.SHARED_OUT),
    ],
)
def test_why_there_are_no_flops(fields, reason):
    job = view_of(greeting(**fields))
    assert job.model.flops_per_token is job.model.convention is job.mfu.value is None
    assert job.unavailable["model.flops_per_token"] == job.unavailable["model.convention"] == reason
    assert reason in job.unavailable["mfu.value"]
    assert job.mfu.peak_flops == PEAK


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": Device(type="cpu")}, "no peak is known for a CPU"),
        ({"device": Device(type="cuda", name="NVIDIA Z900")}, "no peak is known for bfloat16 on a NVIDIA Z900"),
        ({"device": Device(type="cuda")}, "the device's name is not known"),
        ({"model": {"compute_dtype": None}}, "the dtype of its products is not known"),
        ({"model": {"devices": 8}}, "one process computes on several devices"),
    ],
)
def test_why_there_is_no_peak(fields, reason):
    job = view_of(greeting(**fields))
    assert job.model.flops_per_token == 6e12 + ATTENTION
    assert job.mfu.value is job.mfu.achievable is job.mfu.peak_flops is None
    assert {job.unavailable[f"mfu.{name}"] for name in ("value", "achievable", "peak_flops", "causal", "hfu")} == {
        reason
    }
    assert job.unavailable["mfu"] == reason


def test_unlike_devices_have_no_common_peak():
    other = greeting(
        device=Device(type="cuda", name="NVIDIA H200"), world_size=2, data_parallel=2, rank=1, session=OTHER
    )
    job = view_of(greeting(world_size=2, data_parallel=2), other)
    assert "different devices" in job.unavailable["mfu.value"]


def test_more_than_the_peak_is_another_dtype_than_was_seen():
    job = view_of(greeting(model={"compute_dtype": "float32", "matmul": 10**12}))
    assert job.mfu.value is None
    assert job.unavailable["mfu.value"].startswith("more than the peak in float32")
    assert job.mfu.peak_flops == 67e12


def test_a_peak_that_was_not_measured_has_no_achievable_share():
    job = view_of(greeting(model={"compute_dtype": "float8"}))
    assert job.mfu.value == pytest.approx(RATE * (6e12 + ATTENTION) / 1979e12)
    assert "not in the table" in job.unavailable["mfu.achievable"]


def test_a_run_that_is_over_or_counts_no_tokens_has_no_mfu():
    lost = view_of(greeting(), now=START + 3600)
    assert (lost.mfu.value, lost.unavailable["mfu.value"]) == (None, "the run is lost")
    silent = view_of(greeting(), tokens=None)
    assert (silent.mfu.value, silent.unavailable["mfu.value"]) == (None, silent.unavailable["tokens_per_s"])


def test_the_page_says_by_which_convention_and_why_there_is_none():
    shown = model_line(view_of(greeting(model={"matmul": 2 * 10**11, "attention_width": 10**7})))
    assert shown == "2.00G parameters, 1.22TFLOP a token (full), MFU 15.8%, 19.7% of what it can reach"
    assert model_line(view_of(greeting(device=Device()))).endswith("MFU n/a: no peak is known for a CPU")
