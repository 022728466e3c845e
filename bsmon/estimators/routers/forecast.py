"""What another batch size or capacity factor would drop, from the shares measured now, and how well such forecasts did.

Each expert's load in a group of T tokens is taken as normal with mean T p_e and variance D T p_e (1 - p_e): p_e its
measured share of the tokens, D the run's own dispersion (1 if tokens chose independently; topics make it larger).
Dropped share = Σ_e s_e [φ(z_e) - z_e (1 - Φ(z_e))] / (T k), z_e = (C - T p_e) / s_e.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from bsmon.estimators.routers.balance import overflow
from bsmon.estimators.routers.layers import per_expert
from bsmon.model import MoeCounts


class Forecast(NamedTuple):
    """A dropped share, and the same if the experts were balanced."""

    dropped_rate: float
    balanced: float
    capacity: int
    dispersion: float


class Backtest(NamedTuple):
    """Later steps forecast from the earlier ones of the same run, beside what they really dropped."""

    predicted: float
    measured: float
    steps: int


def shares(counts: Sequence[MoeCounts]) -> list[float] | None:
    """p_e: the share of the tokens that choose each expert; they sum to k."""
    tokens = sum(one.tokens for one in counts)
    load = per_expert(one.assigned for one in counts)
    return [count / tokens for count in load] if load and tokens else None


def dispersion(counts: Sequence[MoeCounts]) -> float:
    """D, from how much the shares move between neighbouring steps, so that a slow drift does not count; 1 if unknown.

    E[(x_t - x_u)²] = D p (1 - p) (1/T_t + 1/T_u) for the shares x of two steps with T_t and T_u tokens.
    """
    p = shares(counts)
    if p is None:
        return 1.0
    ratios = [
        (a / one.tokens - b / other.tokens) ** 2 / (share * (1 - share) * (1 / one.tokens + 1 / other.tokens))
        for one, other in pairwise(counts)
        if one.assigned and other.assigned and one.tokens and other.tokens
        for a, b, share in zip(one.assigned, other.assigned, p, strict=True)
        if 0 < share < 1
    ]
    return sum(ratios) / len(ratios) if ratios else 1.0


def forecast(
    counts: Sequence[MoeCounts], tokens: float, capacity_factor: float | None = None, capacity: int | None = None
) -> Forecast | None:
    """The dropped share in groups (calls or sequences) of ``tokens``; the capacity, or ceil(factor T k / E) of it."""
    p = shares(counts)
    if p is None or not sum(p) or tokens <= 0 or (capacity is None and capacity_factor is None):
        return None
    per_token = sum(p)
    if capacity is None:
        capacity = math.ceil((capacity_factor or 0.0) * tokens * per_token / len(p) - 1e-9)
    spread = dispersion(counts)
    even = [per_token / len(p)] * len(p)
    return Forecast(_dropped(p, tokens, capacity, spread), _dropped(even, tokens, capacity, 1.0), capacity, spread)


def _dropped(p: Sequence[float], tokens: float, capacity: int, spread: float) -> float:
    lost = (overflow(tokens * q, math.sqrt(spread * tokens * q * max(0.0, 1 - q)), capacity) for q in p)
    return sum(lost) / (tokens * sum(p))


def backtest(
    counts: Sequence[MoeCounts], capacity_factor: float | None, capacity: int | None = None
) -> Backtest | None:
    """Forecast the second half of these steps from the first at the capacity that held; None without drop counts."""
    half = len(counts) // 2
    earlier, later = counts[:half], counts[half:]
    if half < 1 or any(one.dropped is None for one in later):
        return None
    groups = sum(one.groups or one.calls or 1 for one in later)
    tokens, assignments = (sum(getattr(one, name) for one in later) for name in ("tokens", "assignments"))
    guess = forecast(earlier, tokens / groups, capacity_factor, capacity)
    if guess is None or not assignments:
        return None
    return Backtest(guess.dropped_rate, sum(one.dropped or 0 for one in later) / assignments, len(later))
