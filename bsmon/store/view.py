"""One job as it is shown, worked out from what its processes told up to one moment. Pure: same input, same view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bsmon.estimators import rates
from bsmon.model import (
    Gpu,
    Hello,
    Job,
    JobState,
    MemoryView,
    ModelView,
    Overhead,
    RankView,
    Record,
    StepTime,
)
from bsmon.store import estimates, mfu, reasons, states
from bsmon.store.process import Seen


class Rank(NamedTuple):
    """A process with its state and the records that its rates are taken from."""

    seen: Seen
    state: JobState
    window: Sequence[Record]
    times: StepTime


class Gpus(NamedTuple):
    """The job's GPUs, or why there are none."""

    found: list[Gpu]
    reason: str | None


def view(job_id: str, processes: Sequence[Seen], gpus: Gpus, now: float, memo: estimates.Memo) -> Job:
    """``processes``: the newest of each rank, in the order of ranks; at least one."""
    ranks = [_rank(seen, now) for seen in processes]
    lead = ranks[0].seen.hello
    state = states.job_state([rank.state for rank in ranks])
    job = Job(
        id=job_id,
        name=lead.name or "unnamed",
        state=state,
        source=ranks[0].seen.source,
        host=lead.host,
        ranks=[_rank_view(rank, now) for rank in ranks],
        world_size=lead.world_size,
        started=min(rank.seen.hello.started for rank in ranks),
        total_steps=lead.total_steps,
        exit_code=_exit_code(ranks),
        gpus=gpus.found,
        memory=_memory(ranks),
        model=_model(lead),
        overhead=_overhead(ranks),
        age_s=min(states.age(rank.seen, rank.state, now) for rank in ranks if rank.state == state),
        dropped_records=sum(rank.seen.missing for rank in ranks),
        skipped_steps=max(rank.seen.skipped for rank in ranks),
        token_source=lead.token_source,
        loss_source=lead.loss_source,
        grad_norm_source=lead.grad_norm_source,
        notes=_notes(ranks),
    )
    why = reasons.Reasons(lead, gpus.reason)
    _fill_progress(job, ranks, why)
    _fill_rates(job, ranks, data_parallel(lead), why)
    mfu.fill(job, [rank.seen.hello for rank in ranks], why)
    estimates.fill_noise(job, processes, why, memo)
    estimates.fill_moe(job, processes, why, memo)
    job.unavailable = why.of(job)
    return job


def data_parallel(hello: Hello) -> int | None:
    """How many processes train on different data; a process alone is one."""
    return hello.data_parallel or (1 if hello.world_size == 1 else None)


def _rank(seen: Seen, now: float) -> Rank:
    window = rates.recent(seen.records)
    times = rates.step_time(window)
    return Rank(seen, states.process_state(seen, times.median, now), window, times)


def _rank_view(rank: Rank, now: float) -> RankView:
    seen, newest = rank.seen, rank.seen.newest
    device = seen.hello.device
    return RankView(
        rank=seen.hello.rank,
        pid=seen.hello.pid,
        host=seen.hello.host,
        device=device.type if device.index is None else f"{device.type}:{device.index}",
        state=rank.state,
        age_s=states.age(seen, rank.state, now),
        step=newest.step if newest else None,
        data_wait=rates.phases(rank.window).data_wait,
        step_time_s=rank.times.median,
    )


def _fill_progress(job: Job, ranks: Sequence[Rank], why: reasons.Reasons) -> None:
    """Step, loss and what else is the newest of its kind."""
    newest = [rank.seen.newest for rank in ranks if rank.seen.newest is not None]
    if not newest:
        why.say("", "no step yet" if job.state == "starting" else "it made no step that was heard of")
        return
    job.step = _common_step(ranks)
    upto = [[record for record in rank.window if record.step <= job.step] for rank in ranks]
    job.loss = _together("loss", (_latest(records, "loss") for records in upto), why)
    job.grad_norm = _together("grad_norm", [_first(_latest(rank.window, "grad_norm") for rank in ranks)], why)
    job.learning_rate = _together("learning_rate", [_latest(ranks[0].window, "learning_rate")], why)
    lead = ranks[0].seen
    closed = lead.newest.optimizer if lead.newest else None
    names = lead.hello.optimizers
    job.optimizer = names[closed or 0] if (closed or 0) < len(names) else None
    for name, value in lead.user.items():
        if math.isfinite(value):
            job.user[name] = value
        else:
            why.say(f"user.{name}", _non_finite(value))


def _common_step(ranks: Sequence[Rank]) -> int:
    """The newest step that every rank still heard has made: their records of one step come at different moments."""
    heard = [rank for rank in ranks if rank.state not in ("lost", "finished")] or ranks
    made = [rank.seen.newest.step for rank in heard if rank.seen.newest is not None]
    return min(made) if made else max(rank.seen.newest.step for rank in ranks if rank.seen.newest is not None)


