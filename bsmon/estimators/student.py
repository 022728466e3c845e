"""Quantiles of Student's t, exact for whole degrees of freedom."""

from __future__ import annotations

import math
from functools import lru_cache


def central(t: float, dof: int) -> float:
    """P(|T| < t) by the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(dof))
    cosine = math.cos(theta)
    odd = dof % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(2 if odd else 1, dof, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total


@lru_cache(maxsize=512)
def quantile(confidence: float, dof: int) -> float:
    """The t for which P(|T| < t) = ``confidence``, two-sided; ``dof`` from 1 on."""
    if dof < 1 or not 0 < confidence < 1:
        raise ValueError("confidence must lie between 0 and 1, and there must be a degree of freedom")
    low, high = 0.0, 1.0
    while central(high, dof) < confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if central(middle, dof) < confidence else (low, middle)
    return high
