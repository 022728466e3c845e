"""Which measured steps belong together: ranks joined by step, and the tail since the last change of conditions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from msgspec.structs import replace

from bsmon.estimators.noise.estimate import RING
from bsmon.model import NoiseSample, Record

BATCH_TOLERANCE = 0.1  # a batch of tokens rather than of sequences varies a little from step to step
RATE_TOLERANCE = 0.2  # a schedule moves the learning rate at every step; the noise scale goes with about its root
ODD_ONES = 3  # that many steps of another kind in a row are a change; fewer (the rest of an epoch) are passed over
TOTAL_TOLERANCE = 1e-2  # how far the ranks may disagree on the squared norm of one and the same gradient

Kind = tuple[str, int, int, int | None]


def window(records: Sequence[Record], size: int = RING) -> list[NoiseSample]:
    """The newest measured steps under the present learning rate, batch and number of parts, oldest first."""
    measured = [record for record in records if record.noise is not None and not record.skipped]
    if not measured:
        return []
    reference = _reference(measured[-5:])
    kept: list[NoiseSample] = []
    odd = 0
    for record in reversed(measured):
        if _alike(record, reference):
            odd = 0
            kept += [record.noise] if record.noise else []
        else:
            odd += 1
        if odd >= ODD_ONES or len(kept) >= size:
            break
    return kept[::-1]


def _kind(record: Record) -> Kind:
    noise = record.noise
    assert noise is not None
    return noise.estimator, len(noise.parts), noise.processes, record.optimizer


def _reference(newest: Sequence[Record]) -> Record:
    """The newest record of the kind that is common now."""
    common = Counter((_kind(record), record.samples) for record in newest).most_common(1)[0][0]
    return next(record for record in reversed(newest) if (_kind(record), record.samples) == common)


def _alike(record: Record, reference: Record) -> bool:
    return (
        _kind(record) == _kind(reference)
        and _near(record.samples, reference.samples, BATCH_TOLERANCE)
        and _near(record.learning_rate, reference.learning_rate, RATE_TOLERANCE)
    )


def _near(value: float | None, other: float | None, tolerance: float) -> bool:
    if value is None or other is None:
        return value is other
    return abs(value - other) <= tolerance * max(abs(value), abs(other))


def join_ranks(ranks: Iterable[Sequence[Record]]) -> list[Record]:
    """One list of records from those of a job's processes, by step; each step's parts are those of all who measured it.

    Processes that average their gradients in the backward pass share one total, of which each holds its own parts.
    Processes that measured gradients of their own are independent measurements of one thing: their means.
    """
    by_step: defaultdict[int, list[Record]] = defaultdict(list)
    for records in ranks:
        for record in records:
            if record.noise is not None:
                by_step[record.step].append(record)
    return [_joined(by_step[step]) for step in sorted(by_step)]


def _joined(records: Sequence[Record]) -> Record:
    first = records[0]
    if len(records) == 1:
        return first
    samples = [record.noise for record in records if record.noise and _kind(record) == _kind(first)]
    joined = _shared(samples) if samples[0].processes > 1 else _averaged(samples)
    return replace(first, noise=joined, skipped=any(record.skipped for record in records))


def _shared(samples: Sequence[NoiseSample]) -> NoiseSample:
    """One total, each rank's own parts."""
    total = fmean(sample.total for sample in samples)
    apart = max(abs(sample.total - total) for sample in samples)
    return replace(
        samples[0],
        total=total,
        parts=[part for sample in samples for part in sample.parts],
        weights=[weight for sample in samples for weight in sample.weights or ()] or None,
        seen=min(len(samples), samples[0].processes),
        residual=1.0 if apart > TOTAL_TOLERANCE * abs(total) else samples[0].residual,
    )


def _averaged(samples: Sequence[NoiseSample]) -> NoiseSample:
    """Independent measurements of gradients of equally many parts: signal and noise are linear in all of these."""
    residuals = [sample.residual for sample in samples if sample.residual is not None]
    return replace(
        samples[0],
        total=fmean(sample.total for sample in samples),
        parts=[fmean(column) for column in zip(*(sample.parts for sample in samples), strict=True)],
        residual=max(residuals, default=None),
    )
