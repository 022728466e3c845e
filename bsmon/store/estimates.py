"""The parts of a job's view that estimators make from all ranks together: the gradient noise scale."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.estimators import noise
from bsmon.model import Job
from bsmon.store.process import Seen
from bsmon.store.reasons import Reasons


def fill_noise(job: Job, ranks: Sequence[Seen], why: Reasons) -> None:
    """The noise scale over the newest measured steps of all ranks."""
    measured = noise.join_ranks(seen.measured for seen in ranks)
    job.noise = noise.estimate(
        noise.window(measured),
        job.batch.global_samples,
        job.batch.sequence_length,
        data_parallel=job.batch.data_parallel or 1,
        unsupported=ranks[0].hello.unavailable.get("noise") if not measured else None,
        steps_measured=len(measured),
    )
    if job.noise.reason:
        why.say("noise", job.noise.reason)
