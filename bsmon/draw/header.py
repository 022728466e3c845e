"""The lines at the top and at the bottom of every page."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bsmon.draw.cells import Row, clean, fit, spread, width_of
from bsmon.draw.look import Look
from bsmon.draw.marks import MARKS, WORTH_A_GLANCE, Standing, counts
from bsmon.model import Alert, Job
from bsmon.units import age


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def header(
    jobs: Sequence[Job],
    standings: Sequence[Standing],
    hidden: int,
    rate: float,
    behind: float | None,
    now: float,
    width: int,
    title: str = "LIVE",
) -> Row:
    """Who is watched, how many of them stand how, and whether what is shown is the present.

    ``hidden`` jobs are left out by the filter; ``behind`` is set while the view is paused, in seconds.
    ``title`` says what kind of present it is.
    """
    hosts = plural(len({job.host for job in jobs}), "host")
    shown = plural(len(jobs), "job") + (f" of {len(jobs) + hidden}" if hidden else "")
    left: Row = [(" bsmon", "title"), (f"  {shown}  {hosts}  {rate:g} Hz", "dim")]
    tally: Row = []
    for severity, count in counts(standings).items():
        if count and severity != "note":
            tally += [(f"{MARKS[severity]} {count} {severity}", severity), ("   ", "")]
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    if behind is not None:
        state: Row = [(f"PAUSED, {behind:.0f} s behind, still recording", "warn"), (f"  {clock} ", "")]
    else:
        state = [(title, "bold"), (f"  {clock} ", "")]
    if width_of(left) + width_of(tally) + width_of(state) > width:
        left = left[:1]
    return spread(left, tally + state, width)


def one_line(jobs: Sequence[Job], standings: Sequence[Standing], width: int) -> Row:
    """All that fits where nothing fits."""
    tally = counts(standings)
    worst: Row = [(f" {tally[name]} {name}", name) for name in WORTH_A_GLANCE if tally[name]]
    return spread([(plural(len(jobs), "job"), "bold"), *(worst or [(" ok", "")])], [], width)


def rule(width: int, look: Look) -> Row:
    return [(look.glyphs.rule * width, "rule")]


def heading(title: str, note: Row, width: int, look: Look, focused: bool = False, aside: str = "") -> Row:
    """A panel's first row: its title, a thin rule, and as much of the present value as fits at the right."""
    name: Row = [(f" {title} ", "focus" if focused else "title"), (aside, "dim")]
    kept = list(note)
    while len(kept) > 1 and width_of(name) + width_of(kept) + 3 > width:
        kept.pop()
    value: Row = [(" ", ""), *kept, (" ", "")] if kept else []
    room = width - width_of(name) - width_of(value)
    if room < 2:
        return spread(name, value, width)
    return [*name, (look.glyphs.rule * (room if value else room - 1), "rule"), *(value or [(" ", "")])]


def alert_line(
    worst: Alert | None, more: int, name: str, width: int, look: Look, standings: Sequence[Standing] = ()
) -> Row:
    """The newest of the worst, and how to deal with it; without one, how many jobs the header counts all the same."""
    if worst is None:
        tally = counts(standings)
        marked = sum(tally[severity] for severity in WORTH_A_GLANCE)
        rest = f"; {plural(marked, 'job')} worth a look by the verdict" if marked else ""
        return spread([(f" no alert stands{rest}", "dim")], [("A all ", "dim")], width)
    clock = time.strftime("%H:%M", time.localtime(worst.since))
    tail: Row = [
        (f"  +{more}" if more else "", "dim"),
        ("  a", "key"),
        (" ack ", "dim"),
        (" A", "key"),
        (" all ", "dim"),
    ]
    text = f"{clock} {clean(name)} {clean(worst.message)}"
    room = max(0, width - width_of(tail) - 3)
    return spread(
        [(f" {MARKS[worst.severity]} ", worst.severity), (fit(text, room, ellipsis=look.glyphs.ellipsis), "")],
        tail,
        width,
    )


def key_line(keys: Sequence[tuple[str, str]], width: int) -> Row:
    """The keys that matter here. Where it is narrow the middle ones go; the last one, how to leave, stays."""
    shown = list(keys)
    while len(shown) > 1 and sum(len(key) + len(name) + 3 for key, name in shown) - 1 > width:
        del shown[-2]
    row: Row = [(" ", "")]
    for key, name in shown:
        row += [(key, "key"), (f" {name}  ", "dim")]
    return spread(row, [], width)


def since(state: Standing, now: float) -> str:
    return age(now - state.since) if state.since is not None else ""
