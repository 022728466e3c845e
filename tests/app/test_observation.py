"""``bsmon diagnose``: right when it decides, honest when it doesn't, and unmoved by what a report happens to bring."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmon.diagnosis.observation import diagnose
from bsmon.diagnosis.observed import CONTRAST_NUMBERS, CONTRAST_SERIES, FLAGS, LOSSES, NORMS, NUMBERS, SERIES, WORDS
from bsmon.diagnosis.rules import RULES
from bsmon.diagnosis.signals import SIGNALS

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "data/regime_cases.jsonl").open()]
SURE = [case for case in CASES if case["confidence"] != "low"]
LABELS = {rule.label for rule in RULES} - {"unknown"}


def told(case: dict[str, Any], contrast: bool) -> str | None:
    verdict = diagnose({"observed": case["observed"], "contrast": case["contrast"] if contrast else {}})
    assert verdict.ignored == []
    assert verdict.label or verdict.missing
    return verdict.label


@pytest.mark.parametrize(("contrast", "decided"), [(False, 0.45), (True, 0.60)])
def test_public_reports(contrast: bool, decided: float) -> None:
    answers = [(case["label"], label) for case in SURE if (label := told(case, contrast))]
    right = sum(truth == label for truth, label in answers)
    assert right >= 0.95 * len(answers)
    assert len(answers) >= decided * len(SURE)


@pytest.mark.parametrize("contrast", [False, True])
def test_no_group_of_reports_carries_the_score(contrast: bool) -> None:
    """Precision holds in every fold of a split by origin, so no one source's habits make it."""
    groups = sorted({case["group"] for case in SURE})
    random.Random(0).shuffle(groups)
    for fold in range(5):
        held_out = set(groups[fold::5])
        answers = [(c["label"], label) for c in SURE if c["group"] in held_out and (label := told(c, contrast))]
        assert sum(truth == label for truth, label in answers) >= 0.9 * len(answers)


def test_every_abstention_names_a_signal() -> None:
    for case in CASES:
        verdict = diagnose({"observed": case["observed"], "contrast": case["contrast"]})
        if verdict.label is None:
            known = set(SIGNALS.values())
            assert any(line in known or line.startswith("a breakdown") for line in verdict.missing)


def test_the_same_whatever_the_names_are() -> None:
    for case in CASES:
        bare = diagnose({"observed": case["observed"], "contrast": case["contrast"]})
        marked = case | {"id": "input_bound", "title": "out of memory", "group": "x", "source_url": "http://straggler"}
        again = diagnose(marked)
        assert msgspec.structs.replace(again, id=None) == bare
        assert again.id == "input_bound"


HEALTHY: dict[str, Any] = {
    "gpu_util_pct_typical": 97,
    "gpu_util_pct_min": 94,
    "gpu_util_pct_max": 100,
    "gpu_idle_fraction": 0.02,
    "step_time_s": 0.5,
    "data_time_s": 0.003,
    "compute_time_s": 0.48,
    "fwd_time_s": 0.15,
    "bwd_time_s": 0.3,
    "opt_time_s": 0.02,
    "allreduce_s": 0.01,
    "launch_overhead_fraction": 0.01,
    "num_workers": 8,
    "cpu_threads": 64,
    "stall_period_steps": 1000,
    "storage": "ssd",
    "gpu_run_s": 10,
    "cpu_run_s": 200,
    "pipeline_chunks": 256,
    "gc_pause_s": 0.005,
    "gc_total_s_20_steps": 0.05,
    "node_check_s": [20.1, 20.3, 20.2, 20.4],
    "temp_c": 62,
    "sm_clock_mhz": 1700,
    "sm_clock_max_mhz": 1755,
    "power_w": 310,
    "power_w_other_ranks": 312,
    "power_limit_w": 400,
    "power_limit_default_w": 400,
    "hw_slowdown": False,
    "sw_power_cap": False,
    "mfu": 0.42,
    "hfu": 0.45,
    "mem_used_gb": lambda seen: 0.5 * seen.get("mem_total_gb", 80),
    "mem_total_gb": lambda seen: 2 * seen.get("mem_used_gb", 40),
    "mem_free_gb_min_rank": 30,
    "cudamalloc_cpu_fraction": 0.0,
    "loss_before": 2.3,
    "loss_now": 2.25,
    "loss_min": 2.24,
    "loss_series": [2.5, 2.4, 2.3],
    "loss_trend": "falls",
    "grad_norm": 0.9,
    "grad_norm_before": 0.9,
    "grad_norm_now": 0.95,
    "gradient_noise_scale": lambda seen: 1.5 * seen.get("global_batch", 100),
    "reference_global_batch_tokens": lambda seen: seen.get("global_batch_tokens", 500_000),
    "drop_fraction": 0.0,
    "dispatch_slowdown": 1.0,
}


def ablated(case: dict[str, Any], chance: random.Random, added: float, dropped: float) -> dict[str, Any]:
    """The observation with healthy values added for fields it has not, and some of its own taken away."""
    seen = {name: value for name, value in case["observed"].items() if chance.random() >= dropped}
    for name, value in HEALTHY.items():
        if name not in case["observed"] and chance.random() < added:
            seen[name] = value({**case["observed"], **seen}) if callable(value) else value
    return seen


