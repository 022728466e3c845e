"""The signals that a written observation's fields amount to. What two readings leave open stays unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from bsmon.diagnosis.observed import LOSSES, NORMS, Observed
from bsmon.diagnosis.signals import LAUNCHES_S, UNNAMED_FLOPS, Features
from bsmon.estimators.peaks import Peak, peak_of

Part = dict[str, Any]  # some of the fields of Features

GIB = float(2**30)
OPTIMIZER_BYTES, HOST_LINK = 16.0, 1e10  # bytes a parameter of mixed-precision Adam; bytes/s of a slow PCIe link
SUSTAINED = 0.75  # of the maximal SM clock: a GPU at its power limit rarely holds more
SLOWS_AT = {"a100": 93.0, "h100": 95.0, "h200": 95.0}  # degrees C (KempnerPulse)
SLOW_STORAGE = ("hdd", "nfs", "network", "lustre", "usb")
EXPLODES = ("explode", "diverge", "blows up", "nan")


def features_of_observation(seen: Observed) -> Features:
    """The signals that the fields of an observation amount to."""
    step = _step(seen)
    elasticity, _ = _elasticity(seen, step)
    number = seen.number
    return Features(
        step_s=step,
        world_size=_world(seen),
        data_wait=_data_wait(seen, step),
        communication=_exposed(seen, step),
        optimizer=_ratio(number("opt_time_s"), step),
        optimizer_excess=_optimizer_excess(seen, step),
        stall_period=number("stall_period_steps"),
        workers=number("num_workers"),
        starved_host=_starved(seen),
        launch=number("launch_overhead_fraction"),
        bubble=_bubble(seen),
        elasticity=elasticity,
        gpu_over_cpu=_above(number("gpu_run_s"), number("cpu_run_s")),
        scaling_loss=_scaling_loss(seen),
        allocator=number("cudamalloc_cpu_fraction"),
        drop_rate=number("drop_fraction"),
        dispatch_slowdown=number("dispatch_slowdown"),
        **_flops(seen),
        **_collector(seen, step),
        **_nodes(seen),
        **_utilization(seen),
        **_throttling(seen),
        **_memory(seen),
        **_stability(seen),
        **_batch(seen),
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _above(value: float | None, base: float | None) -> float | None:
    ratio = _ratio(value, base)
    return None if ratio is None else ratio - 1


def _below(value: float | None, base: float | None) -> float | None:
    ratio = _ratio(value, base)
    return None if ratio is None else max(0.0, 1 - ratio)


def _world(seen: Observed) -> int | None:
    nodes, each = seen.number("n_nodes"), seen.number("gpus_per_node")
    whole = seen.number("n_gpus") or (nodes * (each or 1) if nodes else each)
    return int(whole) if whole else None


def _step(seen: Observed) -> float | None:
    """Seconds a step, as given or as the sum of its parts."""
    if given := seen.number("step_time_s"):
        return given
    data, work = seen.number("data_time_s"), seen.number("compute_time_s", "net_time_s")
    if data is not None and work is not None:
        return data + work
    phases = [seen.number(name) for name in ("fwd_time_s", "bwd_time_s", "opt_time_s")]
    known = [phase for phase in phases if phase is not None]
    return sum(known) if len(known) == len(phases) else None


def _data_wait(seen: Observed, step: float | None) -> float | None:
    """Of the step; a wait longer than the step was not counted in it."""
    data = seen.number("data_time_s")
    if data is None or not step:
        return None
    return data / step if data <= step else data / (data + step)


def _exposed(seen: Observed, step: float | None) -> float | None:
    """What of an all-reduce can't be hidden, at least: the backward pass is two thirds of the step at most."""
    share = _ratio(seen.number("allreduce_s"), step)
    return min(share, 1.0) - 2 / 3 if share is not None and share > 2 / 3 else None


def _starved(seen: Observed) -> bool | None:
    """A loader that can hardly keep up by its numbers: at most 2 workers, 4 cores, or a slow disk."""
    workers, threads, storage = seen.number("num_workers"), seen.number("cpu_threads"), seen.word("storage")
    if workers is None and threads is None and not storage:
        return None
    few = (workers is not None and workers <= 2) or (threads is not None and threads <= 4)
    return few or any(kind in storage for kind in SLOW_STORAGE)


def _utilization(seen: Observed) -> Part:
    """Busy and idle shares; the highest utilization seen bounds the idle time from below."""
    typical, low, high = (seen.number(f"gpu_util_pct_{kind}") for kind in ("typical", "min", "max"))
    idle = seen.number("gpu_idle_fraction")
    busy = 1 - idle if idle is not None else None if typical is None else typical / 100
    if idle is None and (bound := typical if typical is not None else high) is not None:
        idle = 1 - bound / 100
    return {
        "gpu_busy": busy,
        "gpu_idle": idle,
        "gpu_busy_low": None if low is None else low / 100,
        "gpu_busy_high": None if high is None else high / 100,
    }


