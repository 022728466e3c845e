"""Formulas of the load: what was measured, and what perfectly balanced, independent choices would show.

n_e assignments to expert e of T tokens with k of E experts each; p = k / E, m = T p. Balanced, n_e is binomial(T, p).
Variances are population variances. CV as in Shazeer et al. 2017 (arXiv 1701.06538), MaxVio = max n_e / m - 1
(arXiv 2408.15664). The null formulas were compared with Monte Carlo draws: within 1-2 % from E = 64 up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

IMPROBABLE = 0.01
"""Expected number of idle experts under balance, below which one that got nothing counts as dead."""


def variance(counts: Sequence[int]) -> float | None:
    """(1/E) Σ (n_e - m)²."""
    if not counts:
        return None
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / len(counts)


def variation(counts: Sequence[int]) -> float | None:
    """Coefficient of variation, sqrt(variance) / m; None if nothing was assigned."""
    spread, total = variance(counts), sum(counts)
    return None if spread is None or not total else math.sqrt(spread) * len(counts) / total


def max_over_mean(counts: Sequence[int]) -> float | None:
    """max n_e / m: MaxVio + 1."""
    total = sum(counts)
    return max(counts) * len(counts) / total if total else None


def load_entropy(counts: Sequence[int]) -> float | None:
    """Entropy of the shares of the load over ln E: 1 when even, 0 when one expert has all."""
    total = sum(counts)
    if not total or len(counts) < 2:
        return None
    shares = [count / total for count in counts if count]
    return -sum(share * math.log(share) for share in shares) / math.log(len(counts))


def null_cv(tokens: float, experts: int, per_token: float) -> float | None:
    """CV of balanced sampling: sqrt((1 - p) / (T p))."""
    if tokens <= 0 or experts <= 0 or per_token <= 0:
        return None
    p = per_token / experts
    return math.sqrt(max(0.0, 1 - p) / (tokens * p))


def expected_max_over_mean(tokens: float, experts: int, per_token: float) -> float | None:
    """Upper estimate of the busiest expert's load over the mean under balance: 1 + CV0 sqrt(2 ln E)."""
    spread = null_cv(tokens, experts, per_token)
    return None if spread is None else 1 + spread * math.sqrt(2 * math.log(max(experts, 1)))


def idle_probability(tokens: float, experts: int, per_token: float) -> float:
    """That one given expert gets no token although the routing is balanced: (1 - p)^T."""
    return max(0.0, 1 - per_token / experts) ** tokens if experts > 0 else 1.0


def dead_experts(counts: Sequence[int], tokens: int, assignments: int) -> list[int] | None:
    """Experts without a token, in a window where balance would have left fewer than ``IMPROBABLE`` idle."""
    experts = len(counts)
    if not tokens or not assignments or not experts:
        return None
    if experts * idle_probability(tokens, experts, assignments / tokens) >= IMPROBABLE:
        return []
    return [expert for expert, count in enumerate(counts) if not count]


def overflow(mean: float, spread: float, capacity: float) -> float:
    """E[max(0, n - C)] for n normal with this mean and standard deviation: s [φ(z) - z (1 - Φ(z))], z = (C - m) / s."""
    if spread <= 0:
        return max(0.0, mean - capacity)
    z = (capacity - mean) / spread
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return spread * (density - z * math.erfc(z / math.sqrt(2)) / 2)


def expected_drop(tokens: float, experts: int, per_token: float, capacity: float) -> float | None:
    """Share of the assignments that balanced routing drops; tokens and capacity are of one group (call, sequence)."""
    if tokens <= 0 or experts <= 0 or per_token <= 0:
        return None
    p = min(1.0, per_token / experts)
    mean = tokens * p
    return overflow(mean, math.sqrt(mean * (1 - p)), capacity) / mean
