"""The gradient noise scale in words: how it stands to the batch, how sure that is, or why it can't be told."""

from __future__ import annotations

from bsmon.draw.cells import Row
from bsmon.draw.fleet import noise_over_batch
from bsmon.draw.numbers import compact, multiple
from bsmon.model import Job

_VERDICTS = {
    "noise_limited": "a larger batch would pay",
    "efficient": "the batch fits",
    "past_noise_scale": "a smaller batch would do",
}


def value(job: Job) -> Row:
    """The estimate over the batch, with its interval."""
    noise = job.noise
    if noise.phi is None and noise.phi_low is None:
        return [("measuring", "dim")] if noise.state == "measuring" else [("n/a", "dim")]
    interval: Row = []
    if noise.phi_low is not None and noise.phi_high is not None:
        interval = [(f" ({multiple(noise.phi_low)} to {multiple(noise.phi_high)})", "dim")]
    return [(noise_over_batch(job), ""), *interval, (" of the batch", "dim")]


def reading(job: Job) -> str:
    """One sentence: what the estimate means, or what it waits for."""
    noise = job.noise
    if noise.verdict is not None and noise.b_noise_sequences is not None:
        return f"noise scale {compact(noise.b_noise_sequences)} sequences: {_VERDICTS[noise.verdict]}"
    if noise.state == "measuring":
        measured = f"{noise.steps_measured or 0} steps measured"
        wait = f", about {noise.steps_to_quarter} more until it is good to 25%" if noise.steps_to_quarter else ""
        return noise.reason or measured + wait
    return noise.reason or job.unavailable.get("noise", "the agent does not measure it here")
