"""From step records of one process to rates, step times, phases and the batch. Pure; times in seconds.

A rate is a sum of counts over a sum of step durations in one window (never a mean of rates), so a missing record or a
step of another length does not bend it. A record without a duration (the first) or without the count is left out of
both sums.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from bsmon.config import WINDOW_MOST, WINDOW_SECONDS, WINDOW_STEPS
from bsmon.model import Batch, Phases, Record, StepTime

_PHASES = ("data_wait", "forward", "backward", "optimizer_time", "communication")


def recent(records: Sequence[Record], steps: int = WINDOW_STEPS, seconds: float = WINDOW_SECONDS) -> Sequence[Record]:
    """The newest records: those of the last ``seconds`` before the newest one, at least ``steps``, at most 1000."""
    if not records:
        return records
    by_time = bisect_left(records, records[-1].time - seconds, key=lambda record: record.time)
    return records[max(0, len(records) - WINDOW_MOST, min(by_time, len(records) - steps)) :]


def rate(records: Iterable[Record], count: Literal["tokens", "samples"]) -> float | None:
    """Tokens or samples per second of this process; None where no record tells."""
    total, elapsed = 0, 0.0
    for record in records:
        value = record.tokens if count == "tokens" else record.samples
        if value is not None and record.duration:
            total += value
            elapsed += record.duration
    return total / elapsed if elapsed > 0 else None


def durations(records: Iterable[Record]) -> list[float]:
    return [record.duration for record in records if record.duration]


def step_time(records: Iterable[Record]) -> StepTime:
    """Median and 95th percentile (nearest rank) of the step's duration."""
    ordered = sorted(durations(records))
    if not ordered:
        return StepTime()
    return StepTime(median=statistics.median(ordered), p95=ordered[math.ceil(0.95 * len(ordered)) - 1])


def phases(records: Sequence[Record]) -> Phases:
    """Mean seconds a step in each phase, over the steps that tell; ``other`` is what these leave of the step."""
    means = {name: _mean(getattr(record, name) for record in records) for name in _PHASES}
    known = [mean for mean in means.values() if mean is not None]
    whole = _mean(record.duration for record in records)
    other = max(0.0, whole - sum(known)) if whole is not None and known else None
    return Phases(optimizer=means.pop("optimizer_time"), other=other, **means)


def data_wait_share(record: Record) -> float | None:
    """Share of one step spent waiting for data."""
    if record.data_wait is None or not record.duration:
        return None
    return min(1.0, record.data_wait / record.duration)


def batch(records: Sequence[Record], data_parallel: int | None) -> Batch:
    """micro x accumulation x data-parallel = global, as most steps of the window have it; tokens are the mean."""
    micro = _usual(record.micro for record in records)
    accumulation = _usual(record.accumulation for record in records)
    samples = _usual(record.samples for record in records)
    if samples is None and micro is not None and accumulation is not None:
        samples = micro * accumulation
    tokens = _mean(record.tokens for record in records)
    told = [record for record in records if record.padding is not None and record.tokens]
    padded, counted = sum(record.padding or 0 for record in told), sum(record.tokens or 0 for record in told)
    return Batch(
        micro=micro,
        accumulation=accumulation,
        data_parallel=data_parallel,
        global_samples=samples * data_parallel if samples is not None and data_parallel else None,
        global_tokens=round(tokens * data_parallel) if tokens is not None and data_parallel else None,
        sequence_length=_usual(record.sequence_length for record in records),
        padding_share=padded / counted if counted else None,
    )


def eta(total_steps: int | None, step: int | None, median: float | None) -> float | None:
    """Seconds until the last step at the present median step time."""
    if total_steps is None or step is None or median is None:
        return None
    return max(0, total_steps - step) * median


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _usual(values: Iterable[int | None]) -> int | None:
    """The most common value; of two equally common ones the newer."""
    known = [value for value in values if value is not None]
    return Counter(reversed(known)).most_common(1)[0][0] if known else None
