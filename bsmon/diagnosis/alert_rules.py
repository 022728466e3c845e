"""What is worth an alert: one row each, with how long it must hold and how its limit comes about."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from bsmon.model import Job, MoeLayer, Severity
from bsmon.units import age, percent, si

STOPPED_BY_HAND = (130, -2)  # SIGINT: whoever pressed ctrl-c knows
WORTH_WAKING = ("unstable", "memory_limited", "throttled", "moe_imbalance")  # labels of critical verdicts
WHOLE = "all layers"
ARMED_AFTER = 20  # readings of a run before it is compared with its own median


class Reading(Struct, frozen=True):
    """What a rule sees in one place of one job."""

    value: float
    message: Callable[[], str]  # asked for only when there is an alert
    where: str = ""
    expected: float = 0.0  # what would be normal here, if the rule knows
    ago: float = 0.0  # seconds since it began, where the job itself tells


Measured = tuple[float, float]  # (value, limit); an alert is on its way while value > limit


class Usual(NamedTuple):
    """What a run's own readings are like: their median, and their MAD as a standard deviation."""

    middle: float
    spread: float


def usual(past: Sequence[float]) -> Usual | None:
    """None for too few readings to compare with."""
    if len(past) < ARMED_AFTER:
        return None
    middle = median(past)
    return Usual(middle, 1.4826 * median(abs(value - middle) for value in past))


@dataclass(frozen=True)
class AlertRule:
    """``measure`` turns a reading, and what is usual in this run, into value and limit; None: not armed yet."""

    name: str
    severity: Severity
    read: Callable[[Job], Iterable[Reading]]
    measure: Callable[[Reading, Usual | None], Measured | None]
    raise_after: float = 0.0  # seconds above the limit
    clear_after: float = 30.0  # seconds below 0.8 x the limit
    learns: bool = False  # from its own readings, so they are kept


def _drops(job: Job) -> Iterator[Reading]:
    """Dropped assignments, of the whole job and by layer."""
    if job.moe is None or job.state != "live":
        return
    dropping = [layer for layer in job.moe.layers if layer.dropped_rate is not None]
    if job.moe.dropped_rate is not None and dropping:
        worst = max(dropping, key=lambda layer: layer.dropped_rate or 0.0)
        expected = max(layer.expected_drop or 0.0 for layer in dropping)
        yield Reading(job.moe.dropped_rate, partial(_dropped, job.moe.dropped_rate, worst, True), WHOLE, expected)
    for layer in dropping:
        rate = layer.dropped_rate or 0.0
        yield Reading(rate, partial(_dropped, rate, layer), layer.name, layer.expected_drop or 0.0)


def _dropped(rate: float, layer: MoeLayer, whole: bool = False) -> str:
    return f"{percent(rate)}% of {'all' if whole else 'the'} assignments dropped{', most' * whole} in {_place(layer)}"


def _place(layer: MoeLayer) -> str:
    """The layer and, if its load is known, its busiest expert."""
    counts = layer.tokens_per_expert
    if not counts or not sum(counts):
        return layer.name
    busiest = counts.index(max(counts))
    return f"{layer.name} (busiest: expert {busiest}, {percent(counts[busiest] / sum(counts), 0)}% of its load)"


def drop_limit(reading: Reading, usual: Usual | None) -> Measured | None:
    """The greater of 2 x what balanced routing drops + 1 point, and 3 x the run's own median (proposed)."""
    return (reading.value, max(2 * reading.expected + 0.01, 3 * usual.middle)) if usual else None


def _throughput(job: Job) -> Iterator[Reading]:
    rate = job.tokens_per_s or job.samples_per_s
    if rate and job.state == "live":
        unit = "tokens" if job.tokens_per_s else "samples"
        yield Reading(rate, lambda: f"throughput fell to {si(rate)} {unit}/s" + _blame(job))


def _blame(job: Job) -> str:
    return f" ({job.regime.time.replace('_', '-')})" if job.regime.time not in (None, "unknown") else ""


def slowdown(reading: Reading, usual: Usual | None) -> Measured | None:
    """Share lost against the run's own median; 30%, and four times its own noise on a restless machine."""
    if usual is None:
        return None
    return max(0.0, 1 - reading.value / usual.middle), max(0.3, 4 * usual.spread / usual.middle)


def _not_a_number(job: Job) -> Iterator[Reading]:
    if job.loss is not None:
        yield Reading(float(not math.isfinite(job.loss)), lambda: f"the loss is {job.loss} at step {job.step}")


def _failed(job: Job) -> Iterator[Reading]:
    failed = job.state == "finished" and job.exit_code not in (None, 0, *STOPPED_BY_HAND)
    began = (job.age_s or 0.0) if failed else 0.0
    when = "before any step" if job.step is None else f"at step {job.step}"
    yield Reading(float(failed), lambda: f"ended with exit code {job.exit_code} {when}", ago=began)


def _lost(job: Job) -> Iterator[Reading]:
    lost = job.state == "lost"
    silent = (job.age_s or 0.0) if lost else 0.0
    yield Reading(float(lost), lambda: f"not heard for {age(silent)}: its process is gone, or its host", ago=silent)


def _stall(job: Job) -> Iterator[Reading]:
    idle = (job.age_s or 0.0) if job.state == "stale" else 0.0
    expected = job.step_time_s.median or 0.0
    yield Reading(idle, lambda: f"no step for {age(idle)} after step {job.step}", expected=expected, ago=idle)


def stall_limit(reading: Reading, usual: Usual | None) -> Measured:
    """A minute, or ten steps if they are longer: evaluation and checkpoints take their time."""
    return reading.value, max(60.0, 10 * reading.expected)


def _verdict(job: Job) -> Iterator[Reading]:
    """A critical verdict that somebody should be woken for; a loss that is no number has its own rule."""
    regime = job.regime
    urgent = regime.severity == "crit" and regime.label in WORTH_WAKING and job.state == "live"
    yield Reading(float(urgent and (job.loss is None or math.isfinite(job.loss))), lambda: regime.headline or "")


def truth(reading: Reading, usual: Usual | None) -> Measured:
    """For what is either so or not."""
    return reading.value, 0.5


ALERT_RULES: tuple[AlertRule, ...] = (
    AlertRule("drop_rate", "warn", _drops, drop_limit, raise_after=10.0, learns=True),
    AlertRule("nan_loss", "crit", _not_a_number, truth),
    AlertRule("failed", "crit", _failed, truth, clear_after=0.0),
    AlertRule("lost", "warn", _lost, truth, clear_after=0.0),
    AlertRule("stall", "warn", _stall, stall_limit, clear_after=5.0),
    AlertRule("throughput", "warn", _throughput, slowdown, raise_after=20.0, learns=True),
    AlertRule("verdict", "crit", _verdict, truth, raise_after=5.0),
)
