"""Made-up jobs for the diagnosis tests: records of any shape, and the walk of a monitor over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from bsmon.diagnosis.engine import Engine
from bsmon.diagnosis.features import features_of, window_seconds
from bsmon.model import Beat, Device, Hello, Job, RankWindow, Record, Regime

START = 1_764_500_000.0
Shape = Callable[[int], dict[str, object]]  # step -> fields of the record that differ from a healthy one


def hello(rank: int = 0, world_size: int = 1, device: str = "cpu") -> Hello:
    return Hello(
        schema=1,
        session=f"{rank:08x}",
        pid=100 + rank,
        host="node1",
        name="made",
        job="made",
        started=START,
        rank=rank,
        world_size=world_size,
        device=Device(type=device),
    )


def records(steps: int, shape: Shape = lambda step: {}, step_s: float = 0.1, seed: int = 0) -> list[Record]:
    """A healthy run (1% noise, 2% data wait, a falling loss), changed by ``shape``."""
    chance = random.Random(seed)
    made, now = [], START
    for step in range(1, steps + 1):
        span = step_s * chance.gauss(1.0, 0.01)
        fields: dict[str, object] = {
            "duration": span,
            "loss": 2.0 + 2.0 / (1 + step / 50) + chance.gauss(0.0, 0.02),
            "grad_norm": chance.gauss(1.0, 0.05),
            "samples": 8,
            "data_wait": 0.02 * span,
            "forward": 0.3 * span,
            "backward": 0.6 * span,
            "optimizer_time": 0.05 * span,
        } | shape(step)
        now += float(fields["duration"])  # type: ignore[arg-type]
        made.append(Record(seq=step, step=step, time=now, **fields))  # type: ignore[arg-type]
    return made


def window(run: list[Record], end: float, rank: int = 0, device: str = "cpu", world_size: int = 1) -> RankWindow:
    """What a monitor would be given at ``end``: the last window of records."""
    past = [record for record in run if record.time <= end]
    step_s = past[-1].duration if past else None
    kept = [record for record in past if record.time > end - window_seconds(step_s)]
    beat = Beat(schema=1, session=f"{rank:08x}", time=end)
    return RankWindow(hello=hello(rank, world_size, device), beat=beat, records=kept)


def job(**fields: object) -> Job:
    known: dict[str, object] = {"id": "made", "name": "made", "state": "live", "source": "live", "host": "node1"}
    return Job(**(known | fields))  # type: ignore[arg-type]


def watch(
    ranks: list[list[Record]],
    view: Callable[[float], Job] = lambda now: job(),
    device: str = "cpu",
) -> Iterator[tuple[float, Regime]]:
    """Each second's verdict on a run, as a monitor that was there from the start would say it."""
    engine = Engine()
    end = max(run[-1].time for run in ranks)
    now = START + 1
    while now <= end:
        windows = [window(run, now, rank, device, len(ranks)) for rank, run in enumerate(ranks)]
        seen = view(now)
        seen.world_size = len(ranks)
        yield now, engine.update("made", features_of(windows, seen), now)
        now += 1
