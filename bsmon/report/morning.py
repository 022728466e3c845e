"""The morning after, in one text screen: did it run, how fast, what limited it, what to change, what happened when."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median, quantiles

import msgspec

from bsmon.draw.cells import clean, fit, wrap
from bsmon.draw.header import plural
from bsmon.draw.look import GLYPHS
from bsmon.draw.marks import MARKS, standing
from bsmon.draw.numbers import compact, exact
from bsmon.draw.spark import spark
from bsmon.model import Job, Regime, Severity
from bsmon.units import age, percent, seconds, si

WIDTH = 100  # cells
LABEL = 14
HAPPENED = 8  # of one job, the worst and newest
COLUMNS = 60  # of the course of the throughput
ASCII = GLYPHS["ascii"]
LITTLE = 0.05  # share of the time that a verdict must have held to be named


class Happened(msgspec.Struct):
    """An alert: when, how bad, what; ``until`` None: it still stood at the end."""

    since: float
    severity: Severity
    message: str
    until: float | None = None


class Course(msgspec.Struct):
    """One job from the first to the last time that it was seen."""

    job: Job  # as it was seen last
    first_step: int | None
    first_loss: float | None
    rates: list[float] = []  # tokens a second, or samples where tokens are not known
    step_times: list[float] = []  # median seconds a step
    held: dict[str, float] = {}  # label -> seconds
    regimes: dict[str, Regime] = {}  # label -> as it was found last
    throughput: list[float | None] = []  # in equal stretches of the recording
    happened: list[Happened] = []

    @property
    def unit(self) -> str:
        return "tok/s" if self.job.token_source or self.job.tokens_per_s else "samples/s"


class Night(msgspec.Struct):
    """What a recording tells, played from its beginning to its end."""

    name: str
    first: float
    last: float
    courses: list[Course]  # of the jobs that ran while it was recorded
    before: int  # jobs that had ended before
    ended: bool  # by a recorder that was asked to end
    growing: bool
    problem: str | None = None


def text(night: Night, width: int = WIDTH) -> str:
    """The report."""
    lines = [*_whole(night, width)]
    for course in night.courses:
        lines += ["", *_course(night, course, width)]
    return "\n".join(line.rstrip() for line in lines)


def _whole(night: Night, width: int) -> Iterator[str]:
    span = f"{_moment(night.first)} .. {_moment(night.last)} ({age(night.last - night.first)})"
    yield fit(f"{clean(night.name)}  {span}  {plural(len(night.courses), 'job')}", width, ellipsis=ASCII.ellipsis)
    if night.growing:
        yield "  still being written: this is how it stands so far"
    elif not night.ended:
        yield f"  the recorder was cut off; what came after {_moment(night.last)} is not known"
    if night.problem:
        yield from _entry("damage", night.problem, width)
    if night.before:
        yield f"  {plural(night.before, 'job')} had ended before it was begun"


def _course(night: Night, course: Course, width: int) -> Iterator[str]:
    job = course.job
    yield fit(f"{standing(job).mark or ' '} {clean(job.name)}  {_fate(job, night)}", width, ellipsis=ASCII.ellipsis)
    yield from _entry("steps", _progress(course), width)
    yield from _entry("speed", _speed(course), width)
    if any(value is not None for value in course.throughput):
        begin, end = (time.strftime("%H:%M", time.localtime(moment)) for moment in (night.first, night.last))
        drawn = spark(course.throughput, min(COLUMNS, width - LABEL - 14), ASCII)
        yield f"{'':{LABEL}}{begin} {drawn} {end}"
    yield from _limits(course, width)
    yield from _events(course, width)


def _fate(job: Job, night: Night) -> str:
    """Whether it ran, and until when."""
    ran = f"after {age(night.last - (job.age_s or 0.0) - job.started)}" if job.started is not None else ""
    when = _moment(night.last - (job.age_s or 0.0))
    if job.state == "finished":
        code = "" if job.exit_code is None else f" with exit code {job.exit_code}"
        return f"ended{code} at {when} {ran}"
    if job.state == "lost":
        return f"not heard since {when}: its process is gone, or its host"
    if job.state == "stale":
        return f"no step since {when}"
    return f"{job.state} at the end of the recording, {ran.replace('after', 'up')}"


def _progress(course: Course) -> str:
    job = course.job
    steps = f"{exact(course.first_step)} to {exact(job.step)}" if course.first_step != job.step else exact(job.step)
    whole = f" of {exact(job.total_steps)}" if job.total_steps else ""
    was = f"{compact(course.first_loss, 4)} to " if course.first_loss is not None else ""
    lost = f", {exact(job.dropped_records)} records lost" if job.dropped_records else ""
    return f"{steps}{whole}, loss {was}{compact(job.loss, 4)}{lost}"


def _speed(course: Course) -> str:
    if not course.rates:
        return "n/a: no rate was known while it was recorded"
    middle = f"{si(median(course.rates))} {course.unit} in the median"
    tenths = quantiles(course.rates, n=10) if len(course.rates) > 20 else None
    spread = f" ({si(tenths[0])} .. {si(tenths[-1])} eight tenths of the time)" if tenths else ""
    steps = f", {seconds(median(course.step_times))} a step" if course.step_times else ""
    return middle + spread + steps


def _limits(course: Course, width: int) -> Iterator[str]:
    """What it was limited by, the longest first, and what was said of it."""
    total = sum(course.held.values())
    order = sorted(course.held, key=lambda label: -course.held[label])
    shares = [(label, course.held[label] / total) for label in order] if total else []
    named = [f"{_word(label)} {percent(share, 0)}%" for label, share in shares if share >= LITTLE]
    yield from _entry("limited by", ", ".join(named) or "n/a: it was not seen training", width)
    known = next((label for label, share in shares if label != "unknown" and share >= LITTLE), None)
    if known is None:
        missing = "; ".join(course.job.regime.missing)
        if missing:
            yield from _entry("missing", missing, width)
        return
    regime = course.regimes[known]
    yield from _entry("why", "; ".join(regime.evidence), width)
    if regime.advice:
        yield from _entry("change", "; ".join(regime.advice) + (f" ({regime.gain})" if regime.gain else ""), width)


def _events(course: Course, width: int) -> Iterator[str]:
    severities = list(MARKS)
    worst = sorted(course.happened, key=lambda one: (severities.index(one.severity), -one.since))
    shown = sorted(worst[:HAPPENED], key=lambda one: one.since)
    heads = ["happened"] + [""] * (len(shown) - 1)
    for head, one in zip(heads, shown, strict=False):
        held = "still so at the end" if one.until is None else f"for {age(one.until - one.since)}"
        line = f"{_moment(one.since)}  {MARKS[one.severity]} {clean(one.message)}, {held}"
        yield from _entry(head, line, width)
    if not shown:
        yield from _entry("happened", "no alert was raised", width)
    elif len(worst) > len(shown):
        yield f"{'':{LABEL}}and {plural(len(worst) - len(shown), 'lesser or older alert')}; `bsmon replay` shows them"


def _entry(label: str, said: str, width: int) -> Iterator[str]:
    """A label in the margin, and text with a hanging indent."""
    lines: Sequence[str] = wrap(clean(said), width - LABEL, 3, ASCII.ellipsis)
    for head, line in zip([f"  {label}", *[""] * len(lines)], lines, strict=False):
        yield f"{head:{LABEL}}{line}"


def _word(label: str) -> str:
    return clean(label).replace("_", "-") if label != "unknown" else "not decided"


def _moment(moment: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(moment))