@pytest.mark.parametrize("contrast", [False, True])
@pytest.mark.parametrize(("added", "dropped"), [(1.0, 0.0), (1.0, 0.5), (0.5, 0.5), (0.3, 0.3), (0.0, 0.5)])
def test_ablation(contrast: bool, added: float, dropped: float) -> None:
    tally: Counter[bool] = Counter()
    for seed in range(10):
        chance = random.Random(seed)
        for case in SURE:
            other = {name: v for name, v in case["contrast"].items() if chance.random() >= dropped} if contrast else {}
            label = diagnose({"observed": ablated(case, chance, added, dropped), "contrast": other}).label
            if label:
                tally[label == case["label"]] += 1
    assert tally[True] >= 0.95 * tally.total()
    assert tally.total() > 0.1 * 10 * len(SURE)


def test_all_healthy_is_no_verdict() -> None:
    seen = {name: value({}) if callable(value) else value for name, value in HEALTHY.items()}
    assert diagnose({"observed": seen}).label is None
    for name, value in seen.items():
        assert diagnose({"observed": {name: value}}).label is None, name


UNDECIDABLE = {
    "low utilization alone": {"gpu_util_pct_typical": 25, "num_workers": 4},
    "full utilization on many": {"gpu_util_pct_typical": 100, "n_gpus": 64, "n_nodes": 8},
    "full memory of an idle GPU": {"gpu_util_pct_typical": 30, "mem_used_gb": 23.5, "mem_total_gb": 24},
    "some data wait": {"step_time_s": 1.0, "data_time_s": 0.1},
    "a wait without a step": {"data_time_s": 3.0},
    "a GPU at its power limit": {"gpu_util_pct_typical": 100, "sm_clock_mhz": 1450, "sm_clock_max_mhz": 1980},
    "a capped GPU that draws its limit": {"sw_power_cap": True, "power_w": 395, "power_limit_w": 400},
    "an idle GPU that clocks down": {"gpu_util_pct_typical": 2, "sm_clock_mhz": 210, "sm_clock_max_mhz": 1980},
    "slower than expected": {"epoch_time_s": 1000, "epoch_time_expected_s": 200},
    "a small loss that doubles nearly": {"loss_before": 0.01, "loss_now": 0.018},
    "a loss that falls": {"loss_series": [9.0, 4.0, 3.0]},
    "a batch twice too small": {"global_batch_tokens": 250_000, "reference_global_batch_tokens": 500_000},
    "busy and full": {"gpu": "A100 80GB", "mfu": 0.6, "mem_used_gb": 79, "mem_total_gb": 80},
    "long idle, no data wait": {"gpu_idle_fraction": 0.6, "step_time_s": 4.0, "data_time_s": 0.01},
    "MFU against an unknown peak": {"gpu": "V100", "mfu_printed": 0.2, "mfu_printed_peak_tflops": 312},
    "layers on four GPUs that take turns": {"gpu_util_pct_min": 0, "gpu_util_pct_max": 90, "n_gpus": 4},
    "a loss function in Python": {"gpu_util_pct_typical": 8, "gpu_util_pct_max": 50, "batch_per_gpu": 64},
    "memory taken in advance": {"gpu_util_pct_typical": 20, "mem_used_gb": 11.8, "mem_total_gb": 12},
    "a fast shared disk": {"storage": "ssd", "num_workers": 2},
}


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_abstains(name: str) -> None:
    verdict = diagnose({"observed": UNDECIDABLE[name]})
    assert verdict.label is None
    assert verdict.missing


DECIDABLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("input_bound", {"step_time_s": 0.9, "data_time_s": 0.3}, {}),
    ("input_bound", {"data_time_s": 2.0, "net_time_s": 1.0}, {}),
    ("input_bound", {"gpu_util_pct_typical": 5, "gpu_util_pct_max": 98}, {}),
    ("overhead_bound", {"step_time_s": 0.02, "data_time_s": 0.0005, "gpu_util_pct_typical": 35}, {}),
    ("overhead_bound", {"pipeline_parallel": 8, "micro_batch": 1, "global_batch": 64, "data_parallel": 8}, {}),
    ("overhead_bound", {"batch_per_gpu": 8, "step_time_s": 0.05},
     {"sweep_batch": [8, 16, 32], "sweep_step_time_s": [0.05, 0.051, 0.09]}),
    ("compute_bound", {"batch_per_gpu": 64, "step_time_s": 0.4},
     {"sweep_batch": [32, 64], "sweep_step_time_s": [0.205, 0.4]}),
    ("compute_bound", {"gpu": "H100", "mfu": 0.52}, {}),
    ("communication_bound", {"n_gpus": 16}, {"scaling_gpus": [8, 16], "scaling_tokens_per_s": [80_000, 90_000]}),
    ("communication_bound", {"step_time_s": 0.2, "allreduce_s": 0.19, "n_gpus": 8}, {}),
    ("straggler", {"node_check_s": [10.0, 10.1, 15.0, 10.2]}, {}),
    ("memory_limited", {"mem_used_gb": 39.8, "mem_total_gb": 40, "gpu_util_pct_typical": 99}, {}),
    ("throttled", {"hw_slowdown": True}, {}),
    ("throttled", {"temp_c": 87, "gpu_util_pct_typical": 99, "sm_clock_mhz": 900, "sm_clock_max_mhz": 1980}, {}),
    ("noise_limited", {"gradient_noise_scale": 5000, "global_batch": 512}, {}),
    ("past_critical_batch", {"global_batch_tokens": 8e6, "estimated_cbs_tokens_max": 2e6}, {}),
    ("moe_imbalance", {"drop_fraction": 0.08, "capacity_factor": 1.25}, {}),
    ("unstable", {"loss_series": [2.0, 2.1, "nan"]}, {}),
    ("unstable", {"grad_norm_before": 1.0, "grad_norm_now": 80.0}, {}),
    ("unstable", {"loss_now": math.nan}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("label", "observed", "contrast"), DECIDABLE)