def _bubble(seen: Observed) -> float | None:
    """(p-1)/(m+p-1), at least: an unknown micro-batch or data-parallel size makes m smaller, never larger."""
    stages, micros = seen.number("pipeline_parallel"), seen.number("pipeline_chunks")
    if stages is None:
        return None
    if not micros:
        batch = seen.number("global_batch")
        if not batch:
            return None
        micros = max(1.0, batch / ((seen.number("micro_batch") or 1) * (seen.number("data_parallel") or 1)))
    return (stages - 1) / (micros + stages - 1)


def _elasticity(seen: Observed, step: float | None) -> tuple[float | None, str]:
    """d ln(step time) / d ln(batch) at the present batch, from the next larger batch tried, else the next smaller."""
    for kind, own in (("batch", "batch_per_gpu"), ("global_batch", "global_batch"), ("micro_batch", "micro_batch")):
        sizes, times = seen.series(f"sweep_{kind}"), seen.series("sweep_step_time_s")
        if len(sizes) < 2 or len(sizes) != len(times) or not all(0 < v < 1e15 for v in (*sizes, *times)):
            continue
        slope = _slope(sizes, times, seen.number(own, "global_batch"))
        if slope is not None and kind == "micro_batch" and (1 - slope) * (step or 0.0) > LAUNCHES_S:
            slope += 1  # too long for launches: the global batch stayed, in fewer micro-batches
        return slope, kind
    return None, ""


def _slope(sizes: Sequence[float], times: Sequence[float], at: float | None) -> float | None:
    points = sorted(zip(sizes, times, strict=True))
    slopes = {
        small: math.log(longer / shorter) / math.log(large / small)
        for (small, shorter), (large, longer) in pairwise(points)
        if large > small
    }
    if not slopes:
        return None
    if at is not None:
        return slopes[max((small for small in slopes if small <= at), default=min(slopes))]
    agree = max(slopes.values()) - min(slopes.values()) < 0.3
    return median(slopes.values()) if agree else None


def _scaling_loss(seen: Observed) -> float | None:
    """Rate a GPU lost between the smallest and the present size; a time is read the kinder way, as equal work each.

    With pipeline stages, only beside a known bubble: it loses rate, too.
    """
    if (seen.number("pipeline_parallel") or 1) > 1 and _bubble(seen) is None:
        return None
    alone, together = seen.number("one_gpu_run_time_s"), seen.number("run_time_s")
    if alone is not None and together is not None and (_world(seen) or 1) > 1:
        return _below(alone, together)
    for unit in ("gpus", "nodes"):
        sizes = seen.series(f"scaling_{unit}")
        for measure in ("tflops", "samples_per_s_per_gpu", "tokens_per_s_per_gpu", "tokens_per_s"):
            rates = seen.series(f"scaling_{measure}")
            if measure == "tokens_per_s" and len(rates) == len(sizes):
                rates = [rate / size if size else 0.0 for rate, size in zip(rates, sizes, strict=True)]
            if (loss := _lost(sizes, rates)) is not None:
                return loss
        for measure in ("step_time_s", "run_time_s"):
            times = seen.series(f"scaling_{measure}")
            if (loss := _lost(sizes, [1 / time if time > 0 else 0.0 for time in times])) is not None:
                return loss
    return None


def _lost(sizes: Sequence[float], rates: Sequence[float]) -> float | None:
    if len(sizes) < 2 or len(sizes) != len(rates) or not all(0 < v < 1e15 for v in (*sizes, *rates)):
        return None
    points = sorted(zip(sizes, rates, strict=True))
    return _below(points[-1][1], points[0][1]) if points[-1][0] > points[0][0] else None


def _optimizer_excess(seen: Observed, step: float | None) -> float | None:
    """Optimizer phase over what 16 bytes a parameter need on a slow host link, where it is most of the step."""
    phase, params, world = seen.number("opt_time_s"), seen.number("params"), _world(seen)
    if phase is None or not step or not params or not world:
        return None
    if world == 1 or phase < 0.5 * step:
        return 0.0
    return phase / (OPTIMIZER_BYTES * params / world / HOST_LINK)


def _collector(seen: Observed, step: float | None) -> Part:
    """Garbage collection a step, and the share that it has in the slowdown against the own baseline."""
    total, base = seen.number("gc_total_s_20_steps"), seen.number("baseline_step_time_s")
    pause = total / 20 if total is not None else seen.number("gc_pause_s")
    slower = step - base if step and base else None
    return {
        "gc_share": _ratio(pause, step),
        "gc_explains": _ratio(pause, slower) if slower and slower > 0 else None,
        "drift": _above(step, base),
    }


