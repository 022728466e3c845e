"""Text for pipes, files and terminals without a screen: aligned, no escape codes, drawn by what draws the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bsmon.draw.alerts import table as alert_table
from bsmon.draw.cells import Row, clean, crop, fit, plain
from bsmon.draw.empty import empty
from bsmon.draw.experts import LevelMemory, layers_table
from bsmon.draw.facts import facts
from bsmon.draw.fleet import MARGIN, columns_for, job_row
from bsmon.draw.gpus import gpus
from bsmon.draw.header import plural
from bsmon.draw.look import GLYPHS, Look
from bsmon.draw.marks import standing
from bsmon.draw.noise import reading, value
from bsmon.draw.numbers import exact
from bsmon.draw.phases import phases
from bsmon.draw.table import Column, heading, layout
from bsmon.draw.verdict import full
from bsmon.model import Job, Snapshot
from bsmon.units import age

LOOK = Look(GLYPHS["ascii"], colours=False)
WIDTH = 120  # cells, where there is no terminal to ask
TALL = 100  # rows that a panel may take

JOBS = (
    Column("id", "JOB", 12, "left", 0, 60),
    Column("name", "NAME", 8, "left", 1, 30),
    Column("state", "STATE", 8, "left", 0),
    Column("step", "STEP", 8, rank=3),
    Column("ranks", "RANKS", 5, rank=4),
    Column("pids", "PID", 8, "left", 2, 24),
    Column("host", "HOST", 8, "left", 5, 24),
    Column("up", "UP", 6, rank=6),
)


def fleet(snapshot: Snapshot, width: int = WIDTH) -> str:
    """A row a job, and the alerts that stand."""
    placed = layout([column for column in columns_for(snapshot.jobs) if column.key != "trend"], width - MARGIN)
    title: Row = [(" " * MARGIN, ""), *heading(placed)]
    jobs = [(job, standing(job, snapshot.alerts)) for job in snapshot.jobs]
    rows = [job_row(job, state, placed, width, LOOK, [], chosen=False) for job, state in jobs]
    return _text([title, *rows, *_alerts(snapshot, width)], width)


def detail(snapshot: Snapshot, job: Job, width: int = WIDTH) -> str:
    """Everything about one job."""
    state = standing(job, snapshot.alerts)
    up = snapshot.time - job.started if job.started is not None else None
    sections: list[list[Row]] = [
        full(job, state, snapshot.time, width, TALL, LOOK),
        facts(job, up, width, TALL, LOOK),
        phases(job, width, TALL, LOOK),
        [[(" noise scale  ", ""), *value(job)], [(f"   {reading(job)}", "")]],
        layers_table(job, width, LOOK, LevelMemory()) if job.moe else [],
        gpus(job, snapshot.unavailable.get("gpus"), width, TALL, LOOK),
        _ranks(job, width) if job.world_size > 1 else [],
        _alerts(snapshot, width, job),
    ]
    return _text((row for section in sections if section for row in [*section, []]), width).rstrip("\n")


def listing(snapshot: Snapshot, width: int = WIDTH) -> str:
    """The jobs, with what one needs to point at them."""
    placed = layout(JOBS, width)
    lines = ["".join(text for text, _ in heading(placed))]
    for job in snapshot.jobs:
        cells = _cells(job, snapshot.time)
        lines.append("  ".join(fit(cells[column.key], cells_wide, column.align) for column, cells_wide in placed))
    return "\n".join(line.rstrip() for line in lines)


def nothing(looked_at: Sequence[str], width: int = WIDTH) -> str:
    """What to do when no job was found: the screen's page, less its promise to go on looking."""
    page = empty(looked_at, True, width, TALL, LOOK)
    return _text([[("No training was found.", "")], *page[2:]], width)


def _text(rows: Iterable[Row], width: int) -> str:
    return plain(crop(row, width) for row in rows)


def _cells(job: Job, now: float) -> dict[str, str]:
    pids = [str(rank.pid) for rank in job.ranks]
    return {
        "id": clean(job.id),
        "name": clean(job.name),
        "state": job.state,
        "step": exact(job.step),
        "ranks": f"{len(job.ranks)}/{job.world_size}",
        "pids": ",".join(pids[:3]) + (",.." if len(pids) > 3 else ""),
        "host": clean(job.host),
        "up": age(now - job.started) if job.started is not None else "-",
    }


def _alerts(snapshot: Snapshot, width: int, job: Job | None = None) -> list[Row]:
    standing_ones = [one for one in snapshot.alerts if one.state != "cleared" and (job is None or one.job == job.id)]
    if not standing_ones:
        return []
    names = {each.id: each.name for each in snapshot.jobs}
    return [[], *alert_table(standing_ones, names, -1, width, LOOK)]


def _ranks(job: Job, width: int) -> list[Row]:
    rows: list[Row] = [[(f" {plural(len(job.ranks), 'rank')} of {job.world_size}", "")]]
    for rank in job.ranks:
        text = f"   {rank.rank:>4}  {clean(rank.host)}  pid {rank.pid}  {rank.device or '-'}  {rank.state}"
        rows.append([(fit(f"{text}  step {exact(rank.step)}  {age(rank.age_s)}", width), "")])
    return rows
