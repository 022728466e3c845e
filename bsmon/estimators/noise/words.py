"""What a noise scale means for the batch, in numbers and in words.

A step at batch B makes 1 / (1 + B_noise/B) of the progress of a noiseless one (McCandlish et al. 2018), so that
S/S_min = 1 + phi and E/E_min = 1 + 1/phi for the steps S and the examples E to reach a given loss.
"""

from __future__ import annotations

from typing import NamedTuple

from bsmon.model import Noise
from bsmon.units import si

CAVEATS = (
    "a proxy for the critical batch, and often too low: only a branch from one checkpoint measures it",
    "it belongs to this learning rate: at another one, the same model shows another noise scale",
    "it counts independent sequences; tokens of one sequence are not independent",
)


class Change(NamedTuple):
    """Steps and tokens to the same loss at another batch, as multiples of those at the present one."""

    steps: float
    tokens: float


def change(phi: float, factor: float) -> Change:
    """What a batch ``factor`` times as large does: steps (1 + phi/k) / (1 + phi), tokens k times that."""
    steps = (1 + phi / factor) / (1 + phi)
    return Change(steps, steps * factor)


def meaning(noise: Noise) -> str | None:
    """The verdict as a sentence."""
    if noise.verdict == "noise_limited":
        return f"noise-limited: gradient noise is at least {si(noise.phi_low)}x the signal at this batch"
    if noise.verdict == "past_noise_scale":
        return "may be past the critical batch; verify with a branch"
    if noise.verdict == "efficient":
        return "efficient: signal and noise are in balance at this batch"
    return None


def trade(noise: Noise) -> list[str]:
    """What doubling and halving the batch would do, to the learning rate's own noise scale."""
    if noise.phi is None:
        return []
    twice, half = change(noise.phi, 2), change(noise.phi, 0.5)
    return [
        f"twice the batch: {1 - twice.steps:.0%} fewer steps for {twice.tokens - 1:.0%} more tokens",
        f"half the batch: {half.steps - 1:.0%} more steps for {1 - half.tokens:.0%} fewer tokens",
    ]


def standing(noise: Noise) -> str | None:
    """How far the measurement is, in a few words."""
    if noise.state in ("measuring", "unsupported", "invalid", "not_identifiable"):
        return f"{noise.state.replace('_', ' ')}: {noise.reason}" if noise.reason else noise.state
    if noise.state is None:
        return noise.reason
    if noise.steps_to_quarter is None and noise.state == "lower_bound":
        return f"at least {si(noise.phi_low)}x the batch; a window of this length will not tell more"
    if noise.steps_to_quarter:
        return f"about {noise.steps_to_quarter} more measured steps to ±25%"
    return None
