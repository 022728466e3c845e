"""The plain figures of a job: batch, model, memory, optimizer, and what the agent costs."""

from __future__ import annotations

from bsmon.draw.cells import Row, clean, fit
from bsmon.draw.header import heading
from bsmon.draw.look import Look
from bsmon.draw.numbers import compact, exact, rate
from bsmon.model import Job
from bsmon.units import age, percent, seconds, si, size

_LABEL = 11


def batch_line(job: Job, look: Look) -> str:
    """micro x accumulation x data-parallel = global, in samples and in tokens."""
    batch, times = job.batch, f" {look.glyphs.times} "
    factors = (batch.micro, batch.accumulation, batch.data_parallel)
    if batch.global_samples is None and batch.global_tokens is None:
        return "n/a: " + job.unavailable.get("batch", "no batch was seen yet")
    names = ("micro", "accumulation", "DP")
    known = [f"{value:,} {name}" for value, name in zip(factors, names, strict=True) if value is not None]
    totals = []
    if batch.global_samples is not None:
        totals.append(f"{batch.global_samples:,} samples")
    if batch.global_tokens is not None:
        totals.append(f"{si(batch.global_tokens)} tokens")
    padding = f" ({percent(batch.padding_share)}% padding)" if batch.padding_share else ""
    return f"{times.join(known)} = {', '.join(totals)}{padding}"


def agent_line(job: Job) -> str:
    """What the agent costs its training, by its own measure."""
    cost = job.overhead
    if cost.us_per_step is None:
        return "its cost is not measured yet"
    share = f", {percent(cost.share_of_step, 2)}% of a step" if cost.share_of_step is not None else ""
    budget = f" (budget {seconds(cost.budget * 1e-6)})" if cost.budget is not None else ""
    lost = f"; {job.dropped_records:,} records lost" if job.dropped_records else ""
    return f"{seconds(cost.us_per_step * 1e-6)} a step{share}{budget}{lost}"


def model_line(job: Job) -> str:
    model = job.model
    if model.parameters is None:
        return "n/a: " + job.unavailable.get("model", "no model was found yet")
    parts = [f"{si(model.parameters)} parameters"]
    if model.active_parameters is not None and model.active_parameters != model.parameters:
        parts.append(f"{si(model.active_parameters)} active")
    if model.trainable_parameters is not None and model.trainable_parameters != model.parameters:
        parts.append(f"{si(model.trainable_parameters)} trainable")
    if model.flops_per_token is not None:
        parts.append(f"{si(model.flops_per_token)}FLOP a token ({model.convention})")
    return ", ".join([*parts, _mfu(job)])


def _mfu(job: Job) -> str:
    mfu = job.mfu
    if mfu.value is None:
        return "MFU n/a: " + job.unavailable.get("mfu.value", "not known")
    reached = f", {percent(mfu.achievable)}% of what it can reach" if mfu.achievable is not None else ""
    return f"MFU {percent(mfu.value)}%{reached}"


def memory_line(job: Job) -> str:
    memory = job.memory
    if memory.allocated is not None:
        return f"{size(memory.allocated)} allocated, peak {size(memory.peak)} of {size(memory.device_total)}"
    return f"process {size(memory.process_rss)}" if memory.process_rss is not None else "n/a"


def optimizer_line(job: Job) -> str:
    parts = [job.optimizer or "unknown", f"lr {rate(job.learning_rate)}"]
    if job.grad_norm is not None:
        parts.append(f"grad norm {compact(job.grad_norm)}")
    if job.skipped_steps:
        parts.append(f"{exact(job.skipped_steps)} steps skipped")
    return "  ".join(parts)


def progress_line(job: Job) -> str:
    if job.eta_s is None:
        return "no ETA: " + job.unavailable.get("eta_s", "the total number of steps is not known")
    return f"{exact(job.step)} of {exact(job.total_steps)} steps, {age(job.eta_s)} to go"


def facts(job: Job, up_s: float | None, width: int, height: int, look: Look, focused: bool = False) -> list[Row]:
    """As many of the figures as there are rows, the batch first; with two rows or less there is no heading."""
    entries = [
        ("batch", batch_line(job, look)),
        ("agent", agent_line(job)),
        ("optimizer", optimizer_line(job)),
        ("model", model_line(job)),
        ("memory", memory_line(job)),
        ("tokens", _sources(job)),
        ("progress", progress_line(job)),
    ]
    entries += [("own", "  ".join(f"{name} {compact(value)}" for name, value in job.user.items()))] if job.user else []
    rows = [heading("run", [(f"up {age(up_s)}", "dim")] if up_s is not None else [], width, look, focused)]
    room = max(1, width - _LABEL - 1)
    rows = rows if height > 2 else []
    for label, text in entries[: max(0, height - len(rows))]:
        rows.append([(f" {label:<{_LABEL - 1}}", "dim"), (fit(clean(text), room, ellipsis=look.glyphs.ellipsis), "")])
    return rows


def _sources(job: Job) -> str:
    tokens = (
        f"counted from {job.token_source}" if job.token_source else job.unavailable.get("tokens_per_s", "not counted")
    )
    loss = f"loss from {job.loss_source}" if job.loss_source else ""
    return "; ".join(part for part in (tokens, loss) if part)
