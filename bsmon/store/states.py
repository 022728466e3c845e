"""What state a process and a job are in, from when they were heard. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.config import LOST_AFTER, STALE_AT_LEAST, STALE_STEPS
from bsmon.model import JobState
from bsmon.store.process import Seen


def process_state(seen: Seen, expected: float | None, now: float) -> JobState:
    """finished and lost by what was told, lost after a silence, stale when the ``expected`` step does not come."""
    if (seen.gone is not None and seen.gone.finished) or (seen.beat is not None and seen.beat.state == "finished"):
        return "finished"
    if seen.gone is not None or now - seen.heard > LOST_AFTER:
        return "lost"
    if seen.newest is None:
        return "starting"
    return "stale" if now - seen.newest.time > patience(expected) else "live"


def patience(expected: float | None) -> float:
    """Seconds without a step after which a process counts as stale; ``expected``: the usual seconds a step."""
    return LOST_AFTER if expected is None else max(STALE_STEPS * expected, STALE_AT_LEAST)


def job_state(found: Sequence[JobState]) -> JobState:
    """One state for all ranks: what still runs decides, and there the slowest, as ranks wait for each other."""
    order: tuple[JobState, ...] = ("stale", "live", "starting", "pending", "lost")
    return next((state for state in order if state in found), "finished")


def age(seen: Seen, state: JobState, now: float) -> float:
    """Seconds since the end, since it was last heard, or since its last step, whichever the state is about."""
    if state == "finished" and seen.gone is not None:
        return max(0.0, now - seen.gone.time)
    if state in ("live", "stale") and seen.newest is not None:
        return max(0.0, now - seen.newest.time)
    return max(0.0, now - seen.heard)