def _fill_rates(job: Job, ranks: Sequence[Rank], parallel: int | None, why: reasons.Reasons) -> None:
    """Times of the slowest rank, as the others wait for it; counts of all data-parallel ranks."""
    windows = [rank.window for rank in ranks if rank.window]
    slowest = max(ranks, key=lambda rank: rank.times.median or 0.0)
    job.step_time_s = slowest.times
    job.phases_s = rates.phases(slowest.window)
    job.batch = rates.batch(windows[0] if windows else [], parallel)
    if job.state in ("lost", "finished"):
        why.say_rates(f"the run is {job.state}")
        return
    job.tokens_per_s = _whole([rates.rate(window, "tokens") for window in windows], parallel)
    job.samples_per_s = _whole([rates.rate(window, "samples") for window in windows], parallel)
    job.eta_s = rates.eta(job.total_steps, job.step, job.step_time_s.median)
    if parallel is None:
        why.say_parallel(job.world_size)
    elif len(windows) < job.world_size:
        job.notes.append(f"{len(windows)} of {job.world_size} ranks heard: rates take the others to be like these")


def _whole(parts: Sequence[float | None], parallel: int | None) -> float | None:
    """The whole job's rate: the mean of the ranks that tell, times the number of those that see different data."""
    known = [part for part in parts if part is not None]
    return sum(known) / len(known) * parallel if known and parallel else None


def _latest(records: Sequence[Record], name: str) -> tuple[float, int] | None:
    """The newest value of a field that is not in every record, and its step."""
    for record in reversed(records):
        value: float | None = getattr(record, name)
        if value is not None:
            return value, record.step
    return None


def _first(values: Iterable[tuple[float, int] | None]) -> tuple[float, int] | None:
    return next((value for value in values if value is not None), None)


def _together(name: str, values: Iterable[tuple[float, int] | None], why: reasons.Reasons) -> float | None:
    """The mean of the ranks' values; one that is NaN or infinite stands for all, and its step is named."""
    known = [value for value in values if value is not None]
    for value, step in known:
        if not math.isfinite(value):
            why.say(name, f"{_non_finite(value)} at step {step}")
            return value
    return sum(value for value, _ in known) / len(known) if known else None


def _non_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite"


def _exit_code(ranks: Sequence[Rank]) -> int | None:
    """Of the ranks that told one, the first that is not zero."""
    told = [rank.seen.gone.exit_code for rank in ranks if rank.seen.gone is not None]
    told += [rank.seen.beat.exit_code for rank in ranks if rank.seen.beat is not None]
    codes = [code for code in told if code is not None]
    return next((code for code in codes if code), codes[0] if codes else None)


def _memory(ranks: Sequence[Rank]) -> MemoryView:
    """Of the fullest process, as it is the one that runs out."""
    beats = [(rank.seen.beat.memory, rank.seen.hello.model) for rank in ranks if rank.seen.beat is not None]
    if not beats:
        return MemoryView()
    memory, model = max(beats, key=lambda pair: (pair[0].allocated or 0, pair[0].process_rss or 0))
    return MemoryView(
        allocated=memory.allocated,
        reserved=memory.reserved,
        peak=memory.peak,
        device_total=memory.device_total,
        parameters=model.parameter_bytes,
        gradients=model.gradient_bytes,
        optimizer=model.optimizer_bytes,
        process_rss=memory.process_rss,
    )


def _model(hello: Hello) -> ModelView:
    return ModelView(
        name=hello.model.name,
        parameters=hello.model.parameters,
        active_parameters=hello.model.active,
        trainable_parameters=hello.model.trainable,
    )


def _overhead(ranks: Sequence[Rank]) -> Overhead:
    """Of the rank that the agent costs most."""
    costs = [rank.seen.beat.overhead for rank in ranks if rank.seen.beat is not None]
    if not costs:
        return Overhead()
    cost = max(costs, key=lambda one: one.share_of_step or 0.0)
    return Overhead(cost.us_per_step, cost.share_of_step, cost.budget, dict(cost.sampling))


def _notes(ranks: Sequence[Rank]) -> list[str]:
    """What the agents have to say, each thing once."""
    notes = dict.fromkeys(note for rank in ranks if rank.seen.beat is not None for note in rank.seen.beat.notes)
    lost = [str(rank.seen.hello.rank) for rank in ranks if rank.state == "lost"]
    if lost and len(ranks) > 1:
        notes[f"lost: rank {', '.join(lost[:8])}{' …' if len(lost) > 8 else ''}"] = None
    return list(notes)[:32]