def test_decides(label: str, observed: dict[str, Any], contrast: dict[str, Any]) -> None:
    verdict = diagnose({"observed": observed, "contrast": contrast})
    assert verdict.label == label
    assert verdict.evidence and verdict.advice
    assert verdict.confidence is not None and 0 < verdict.confidence <= 1
    if verdict.missing:
        assert verdict.confidence <= 0.5


@pytest.mark.parametrize(
    ("observed", "contrast"),
    [
        ({"batch_per_gpu": 1}, {"sweep_batch": [1, 3], "sweep_step_time_s": [0.3, 1.9]}),  # faster than the batch
        ({"batch_per_gpu": 1}, {"sweep_batch": [1, 2], "sweep_step_time_s": [0.3, 0.48]}),  # in between
        ({"batch_per_gpu": 4, "gpu_util_pct_typical": 20}, {"sweep_batch": [4, 8], "sweep_step_time_s": [1.0, 2.0]}),
        ({"batch_per_gpu": 4, "step_time_s": 9.0}, {"sweep_batch": [4, 8], "sweep_step_time_s": [9.0, 9.1]}),
        ({"n_gpus": 8}, {"scaling_gpus": [4, 8], "scaling_tokens_per_s": [100.0, 190.0]}),
        ({"n_gpus": 8, "pipeline_parallel": 8}, {"scaling_gpus": [4, 8], "scaling_tflops": [100.0, 50.0]}),
        ({"n_gpus": 8}, {"scaling_gpus": [4, 8], "scaling_tflops": [100.0]}),
        ({"global_batch": 256}, {"good_global_batch": 512}),
    ],
)
def test_contrast_that_does_not_decide(observed: dict[str, Any], contrast: dict[str, Any]) -> None:
    verdict = diagnose({"observed": observed, "contrast": contrast})
    assert verdict.label is None
    assert verdict.missing


def test_what_is_unknown_or_unusable_is_listed() -> None:
    odd: dict[str, Any] = {
        "made_up": 1,
        "data_time_s": "0.3",
        "step_time_s": True,
        "gpu_util_pct_typical": 300,
        "mem_used_gb": math.nan,
        "mem_total_gb": 10**400,
        "node_check_s": [1, "x"],
        "hw_slowdown": "yes",
        "gpu": ["A100"],
        "mfu": {"value": {"deep": []}},
        "power_w": -1,
    }
    verdict = diagnose({"id": [1, {"a": None}], "observed": odd, "contrast": {"sweep_batch": "8", "made_up_too": 2}})
    assert set(verdict.ignored) == {*odd, "sweep_batch", "made_up_too"}
    assert verdict.label is None
    assert verdict.id == [1, {"a": None}]


@pytest.mark.parametrize("observed", [None, [], "text", 3, {}])
def test_no_observation_is_no_crash(observed: Any) -> None:
    verdict = diagnose({"observed": observed, "contrast": observed})
    assert verdict.label is None and verdict.missing


ODD = st.one_of(
    st.floats(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.sampled_from([0, 1, 100, 1e-300, 1e300, "nan", "inf", ""]),
    st.lists(st.one_of(st.floats(), st.integers(-3, 100), st.text(max_size=3)), max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
FIELDS = st.dictionaries(st.sampled_from([*NUMBERS, *LOSSES, *NORMS, *SERIES, *FLAGS, *WORDS]), ODD, max_size=20)
OTHERS = st.dictionaries(st.sampled_from([*CONTRAST_NUMBERS, *CONTRAST_SERIES]), ODD, max_size=8)


@settings(max_examples=300, deadline=None)
@given(FIELDS, OTHERS)
def test_hostile_values(observed: dict[str, Any], contrast: dict[str, Any]) -> None:
    verdict = diagnose({"observed": observed, "contrast": contrast})
    assert verdict.label is None or verdict.label in LABELS
    assert verdict.label or verdict.missing
    json.loads(msgspec.json.encode(verdict))
