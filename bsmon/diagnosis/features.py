"""A live job's signals, from what its ranks reported in the last window and from the joined view of the job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import fmean, median
from typing import Any

from bsmon.config import WINDOW_SECONDS, WINDOW_STEPS
from bsmon.diagnosis.capacity import roomier
from bsmon.diagnosis.signals import Features
from bsmon.model import Gpu, Job, MoeLayer, RankWindow, Record

Part = dict[str, Any]  # some of the fields of Features

WARM_UP = 10  # steps at the start of an agent's life that say nothing: compilation, caches, autotuning
MIN_STEPS = 10  # fewer steady steps than this are no window
SPIKE = 10.0  # a step this many times longer than the median is an evaluation, a checkpoint or a compilation
RECENT = 10  # steps that make the present level of the loss
HARDWARE = ("hw_slowdown", "thermal", "brake")  # parts of NVML's names for what the hardware does on its own
EXPECTED_TOKENS = 1000  # an expert without a token where this many were expected is dead

PHASES = ("data_wait", "forward", "backward", "optimizer", "communication")
_PHASES_OF = attrgetter("duration", "data_wait", "forward", "backward", "optimizer_time", "communication")


def window_seconds(step_s: float | None) -> float:
    """How far back a window reaches: the longer of 20 steps and 10 s, with the steps of the warm-up."""
    return max(WINDOW_SECONDS, (WINDOW_STEPS + WARM_UP) * (step_s or 0.0))


def features_of(windows: Sequence[RankWindow], job: Job) -> Features:
    """The signals of one job. Pure; empty windows give a struct of unknowns."""
    ranks = {window.hello.rank: _steady(window.records) for window in windows}
    ranks = {rank: records for rank, records in ranks.items() if records}
    every = [window.records[-1] for window in windows if window.records]
    steady = ranks[min(ranks)] if ranks else []
    step_s = median(_durations(steady)) if steady else None
    return Features(
        steps=len(steady),
        last_step=max((record.step for record in every), default=None),
        window_s=window_seconds(step_s),
        world_size=job.world_size,
        on_cpu=all(window.hello.device.type == "cpu" for window in windows) if windows else None,
        step_s=step_s,
        step_cv=_cv(_durations(steady)),
        work=_middle(steady, lambda record: record.tokens or record.samples),
        cpu_time=_middle(steady, attrgetter("cpu_time")),
        non_finite=_non_finite(every),
        skipped_streak=float(max((_streak(window.records) for window in windows), default=0)) if every else None,
        reserved_ratio=_ratio(job.memory.reserved, job.memory.allocated),
        **_phases(ranks),
        **_lateness(ranks),
        **_loss(_of_one_optimizer(windows)),
        **_memory(job),
        **_gpus(job.gpus),
        **_noise(job),
        **_experts(job.moe.layers if job.moe else [], windows),
    )


def _steady(records: Sequence[Record]) -> list[Record]:
    """Records past the warm-up, without steps that are spikes of something other than waiting for data."""
    known = [record for record in records if record.seq > WARM_UP and _is_span(record.duration)]
    if not known:
        return []
    limit = SPIKE * median(_durations(known))
    return [r for r in known if (r.duration or 0.0) <= limit or (r.data_wait or 0.0) >= 0.5 * limit]


def _is_span(value: float | None) -> bool:
    """A duration above zero and below four months; NaN is none."""
    return value is not None and 0 < value < 1e7


def _durations(records: Iterable[Record]) -> list[float]:
    return [record.duration for record in records if record.duration]


def _middle(records: Iterable[Record], read: Callable[[Record], float | None]) -> float | None:
    values = [value for record in records if (value := read(record)) is not None and math.isfinite(value)]
    return median(values) if values else None


def _cv(values: Sequence[float]) -> float | None:
    if len(values) < MIN_STEPS:
        return None
    mean = fmean(values)
    return math.sqrt(fmean((value - mean) ** 2 for value in values)) / mean if mean else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _share(values: Sequence[float | None], spans: Sequence[float]) -> float | None:
    """A phase's share of the step time: of the sums, so that a freeze in every n-th step counts in full."""
    if None in values:
        told = [(value, span) for value, span in zip(values, spans, strict=True) if value is not None]
        if not told:
            return None
        values, spans = zip(*told, strict=True)
    share = sum(value or 0.0 for value in values) / sum(spans)
    return share if math.isfinite(share) else None


def _phases(ranks: dict[int, list[Record]]) -> Part:
    """Median over the ranks; of collectives the least, since the others also wait for the last to come."""
    shares: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for records in ranks.values():
        spans, *columns = zip(*map(_PHASES_OF, records), strict=True)
        for phase, column in zip(PHASES, columns, strict=True):
            if (share := _share(column, spans)) is not None:
                shares[phase].append(min(share, 1.0))
    return {
        phase: (min(known) if phase == "communication" else median(known)) if known else None
        for phase, known in shares.items()
    }


def _own(record: Record) -> float | None:
    """A rank's time outside of backward and collectives: in there it also waits for the others."""
    if record.duration is None or record.backward is None:
        return None
    return record.duration - record.backward - (record.communication or 0.0)


def _lateness(ranks: dict[int, list[Record]]) -> Part:
    """How far the slowest rank comes behind the median of the others, in shares of a step."""
    if len(ranks) < 2:
        return {}
    shares = {
        rank: _share([_own(record) for record in records], _durations(records)) for rank, records in ranks.items()
    }
    own = {rank: share for rank, share in shares.items() if share is not None}
    if len(own) < 2:
        return {}
    last = max(own, key=lambda rank: own[rank])
    others = median(share for rank, share in own.items() if rank != last)
    return {"lateness": max(0.0, own[last] - others), "late_rank": last}


