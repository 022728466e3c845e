"""What limits a job, why one thinks so, and what to try."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.draw.cells import Row, clean, fit, spread, width_of, wrap
from bsmon.draw.header import since
from bsmon.draw.look import Look
from bsmon.draw.marks import Standing
from bsmon.draw.numbers import compact, exact
from bsmon.model import Job

INDENT = 10


def identity(job: Job, state: Standing, now: float, width: int, look: Look) -> Row:
    """Name, place, step and loss at the left; the verdict and for how long it holds at the right."""
    where = clean(job.host) + (f":{job.world_size}" if job.world_size > 1 else "")
    step = f"step {exact(job.step)}" + (f" of {exact(job.total_steps)}" if job.total_steps else "")
    facts = f"  {where}  {step}  loss {compact(job.loss, 4)}"
    verdict: Row = [(f"{state.mark} {state.word}".strip(), state.style or "bold"), (f" {since(state, now)} ", "dim")]
    room = max(8, width - width_of(verdict) - 2)
    name = fit(clean(job.name), min(room, 40), ellipsis=look.glyphs.ellipsis).rstrip()
    return spread(
        [(f" {name}", "title"), (fit(facts, max(0, room - len(name)), ellipsis=look.glyphs.ellipsis), "dim")],
        verdict,
        width,
    )


def _entry(label: str, text: str, width: int, lines: int, look: Look, style: str = "") -> list[Row]:
    """A label in the margin, and text with a hanging indent."""
    wrapped = wrap(clean(text), max(1, width - INDENT - 1), lines, look.glyphs.ellipsis)
    heads = [f" {label:<{INDENT - 1}}", *[" " * INDENT] * (len(wrapped) - 1)]
    return [[(head, "dim"), (line, style)] for head, line in zip(heads, wrapped, strict=True)]


def _joined(parts: Sequence[str]) -> str:
    return "; ".join(part.rstrip(".;") for part in parts)


def _advice(job: Job) -> str:
    """The advice with what it would gain, and how to check before one acts."""
    regime = job.regime
    text = _joined(regime.advice[:1]) + (f": {regime.gain}" if regime.gain else "")
    return f"{text}. Check: {regime.check}" if regime.check else text


def why(job: Job, state: Standing) -> str:
    """Evidence for the verdict, or what is known instead of one."""
    if job.state == "lost":
        return "it is not heard any more: its process is gone, or its host; the last values are kept"
    if job.state == "finished":
        return f"it ended with exit code {job.exit_code}" if job.exit_code is not None else "it ended"
    if job.state == "starting":
        return "the agent is in and waits for the first optimizer step"
    if job.regime.severity is None and job.regime.headline:
        return job.regime.headline
    return _joined(job.regime.evidence) or job.regime.headline or "not enough steps yet for a verdict"


def brief(job: Job, state: Standing, now: float, width: int, look: Look) -> list[Row]:
    """Three rows for the fleet page."""
    advice = _advice(job)
    missing = _joined(job.regime.missing)
    second = (
        _entry("try", advice, width, 1, look)
        if advice
        else _entry("missing", missing, width, 1, look)
        if missing
        else [[]]
    )
    return [identity(job, state, now, width, look), *_entry("why", why(job, state), width, 1, look), *second]


def full(job: Job, state: Standing, now: float, width: int, height: int, look: Look) -> list[Row]:
    """Everything the diagnosis has to say, in at most ``height`` rows, the most useful first."""
    regime = job.regime
    entries = [
        ("why", why(job, state), 2),
        ("try", _joined(regime.advice) + (f" ({regime.gain})" if regime.gain else ""), 2),
        ("check", regime.check or "", 1),
        ("missing", _joined(regime.missing), 1),
        ("note", _joined(job.notes), 1),
    ]
    rows = [identity(job, state, now, width, look)]
    for label, text, lines in entries:
        if text and len(rows) < height:
            rows += _entry(
                label, text, width, min(lines, height - len(rows)), look, "dim" if label in ("missing", "note") else ""
            )
    return rows
