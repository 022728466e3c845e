"""The table of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len

from bsmon.draw.cells import Row, clean, fit, pad, restyle
from bsmon.draw.chart import Values
from bsmon.draw.look import Look
from bsmon.draw.marks import Standing
from bsmon.draw.numbers import compact, exact, multiple, rate
from bsmon.draw.spark import spark
from bsmon.draw.table import GAP, Column
from bsmon.model import Job
from bsmon.units import age, percent, seconds, si

COLUMNS = (
    Column("name", "JOB", 12, "left", 0, 30),
    Column("step", "STEP", 7, rank=8),
    Column("tokens_per_s", "TOK/S", 5, rank=1),
    Column("trend", "LAST 2 MIN", 10, "left", 5, 24),
    Column("loss", "LOSS", 6, rank=7),
    Column("step_time", "STEP TIME", 9, rank=9),
    Column("noise", "GNS/B", 5, rank=3),
    Column("drop", "DROP%", 5, rank=4),
    Column("gpu", "GPU%", 4, rank=6),
    Column("learning_rate", "LR", 7, rank=12),
    Column("eta", "ETA", 6, rank=10),
    Column("host", "HOST", 8, "left", 11, 16),
    Column("verdict", "VERDICT", 16, "left", 0, 22),
    Column("age", "AGE", 5, rank=2),
)
MARGIN = 3
_SOMETIMES = ("noise", "drop", "gpu", "eta", "learning_rate")
_AT_REST = ("lost", "finished")


def gpu_busy(job: Job) -> float | None:
    """Mean share of time that the job's GPUs were busy."""
    known = [gpu.utilization for gpu in job.gpus if gpu.utilization is not None]
    return sum(known) / len(known) if known else None


def noise_over_batch(job: Job) -> str:
    """The noise scale over the batch; ``>`` where only a lower bound is known, ``..`` while it is being measured."""
    if job.noise.state == "measuring":
        return ".."
    if job.noise.state == "lower_bound":
        return ">" + multiple(job.noise.phi if job.noise.phi is not None else job.noise.phi_low)
    return multiple(job.noise.phi)


def columns_for(jobs: Sequence[Job]) -> list[Column]:
    """The columns that tell something of at least one of the jobs; the name's is as wide as the longest of them."""
    told = {key for key in _SOMETIMES if any(_CELLS[key](job) != "-" for job in jobs)}
    longest = max((cell_len(_CELLS["name"](job)) for job in jobs), default=0)
    shown = [column for column in COLUMNS if column.key in told or column.key not in _SOMETIMES]
    name = shown[0]
    return [name._replace(least=max(4, min(name.least, longest)), most=min(name.most, longest)), *shown[1:]]


_CELLS: dict[str, Callable[[Job], str]] = {
    "name": lambda job: clean(job.name) + (f" x{job.world_size}" if job.world_size > 1 else ""),
    "step": lambda job: exact(job.step),
    "tokens_per_s": lambda job: si(job.tokens_per_s) if job.state not in _AT_REST else "-",
    "loss": lambda job: compact(job.loss),
    "step_time": lambda job: seconds(job.step_time_s.median) if job.state not in _AT_REST else "-",
    "noise": noise_over_batch,
    "drop": lambda job: percent(job.moe.dropped_rate if job.moe else None),
    "gpu": lambda job: percent(gpu_busy(job), 0),
    "learning_rate": lambda job: rate(job.learning_rate),
    "eta": lambda job: age(job.eta_s),
    "host": lambda job: clean(job.host),
    "age": lambda job: age(job.age_s),
}


def job_row(
    job: Job, state: Standing, placed: Sequence[tuple[Column, int]], width: int, look: Look, trend: Values, chosen: bool
) -> Row:
    """One job. A job that is not live is dimmed; the chosen one has a mark of its own besides its background."""
    base = "dim" if job.state in ("stale", "lost", "finished") else ""
    row: Row = [(" > " if chosen else "   ", "")]
    for index, (column, cells) in enumerate(placed):
        if index:
            row.append((" " * GAP, ""))
        if column.key == "verdict":
            row += [
                (f"{state.mark} ", state.style),
                (fit(state.word, cells - 2, "left", look.glyphs.ellipsis), state.style),
            ]
        elif column.key == "trend":
            row.append((fit(spark(trend, cells, look.glyphs), cells), base or "spark"))
        else:
            text = _CELLS[column.key](job)
            row.append((fit(text, cells, column.align, look.glyphs.ellipsis), base))
    padded = pad(row, width)
    return restyle(padded, "selected") if chosen else padded


SORT_KEYS: dict[str, Callable[[Job, Standing], object]] = {
    "verdict": lambda job, state: state.order,
    "name": lambda job, state: job.name.lower(),
    "step": lambda job, state: -(job.step or 0),
    "tokens_per_s": lambda job, state: -(job.tokens_per_s or 0.0),
    "loss": lambda job, state: -(job.loss if job.loss is not None else float("-inf")),
    "step_time": lambda job, state: -(job.step_time_s.median or 0.0),
    "noise": lambda job, state: -(job.noise.phi or 0.0),
    "drop": lambda job, state: -((job.moe.dropped_rate or 0.0) if job.moe else 0.0),
    "gpu": lambda job, state: gpu_busy(job) if gpu_busy(job) is not None else 2.0,
    "eta": lambda job, state: job.eta_s if job.eta_s is not None else float("inf"),
    "host": lambda job, state: job.host,
    "age": lambda job, state: -(job.age_s or 0.0),
}
