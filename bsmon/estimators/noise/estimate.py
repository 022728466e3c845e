"""From measured steps to the gradient noise scale, its interval, its state and what it means for the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from bsmon.estimators.noise import interval
from bsmon.estimators.noise.interval import MINIMUM, Ratio
from bsmon.estimators.noise.pairs import Pair, mismatch, pair
from bsmon.model import Noise, NoiseSample

RING = 256  # newest measured steps that an estimate rests on
MISMATCHED = 0.1  # share of steps with a mismatch from which none is trusted
CLEAR = 2.0  # half-widths below zero at which a negative signal is no longer chance
NOISE_LIMITED = 4.0  # the verdicts' limits on phi
PAST = 0.5
QUARTER = 0.25  # relative half-width to reach


def estimate(
    samples: Sequence[NoiseSample],
    batch_sequences: float | None = None,
    sequence_length: float | None = None,
    *,
    data_parallel: int = 1,
    unsupported: str | None = None,
    steps_measured: int | None = None,
    ring: int = RING,
) -> Noise:
    """The noise scale of a window (see ``window``), oldest sample first.

    ``batch_sequences``: sequences in an optimizer step, all processes together. ``data_parallel``: how many processes
    share them; a sample that holds fewer (``processes``) measured a part of the batch and is brought to the whole.
    ``unsupported``: why the agent can't measure. ``steps_measured``: when more were measured than the window holds.
    ``ring``: the newest steps to use.
    """
    samples = samples[-ring:]
    if unsupported:
        return Noise(state="unsupported", reason=unsupported)
    if not samples:
        return _measuring(0, 0)
    newest = samples[-1]
    view = _judged(samples, newest.processes / max(data_parallel, newest.processes))
    view.steps_measured = max(len(samples), steps_measured or 0)
    view.estimator, view.coverage = newest.estimator, newest.coverage
    if view.phi is not None and batch_sequences:
        view.b_noise_sequences = view.phi * batch_sequences
        view.b_noise_tokens = view.b_noise_sequences * sequence_length if sequence_length else None
    return view


def _judged(samples: Sequence[NoiseSample], share: float) -> Noise:
    """State, ratio and interval; ``share``: of the whole batch, what the samples saw."""
    reasons = [reason for reason in map(mismatch, samples) if reason]
    if len(reasons) > MISMATCHED * len(samples):
        return Noise(state="invalid", reason=f"{reasons[-1]} ({len(reasons)} of {len(samples)} steps)", window=0)
    pairs = [found for sample in samples if not mismatch(sample) and (found := pair(sample))]
    if len(pairs) < MINIMUM:
        return _measuring(len(pairs), len(samples) - len(pairs))
    pairs = interval.steady(pairs)
    signal, noise = (interval.mean(column) for column in zip(*pairs, strict=True))
    if noise.low <= 0:
        view = _quiet(pairs, signal, noise)
    else:
        psi = interval.psi(pairs)
        view = _noisy(psi)
        view.steps_to_quarter = _to_quarter(psi, len(pairs)) if view.state in ("number", "lower_bound") else None
    view.window = len(pairs)
    view.signal, view.noise = signal.value, noise.value * share
    view.phi, view.phi_low, view.phi_high = (
        None if value is None else value * share for value in (view.phi, view.phi_low, view.phi_high)
    )
    view.verdict = verdict(view)
    return view


def _measuring(usable: int, unusable: int) -> Noise:
    waste = f"; {unusable} could not be used (not finite, or of one part)" if unusable else ""
    return Noise(state="measuring", reason=f"{usable} of {MINIMUM} measured steps{waste}", window=usable)


def _noisy(psi: Ratio) -> Noise:
    """The noise is there: psi and its interval, inverted."""
    if psi.high < 0 and psi.value + CLEAR * psi.half < 0:
        return Noise(state="invalid", reason="the parts outweigh the gradient: it was clipped, scaled or thrown away")
    if psi.high <= 0:
        return Noise(state="not_identifiable", reason="no signal in this window: the noise is all that shows")
    if psi.low <= 0:
        reason = "the signal cannot be told from zero in this window: only a lower end is known"
        return Noise(state="lower_bound", reason=reason, phi_low=1 / psi.high)
    return Noise(state="number", phi=1 / psi.value, phi_low=1 / psi.high, phi_high=1 / psi.low)


def _to_quarter(psi: Ratio, window: int) -> int | None:
    """More measured steps until the interval is about +-25%, narrowing with their root. None: the ring is too short."""
    if psi.value <= 0:
        return None
    needed = math.ceil(window * (psi.half / psi.value / QUARTER) ** 2)
    return max(0, needed - window) if needed <= RING else None


def _quiet(pairs: Sequence[Pair], signal: Ratio, noise: Ratio) -> Noise:
    """The noise can't be told from zero: an upper end alone, made for phi itself."""
    if signal.low <= 0:
        return Noise(state="not_identifiable", reason="neither signal nor noise can be told from zero in this window")
    if noise.high < 0 and -noise.value > 1e-3 * signal.value:
        return Noise(state="invalid", reason="the gradient is larger than its parts allow")
    phi = interval.ratio([pair.noise for pair in pairs], [pair.signal for pair in pairs])
    return Noise(state="number", phi=max(0.0, phi.value), phi_low=0.0, phi_high=max(0.0, phi.high))


def verdict(noise: Noise) -> Literal["noise_limited", "efficient", "past_noise_scale"] | None:
    """Where the batch stands, when the whole interval says so."""
    if noise.phi_low is not None and noise.phi_low > NOISE_LIMITED:
        return "noise_limited"
    if noise.phi_high is None or noise.phi_low is None:
        return None
    if noise.phi_high < PAST:
        return "past_noise_scale"
    return "efficient" if noise.phi_low >= PAST and noise.phi_high <= NOISE_LIMITED else None