def _nodes(seen: Observed) -> Part:
    """The slowest of several equal checks against the median of the others, as a share of its time."""
    times = seen.series("node_check_s")
    if len(times) < 2 or not all(0 < time < 1e9 for time in times):
        return {}
    last = max(range(len(times)), key=times.__getitem__)
    others = median(time for index, time in enumerate(times) if index != last)
    return {"lateness": _below(others, times[last]), "late_rank": last}


def _flops(seen: Observed) -> Part:
    """The best known rate of the hardware, as a share of the nominal peak and of what matmuls reach on this GPU."""
    peak = peak_of(seen.word("gpu")) if seen.word("gpu") else Peak()
    shares = [share for share in (seen.number("mfu"), seen.number("hfu")) if share is not None]
    if peak.nominal:
        printed, of = seen.number("mfu_printed"), seen.number("mfu_printed_peak_tflops")
        if printed is not None and of is not None:
            shares.append(printed * of * 1e12 / peak.nominal)
        if (tflops := seen.number("tflops_per_gpu")) is not None:
            shares.append(tflops * 1e12 / peak.nominal / UNNAMED_FLOPS)
    best = max(shares, default=None)
    return {"flops_nominal": best, "flops": _ratio(best, peak.achievable or 1.0)}


def _throttling(seen: Observed) -> Part:
    number = seen.number
    busy, temperature = number("gpu_util_pct_typical"), number("temp_c")
    loaded = busy >= 50 if busy is not None else (temperature or 0.0) >= 75
    clock = _ratio(number("sm_clock_mhz"), number("sm_clock_max_mhz"))
    hot = (temperature or 0.0) >= 80
    slower = _below(number("cold_step_time_s"), number("step_time_s")) if hot else None
    capped, limit, peers = seen.flag("sw_power_cap"), number("power_limit_w"), number("power_w_other_ranks")
    full = peers is not None and limit is not None and peers >= 0.9 * limit
    model = next((degrees for name, degrees in SLOWS_AT.items() if name in seen.word("gpu")), None)
    return {
        "hardware_throttle": seen.flag("hw_slowdown"),
        "clock_loss": max(0.0, 1 - clock / SUSTAINED) if clock and loaded else slower,
        "power_gap": _below(number("power_w"), limit) if capped else 0.0 if capped is False else None,
        "limit_cut": _below(limit, number("power_limit_default_w")),
        "power_below_peers": _below(number("power_w"), peers) if full else None,
        "heat": temperature - model if temperature is not None and model is not None else None,
    }


def _memory(seen: Observed) -> Part:
    free = seen.number("mem_free_gb_min_rank")
    return {
        "memory_used": _ratio(seen.number("mem_used_gb"), seen.number("mem_total_gb")),
        "memory_free": None if free is None else free * GIB,
    }


def _stability(seen: Observed) -> Part:
    """NaN anywhere; the loss against the lowest one told, the gradient norm against the one before."""
    losses = [value for name in LOSSES if (value := seen.number(name)) is not None]
    series = seen.series("loss_series")
    norms = [value for name in NORMS if (value := seen.number(name)) is not None]
    told = [*losses, *series, *norms]
    high = max((v for v in (seen.number("loss_now"), seen.number("loss_peak"), *series[-1:]) if v), default=None)
    lows = [v for v in (seen.number("loss_min"), seen.number("loss_before"), *series[:-1]) if v and math.isfinite(v)]
    before, norm = seen.number("grad_norm_before"), seen.number("grad_norm_now", "grad_norm_peak")
    ratio = _ratio(norm, before)
    trend = seen.word("loss_trend")
    return {
        "non_finite": not all(map(math.isfinite, told)) if told else None,
        "loss": high if high is not None and math.isfinite(high) else None,
        "loss_low": min(lows, default=None),
        "loss_rise": _rise(high, min(lows, default=None)),
        "loss_trend_up": any(word in trend for word in EXPLODES) if trend else None,
        "grad_norm": norm,
        "norm_ratio": ratio if ratio is not None and math.isfinite(ratio) else None,
    }


def _rise(high: float | None, low: float | None) -> float | None:
    if high is None or low is None or low <= 0 or not math.isfinite(high):
        return None
    return max(0.0, high / low - 1)


def _batch(seen: Observed) -> Part:
    """The batch against the noise scale, a batch known to work, and the critical batch."""
    number = seen.number
    samples, tokens = number("global_batch"), number("global_batch_tokens")
    phi = _ratio(number("gradient_noise_scale"), samples) or None  # no gradient is without noise
    known = (
        _ratio(number("reference_global_batch_tokens", "recipe_global_batch_tokens"), tokens),
        _ratio(number("best_global_batch_tokens"), tokens),
        _ratio(number("good_global_batch"), samples),
    )
    return {
        "noise_low": phi,
        "noise_high": phi,
        "reference_batch": max((ratio for ratio in known if ratio is not None), default=None),
        "critical_excess": _ratio(tokens, number("estimated_cbs_tokens_max", "estimated_cbs_tokens_min")),
    }
