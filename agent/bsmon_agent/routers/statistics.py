"""The handful of formulas that ``watch().read()`` needs. Sources: Shazeer et al. 2017 (arXiv 1701.06538) for the
coefficient of variation of the load, arXiv 2408.15664 for its largest violation; variances are population variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

IMPROBABLE = 0.01  # expected number of idle experts under balance below which an idle one counts as dead


def variance(counts: Sequence[int]) -> float | None:
    """Population variance of the assignments per expert."""
    if not counts:
        return None
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / len(counts)


def variation(counts: Sequence[int]) -> float | None:
    """Standard deviation over mean; None if nothing was assigned."""
    spread = variance(counts)
    return None if spread is None or not sum(counts) else math.sqrt(spread) * len(counts) / sum(counts)


def sampling_variation(tokens: int, experts: int, top_k: int | None) -> float | None:
    """The variation that balanced, independent choices would show: sqrt((1 - p) / (T p)), p = k / E."""
    if not tokens or not top_k or not experts:
        return None
    p = top_k / experts
    return math.sqrt(max(0.0, 1 - p) / (tokens * p))


def max_over_mean(counts: Sequence[int]) -> float | None:
    total = sum(counts)
    return max(counts) * len(counts) / total if total else None


def load_entropy(counts: Sequence[int]) -> float | None:
    """Entropy of the shares of the load over ln E: 1 when even, 0 when one expert has all."""
    total = sum(counts)
    if not total or len(counts) < 2:
        return None
    shares = [count / total for count in counts if count]
    return -sum(share * math.log(share) for share in shares) / math.log(len(counts))


def dead_experts(counts: Sequence[int], tokens: int, assignments: int) -> list[int] | None:
    """Experts without a token where that is improbable under balance: E (1 - p)^T below ``IMPROBABLE``."""
    experts = len(counts)
    if not tokens or not assignments or not experts:
        return None
    p = min(1.0, assignments / (tokens * experts))
    if experts * (1 - p) ** tokens >= IMPROBABLE:
        return []
    return [expert for expert, count in enumerate(counts) if not count]


def normalised(entropy: float | None, classes: int) -> float | None:
    """Nats over ln of the number of classes."""
    return None if entropy is None or classes < 2 else entropy / math.log(classes)
