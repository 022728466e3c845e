"""One layer over the processes of a job: who must be added up, and who saw the same tokens as another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from bsmon.model import Hello, MoeCounts, RankWindow, RouterInfo

Steps = dict[int, MoeCounts]

WINDOW = 64
"""Sampled steps that one view sums."""


class Layer(NamedTuple):
    """A router of the job: what it is, and its counts, one list entry a step and process that counts apart."""

    info: RouterInfo
    counts: list[MoeCounts]
    steps: int


def join(windows: Sequence[RankWindow], window: int = WINDOW) -> list[Layer]:
    """The job's routers by name, in the order in which the processes list them."""
    infos: dict[str, RouterInfo] = {}
    told: dict[str, dict[int, Steps]] = defaultdict(dict)
    for rank in windows:
        for number, info in enumerate(rank.hello.routers):
            infos[info.name] = _better(infos.get(info.name), info)
            steps = _counted(rank, number, window)
            if steps:
                told[info.name][rank.hello.rank] = steps
    lead = windows[0].hello if windows else None
    return [_layer(info, told[name], lead) for name, info in infos.items()]


def _better(known: RouterInfo | None, info: RouterInfo) -> RouterInfo:
    """Of one router as two ranks see it, the worse news."""
    return info if known is None or (info.reason and not known.reason) else known


def _counted(rank: RankWindow, number: int, window: int) -> Steps:
    found: Steps = {}
    for record in reversed(rank.records):
        for counts in record.moe or ():
            if counts.layer == number and counts.calls != 0 and counts.tokens:
                found[record.step] = counts
        if len(found) >= window:
            break
    return found


def _layer(info: RouterInfo, told: dict[int, Steps], lead: Hello | None) -> Layer:
    kept = told if lead is None else distinct(told, lead.data_parallel, lead.world_size)
    counts = [counts for steps in kept.values() for _, counts in sorted(steps.items())]
    return Layer(info, counts, len({step for steps in kept.values() for step in steps}))


def distinct(told: dict[int, Steps], data_parallel: int | None, world_size: int) -> dict[int, Steps]:
    """The ranks whose counts add up.

    Tensor-parallel siblings route the same tokens, so theirs are equal in every step; data-parallel ones practically
    never are. Equal ones count once, unless all processes are known to have data of their own. Where ranks looked
    at no common step, launchers number siblings next to each other, and the first of each run is kept.
    """
    if len(told) < 2 or data_parallel == world_size:
        return told
    kept: dict[int, Steps] = {}
    for rank, steps in sorted(told.items()):
        if not any(_same(steps, other) for other in kept.values()):
            kept[rank] = steps
    if data_parallel and len(kept) > data_parallel and not _comparable(told):
        apart = -(-len(told) // data_parallel)
        return dict(sorted(told.items())[::apart])
    return kept


def _same(one: Steps, other: Steps) -> bool:
    common = one.keys() & other.keys()
    return bool(common) and all(_counts(one[step]) == _counts(other[step]) for step in common)


def _counts(counts: MoeCounts) -> tuple[object, ...]:
    return counts.tokens, counts.assigned, counts.kept, counts.dropped


def _comparable(told: dict[int, Steps]) -> bool:
    sets = [steps.keys() for steps in told.values()]
    return any(one & other for place, one in enumerate(sets) for other in sets[place + 1 :])


def rank_cost(loads: Sequence[int]) -> float | None:
    """Share of the experts' time that ranks wait for the busiest one: 1 - mean / max of the tokens each must compute.

    ``loads``: tokens for the experts of each expert-parallel rank.
    """
    most = max(loads, default=0)
    return None if not most else 1 - sum(loads) / len(loads) / most
