"""A written observation, read with care: what is known by name and usable by value; the rest is listed as ignored.

The names are those of the public reports in ``tests/data/regime_cases.jsonl``. Numbers must be numbers, inside the
bounds given here; only losses and gradient norms may be NaN or infinite, also as words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

TIME, COUNT, PERCENT, SHARE, PLAIN = (0.0, 1e9), (0.0, 1e16), (0.0, 100.0), (0.0, 1.0), (0.0, 1e12)

NUMBERS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("step_time_s", "data_time_s", "compute_time_s", "net_time_s"), TIME),
    **dict.fromkeys(("fwd_time_s", "bwd_time_s", "opt_time_s", "gc_pause_s", "gc_total_s_20_steps"), TIME),
    **dict.fromkeys(("run_time_s", "gpu_run_s", "cpu_run_s", "allreduce_s"), TIME),
    **dict.fromkeys(("gpu_util_pct_typical", "gpu_util_pct_min", "gpu_util_pct_max"), PERCENT),
    **dict.fromkeys(("gpu_idle_fraction", "launch_overhead_fraction", "cudamalloc_cpu_fraction"), SHARE),
    **dict.fromkeys(("drop_fraction",), SHARE),
    **dict.fromkeys(("mfu", "hfu", "mfu_printed"), (0.0, 1.5)),
    **dict.fromkeys(("mfu_printed_peak_tflops", "tflops_per_gpu"), (0.0, 1e5)),
    **dict.fromkeys(("power_w", "power_limit_w", "power_limit_default_w", "power_w_other_ranks"), (0.0, 1e5)),
    **dict.fromkeys(("sm_clock_mhz", "sm_clock_max_mhz"), (0.0, 1e5)),
    "temp_c": (-50.0, 150.0),
    **dict.fromkeys(("mem_used_gb", "mem_total_gb", "mem_free_gb_min_rank"), (0.0, 1e5)),
    **dict.fromkeys(("batch_per_gpu", "micro_batch", "global_batch", "global_batch_tokens"), COUNT),
    **dict.fromkeys(("reference_global_batch_tokens", "recipe_global_batch_tokens"), COUNT),
    **dict.fromkeys(("estimated_cbs_tokens_min", "estimated_cbs_tokens_max", "gradient_noise_scale"), COUNT),
    **dict.fromkeys(("n_gpus", "n_nodes", "gpus_per_node", "data_parallel"), (1.0, 1e7)),
    **dict.fromkeys(("pipeline_parallel", "pipeline_chunks", "expert_parallel", "tensor_parallel"), (1.0, 1e7)),
    **dict.fromkeys(("num_workers", "cpu_threads", "stall_period_steps"), (0.0, 1e5)),
    **dict.fromkeys(("params", "active_params"), COUNT),
    "dispatch_slowdown": PLAIN,
}
LOSSES = ("loss_before", "loss_now", "loss_min", "loss_peak")
NORMS = ("grad_norm", "grad_norm_before", "grad_norm_now", "grad_norm_peak")
SERIES = ("loss_series", "node_check_s")
FLAGS = ("sw_power_cap", "hw_slowdown")
WORDS = ("gpu", "storage", "loss_trend")
CONTRAST_NUMBERS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("baseline_step_time_s", "cold_step_time_s", "one_gpu_run_time_s"), TIME),
    **dict.fromkeys(("good_global_batch", "best_global_batch_tokens"), COUNT),
}
CONTRAST_SERIES = (
    *("sweep_batch", "sweep_micro_batch", "sweep_global_batch", "sweep_step_time_s"),
    *("scaling_gpus", "scaling_nodes", "scaling_tflops", "scaling_step_time_s", "scaling_run_time_s"),
    *("scaling_tokens_per_s", "scaling_tokens_per_s_per_gpu", "scaling_samples_per_s_per_gpu"),
)
# Known, and of no use to any rule: a fact beside the point, or a number that says nothing without another run's.
_BESIDE = """
activation_checkpointing aten_ops_per_step batch_relative batch_schedule capacity_factor cudamalloc_calls dataset depth
env_steps epoch_time_expected_s epoch_time_s framework_state gc_count_20_steps gc_pause_s_max gc_pause_s_min gpus
grad_norm_skip_threshold imbalance interconnect kernel kernels_per_step link_gbps lr lr_rule mem_util_pct metric
minutes_running model n_experts n_gpus_few phase power_fraction_of_limit power_w_max power_w_min precision
relative_throughput samples_per_s samples_per_s_per_gpu seq_len shared_mem_total_gb step step_time_after_nan_s
steps_per_s steps_to_recover syncs_per_step throughput_cost_pct tokens_per_gpu_per_step tokens_per_rank tokens_per_s
tokens_per_s_per_gpu top_k torch_compile
"""
_BESIDE_CONTRAST = """
allreduce_s_isolated amp_samples_per_s base_run_time_s baseline_tflops cf_1_bpb_change gpu_wins_from_batch
initial_steps_per_s lora_mem_used_gb lora_step_time_s mem_used_gb_at_mb1 micro_batch_4_mem_used_gb
micro_batch_4_step_time_s nvlink_run_time_s relative_epochs_to_target same_config_step_time_s step_time_s_at_14_6gb
sweep_epoch_time_s sweep_rel_epoch_time throughput_saturates_at
"""
UNUSED, UNUSED_CONTRAST = frozenset(_BESIDE.split()), frozenset(_BESIDE_CONTRAST.split())
LONGEST = 1000  # entries of a series


class Observed:
    """The usable fields of one observation; ``ignored`` names the others."""

    def __init__(self, observed: object, contrast: object = None) -> None:
        self.ignored: list[str] = []
        self._numbers: dict[str, float] = {}
        self._series: dict[str, list[float]] = {}
        self._flags: dict[str, bool] = {}
        self._words: dict[str, str] = {}
        self._take("observed", observed, NUMBERS, (*LOSSES, *NORMS), SERIES, UNUSED)
        self._take("contrast", contrast, CONTRAST_NUMBERS, (), CONTRAST_SERIES, UNUSED_CONTRAST)

    def number(self, *names: str) -> float | None:
        """The first of these that is known."""
        return next((self._numbers[name] for name in names if name in self._numbers), None)

    def series(self, name: str) -> list[float]:
        return self._series.get(name, [])

    def flag(self, name: str) -> bool | None:
        return self._flags.get(name)

    def word(self, name: str) -> str:
        return self._words.get(name, "")

    def _take(
        self,
        part: str,
        fields: object,
        numbers: Mapping[str, tuple[float, float]],
        unbounded: Iterable[str],
        series: Iterable[str],
        unused: frozenset[str],
    ) -> None:
        if fields is None:
            return
        if not isinstance(fields, Mapping):
            self.ignored.append(part)
            return
        bounds = {**numbers, **dict.fromkeys(unbounded, (-math.inf, math.inf))}
        for name, value in fields.items():
            if not self._keep(part, str(name), value, bounds, frozenset(series)) and name not in unused:
                self.ignored.append(str(name)[:200])

    def _keep(
        self, part: str, name: str, value: Any, bounds: Mapping[str, tuple[float, float]], series: frozenset[str]
    ) -> bool:
        """Whether the field is known and its value usable; then it is kept."""
        if name in bounds and (number := _number(value, *bounds[name])) is not None:
            self._numbers[name] = number
        elif name in series and (values := _numbers(value)) is not None:
            self._series[name] = values
        elif part == "observed" and name in FLAGS and isinstance(value, bool):
            self._flags[name] = value
        elif part == "observed" and name in WORDS and isinstance(value, str):
            self._words[name] = value[:200].lower()
        else:
            return False
        return True


def _number(value: Any, low: float, high: float) -> float | None:
    """A number inside its bounds, or None; NaN and infinity, also as words, where there are no bounds."""
    if isinstance(value, str) and value.strip().lower() in ("nan", "inf", "-inf", "infinity") and math.isinf(high):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if low <= number <= high or (math.isinf(high) and math.isnan(number)) else None


def _numbers(values: Any) -> list[float] | None:
    """A series of numbers, or None if one of them is none."""
    if not isinstance(values, list) or not 0 < len(values) <= LONGEST:
        return None
    numbers = [_number(value, -math.inf, math.inf) for value in values]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else None
