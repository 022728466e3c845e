"""One measured step as a pair: the squared signal and the noise that its gradients show.

McCandlish et al. 2018 (arXiv:1812.06162), appendix A, for any number of parts. Let h_r be what micro-batch, rank or
half r contributed to the applied gradient g = sum h_r, with weight w_r (E[h_r] = w_r G)::

    Q = (|g|^2 - sum |h_r|^2) / (1 - sum w_r^2)     unbiased for |G|^2
    N = |g|^2 - Q                                   unbiased for tr Sigma / B

Neither needs the batch size, and a common factor on the loss leaves their ratio alone.
"""

from __future__ import annotations

from typing import NamedTuple

from bsmon.model import NoiseSample

RESIDUAL_LIMIT = 1e-3  # squared share of g that its parts may leave unexplained (half precision leaves 1e-5)
OVERFLOW = 1e100  # squared norms beyond this are an overflow, like inf and NaN
EXCESS_LIMIT = 1e-2  # how far |g|^2 may exceed R sum |h_r|^2 by rounding


class Pair(NamedTuple):
    """Unbiased for |G|^2 and tr Sigma / B, in the squared units of the gradient."""

    signal: float
    noise: float


def contributions(sample: NoiseSample) -> float:
    """R: parts in all processes together, those that are not in this sample included."""
    return len(sample.parts) * sample.processes / sample.seen


def pair(sample: NoiseSample) -> Pair | None:
    """The pair of one step; None if it has fewer than two parts or a number that is not finite."""
    unseen = sample.processes / sample.seen
    if contributions(sample) < 2 or not sample.parts:
        return None
    parts = sum(sample.parts) * unseen
    weights = sample.weights or [1 / contributions(sample)] * len(sample.parts)
    spread = sum(weight * weight for weight in weights) * unseen
    if spread >= 1 or not (0 <= sample.total < OVERFLOW and 0 <= parts < OVERFLOW):
        return None
    signal = (sample.total - parts) / (1 - spread)
    return Pair(signal, sample.total - signal)


def mismatch(sample: NoiseSample) -> str | None:
    """Why the parts of this step can't be those of its total, or None. |g|^2 <= R sum |h_r|^2 is Cauchy-Schwarz."""
    if sample.residual is not None and sample.residual > RESIDUAL_LIMIT:
        return "the parts do not add up to the gradient: it was not zeroed before the step, or changed during it"
    if sample.seen < sample.processes:
        return None  # the parts of the others could be larger
    bound = contributions(sample) * sum(sample.parts)
    if sample.total > bound * (1 + EXCESS_LIMIT):
        return "the gradient is larger than its parts allow: another scale, or parts that were not seen"
    return None
