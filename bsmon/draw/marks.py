"""How a job stands, as a mark, a word and a style: the mark and the word are enough without colour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bsmon.draw.cells import clean
from bsmon.model import Alert, Job, Severity

MARKS: dict[Severity, str] = {"crit": "X", "warn": "!", "note": "~"}
WORTH_A_GLANCE: tuple[Severity, ...] = ("crit", "warn")
_ORDER: dict[Severity | None, int] = {"crit": 0, "warn": 2, "note": 6, None: 7}
_FRESH = 600.0  # seconds for which a run that failed stands above those that still train


class Standing(NamedTuple):
    """``order`` 0 is the worst; ``since`` is None where it is not known."""

    mark: str
    word: str
    style: str
    order: int
    since: float | None = None


def standing(job: Job, alerts: Iterable[Alert] = ()) -> Standing:
    """The state of a job that is not running tells first, then the worse of its verdict and its raised alerts."""
    if job.state == "lost":
        return Standing("?", "lost", "dim", 3)
    if job.state == "finished":
        failed = bool(job.exit_code)
        fresh = job.age_s is None or job.age_s < _FRESH
        failure = Standing("X", f"exit {job.exit_code}", "crit", 1 if fresh else 5)
        return failure if failed else Standing(".", "finished", "dim", 9)
    worst = worst_alert(alert for alert in alerts if alert.job == job.id)
    severity, word, since = job.regime.severity, verdict_word(job), job.regime.since
    if worst is not None and _ORDER[worst.severity] < _ORDER[severity]:
        severity, word, since = worst.severity, clean(worst.rule).replace("_", "-"), worst.since
    if job.state == "stale":
        return Standing("?", "stale", "dim", min(4, _ORDER[severity]), since)
    if job.state in ("starting", "pending"):
        return Standing(" ", job.state, "dim", 8)
    if severity is None:
        return Standing(" ", word, "" if job.regime.label not in (None, "unknown") else "dim", 7, since)
    return Standing(MARKS[severity], word, severity, _ORDER[severity], since)


def verdict_word(job: Job) -> str:
    """The label as a word; a run of which nothing is to be said is no riddle, so it isn't called unknown."""
    label = job.regime.label
    if label == "unknown" and job.regime.severity is None:
        return "no finding"
    return clean(label).replace("_", "-") if label else "measuring"


def worst_alert(alerts: Iterable[Alert]) -> Alert | None:
    """The newest of the worst that are raised."""
    raised = [alert for alert in alerts if alert.state == "raised"]
    return min(raised, key=lambda alert: (_ORDER[alert.severity], -alert.since), default=None)


def counts(standings: Iterable[Standing]) -> dict[Severity, int]:
    """How many jobs are in each severity."""
    tally: dict[Severity, int] = {"crit": 0, "warn": 0, "note": 0}
    for each in standings:
        for severity, mark in MARKS.items():
            tally[severity] += each.mark == mark
    return tally
