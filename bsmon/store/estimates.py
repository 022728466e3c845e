"""The parts of a job's view that estimators make from all ranks together: experts and the gradient noise scale.

They are the dear parts and change only when one more step was measured, so the last ones are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bsmon.config import WINDOW_SECONDS
from bsmon.estimators import noise, routers
from bsmon.model import Job, Moe, Noise, RankWindow, Record
from bsmon.store.process import Seen
from bsmon.store.reasons import Reasons

SAMPLED_STEPS = 8  # counted steps that a view of the experts rests on at least, where there are as many


class Memo(msgspec.Struct):
    """What was estimated last for one job, each with what it was made from."""

    noise: tuple[object, Noise] | None = None
    moe: tuple[object, Moe | None] | None = None


def fill_noise(job: Job, ranks: Sequence[Seen], why: Reasons, memo: Memo) -> None:
    """The noise scale over the newest measured steps of all ranks."""
    newest = [(seen.hello.session, len(seen.measured), seen.measured[-1].seq) for seen in ranks if seen.measured]
    basis = (newest, job.batch, ranks[0].hello.unavailable.get("noise"))
    if memo.noise is None or memo.noise[0] != basis:
        memo.noise = (basis, _noise(job, ranks))
    job.noise = memo.noise[1]
    if job.noise.reason:
        why.say("noise", job.noise.reason)


def _noise(job: Job, ranks: Sequence[Seen]) -> Noise:
    measured = noise.join_ranks(seen.measured for seen in ranks)
    return noise.estimate(
        noise.window(measured),
        job.batch.global_samples,
        job.batch.sequence_length,
        data_parallel=job.batch.data_parallel or 1,
        unsupported=ranks[0].hello.unavailable.get("noise") if not measured else None,
        steps_measured=len(measured),
    )


def fill_moe(job: Job, ranks: Sequence[Seen], why: Reasons, memo: Memo) -> None:
    """What the routers did in the last steps that were counted, all ranks together."""
    windows = [RankWindow(seen.hello, seen.beat, counted(seen.records) if seen.hello.routers else []) for seen in ranks]
    newest = [(one.hello.routers, one.records[0].seq, one.records[-1].seq) for one in windows if one.records]
    basis = (newest, ranks[0].hello.routers)
    if memo.moe is None or memo.moe[0] != basis:
        memo.moe = (basis, routers.moe(windows))
    job.moe = memo.moe[1]
    for index, layer in enumerate(job.moe.layers if job.moe else ()):
        if layer.reason:
            why.say(f"moe.layers.{index}", layer.reason)


def counted(records: Sequence[Record]) -> list[Record]:
    """The records of the last ten seconds in which routers were counted, but at least eight where there are as many."""
    found: list[Record] = []
    for record in reversed(records):
        if len(found) >= SAMPLED_STEPS and record.time < records[-1].time - WINDOW_SECONDS:
            break
        if record.moe:
            found.append(record)
    return found[::-1]
