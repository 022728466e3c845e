"""The parts of a job's view that estimators make from all ranks together: the gradient noise scale."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.estimators import noise
from bsmon.model import Job, Noise
from bsmon.store.process import Seen
from bsmon.store.reasons import Reasons

Memo = dict[str, tuple[object, Noise]]  # by job: what the last estimate was made from, and the estimate


def fill_noise(job: Job, ranks: Sequence[Seen], why: Reasons, memo: Memo) -> None:
    """The noise scale over the newest measured steps of all ranks; made again when one more was measured."""
    newest = [(seen.hello.session, len(seen.measured), seen.measured[-1].seq) for seen in ranks if seen.measured]
    basis = (newest, job.batch, ranks[0].hello.unavailable.get("noise"))
    known = memo.get(job.id)
    if known is None or known[0] != basis:
        memo[job.id] = known = (basis, _estimate(job, ranks))
    job.noise = known[1]
    if job.noise.reason:
        why.say("noise", job.noise.reason)


def _estimate(job: Job, ranks: Sequence[Seen]) -> Noise:
    measured = noise.join_ranks(seen.measured for seen in ranks)
    return noise.estimate(
        noise.window(measured),
        job.batch.global_samples,
        job.batch.sequence_length,
        data_parallel=job.batch.data_parallel or 1,
        unsupported=ranks[0].hello.unavailable.get("noise") if not measured else None,
        steps_measured=len(measured),
    )
