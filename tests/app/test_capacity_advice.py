"""The advice to give experts more room names a capacity factor, and what it would drop."""

from __future__ import annotations

import math
import random

import pytest

from bsmon.diagnosis.capacity import roomier
from bsmon.estimators.routers import layer_view
from bsmon.model import Hello, MoeCounts, RankWindow, Record, RouterInfo

EXPERTS, TOP_K, TOKENS = 8, 2, 1024


def window(weights: list[float], factor: float | None, steps: int = 40) -> tuple[RankWindow, RouterInfo]:
    """A layer whose tokens choose independently with these weights, first come first served."""
    chance = random.Random(0)
    info = RouterInfo(name="layer", experts=EXPERTS, top_k=TOP_K, capacity_factor=factor, tag="exact")
    room = math.ceil((factor or 1.0) * TOKENS * TOP_K / EXPERTS)
    records = []
    for seq in range(1, steps + 1):
        assigned = [0] * EXPERTS
        for _ in range(TOKENS):
            first, *rest = chance.choices(range(EXPERTS), weights, k=8)
            for expert in (first, next((other for other in rest if other != first), (first + 1) % EXPERTS)):
                assigned[expert] += 1
        kept = [min(count, room) for count in assigned]
        counts = MoeCounts(
            layer=0,
            tokens=TOKENS,
            assignments=TOKENS * TOP_K,
            assigned=assigned,
            kept=kept,
            dropped=sum(assigned) - sum(kept),
            calls=1,
        )
        records.append(Record(seq=seq, step=seq, time=float(seq), moe=[counts]))
    hello = Hello(schema=1, session="0" * 16, pid=1, host="h", name="n", job="j", started=0.0, routers=[info])
    return RankWindow(hello, None, records), info


def advised(weights: list[float], factor: float | None) -> tuple[dict[str, float], RankWindow]:
    told, info = window(weights, factor)
    counts = [one for record in told.records for one in record.moe or ()]
    return roomier(layer_view(info, counts), [told]), told


def test_the_named_factor_drops_what_was_foretold() -> None:
    uneven = [1.0, 1.0, 1.0, 1.0, 1.2, 1.2, 1.4, 1.4]
    found, _ = advised(uneven, 1.0)
    again, _ = window(uneven, found["roomier_factor"])
    dropped = sum(one.dropped or 0 for record in again.records for one in record.moe or ())
    measured = dropped / (len(again.records) * TOKENS * TOP_K)
    assert found["roomier_factor"] > 1.0
    assert found["roomier_drop"] == pytest.approx(measured, abs=0.004)


def test_nothing_is_advised_where_no_capacity_helps_or_none_is_known() -> None:
    assert advised([100.0] + [1.0] * 7, 1.0)[0] == {}
    assert advised([1.0] * 8, None)[0] == {}
    assert advised([1.0] * 8, 4.0)[0] == {}