def _of_one_optimizer(windows: Sequence[RankWindow]) -> list[Record]:
    """The lowest rank's records, of its last optimizer only: the losses of two models are not one series."""
    told = [window for window in windows if window.records]
    if not told:
        return []
    records = min(told, key=lambda window: window.hello.rank).records
    return [record for record in records if record.optimizer == records[-1].optimizer]


def _loss(records: Sequence[Record]) -> Part:
    """Present level of loss and gradient norm, and the loss's noise between neighbours (from their MAD)."""
    losses = [r.loss for r in records if r.loss is not None and math.isfinite(r.loss)]
    norms = [r.grad_norm for r in records if r.grad_norm is not None and math.isfinite(r.grad_norm)]
    jumps = [abs(after - before) for before, after in pairwise(losses)]
    return {
        "loss": median(losses[-RECENT:]) if losses else None,
        "loss_noise": 1.4826 / math.sqrt(2) * median(jumps) if len(jumps) >= MIN_STEPS else None,
        "grad_norm": median(norms[-5:]) if norms else None,
    }


def _non_finite(newest: Sequence[Record]) -> bool | None:
    """Whether a rank's newest loss or gradient is no number. A skipped step's gradient may be: its scale was tried."""
    values = [record.loss for record in newest] + [record.grad_norm for record in newest if not record.skipped]
    known = [value for value in values if value is not None]
    return not all(math.isfinite(value) for value in known) if known else None


def _streak(records: Sequence[Record]) -> int:
    """Skipped steps in a row at the end, past the warm-up in which a loss scaler finds its scale."""
    count = 0
    for record in reversed(records):
        if not record.skipped or record.seq <= 2 * WARM_UP:
            break
        count += 1
    return count


def _memory(job: Job) -> Part:
    """Of the fullest device, as the driver sees it, else as the allocator does; what the process holds."""
    used = [share for gpu in job.gpus if (share := _ratio(gpu.memory_used, gpu.memory_total)) is not None]
    reserved = _ratio(job.memory.reserved, job.memory.device_total)
    now = job.memory.allocated if job.memory.device_total else job.memory.process_rss
    return {"memory_used": max(used) if used else reserved, "memory_now": now}


def _gpus(gpus: Sequence[Gpu]) -> Part:
    """Means over the job's GPUs; a throttle reason of any of them."""

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    busy = mean(gpu.utilization for gpu in gpus)
    reasons = [reason.lower() for gpu in gpus for reason in gpu.throttle or []]
    told = any(gpu.throttle is not None for gpu in gpus)
    capped = [gpu for gpu in gpus if any("power_cap" in reason.lower() for reason in gpu.throttle or [])]
    gaps = [1 - drawn for gpu in capped if (drawn := _ratio(gpu.power_w, gpu.power_limit_w)) is not None]
    return {
        "gpu_busy": busy,
        "gpu_idle": None if busy is None else 1 - busy,
        "hardware_throttle": any(part in reason for reason in reasons for part in HARDWARE) if told else None,
        "power_gap": max(gaps) if gaps else (0.0 if told else None),
        "sm_active": mean(gpu.sm_active for gpu in gpus),
        "tensor_active": mean(gpu.tensor_active for gpu in gpus),
        "dram_active": mean(gpu.dram_active for gpu in gpus),
        "sm_clock": min((gpu.sm_clock_mhz for gpu in gpus if gpu.sm_clock_mhz), default=None),
    }


def _noise(job: Job) -> Part:
    """B_noise / B, once it is a number or at least a lower bound; and the model FLOPs."""
    told = job.noise.state in ("number", "lower_bound")
    return {
        "noise_low": job.noise.phi_low if told else None,
        "noise_high": job.noise.phi_high if job.noise.state == "number" else None,
        "flops": job.mfu.achievable,
        "flops_nominal": job.mfu.value,
    }


def _experts(layers: Sequence[MoeLayer], windows: Sequence[RankWindow]) -> Part:
    """The worst layer of each kind: drops, the busiest expert, experts without a token."""
    dropping = [layer for layer in layers if layer.dropped_rate is not None]
    worst = max(dropping, key=lambda layer: layer.dropped_rate or 0.0, default=None)
    hot = max((_hot(layer) for layer in layers if layer.tokens_per_expert), default=(None, None, None))
    dead = [layer for layer in layers if _dead(layer)]
    return {
        "drop_rate": worst.dropped_rate if worst else None,
        "drop_expected": worst.expected_drop if worst else None,
        "drop_layer": worst.name if worst else None,
        **(roomier(worst, windows) if worst else {}),
        "hot_ratio": hot[0],
        "hot_share": hot[1],
        "hot_place": hot[2],
        "dead_experts": float(sum(map(_dead, layers))) if hot[0] is not None else None,
        "dead_place": ", ".join(layer.name for layer in dead) or None,
    }


def _hot(layer: MoeLayer) -> tuple[float, float, str]:
    """(load over the mean, share of the layer's tokens, name) of its busiest expert; 0 with too few tokens to tell."""
    counts = layer.tokens_per_expert or [0]
    mean, most = fmean(counts), max(counts)
    if mean < 100:
        return 0.0, 0.0, layer.name
    return most / mean, most / (sum(counts) / (layer.top_k or 1)), f"{layer.name} expert {counts.index(most)}"


def _dead(layer: MoeLayer) -> int:
    """Experts of a layer without a token, where each was expected to get a thousand."""
    counts = layer.tokens_per_expert or []
    return counts.count(0) if counts and fmean(counts) >= EXPECTED_TOKENS else 0
