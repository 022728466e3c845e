"""What a larger capacity would drop: the forecast behind the advice to give experts more room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bsmon.estimators.routers import forecast
from bsmon.model import MoeCounts, MoeLayer, RankWindow

FACTORS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5)  # beyond these the router is wrong, not the capacity
WELL = 0.01  # a dropped share that is no matter
WORTH_IT = 0.5  # a factor is named only if it at least halves the drops


def roomier(layer: MoeLayer, windows: Sequence[RankWindow]) -> dict[str, float]:
    """The least usual capacity factor above the layer's own that would drop little, and how much; {} if none would."""
    own, now = layer.capacity_factor, layer.dropped_rate
    counts = list(_counts(layer.name, windows))
    groups = sum(one.groups or one.calls or 1 for one in counts)
    if own is None or not now or not groups:
        return {}
    tokens = sum(one.tokens for one in counts) / groups
    for factor in (factor for factor in FACTORS if factor > own):
        found = forecast(counts, tokens, capacity_factor=factor)
        if found is not None and found.dropped_rate <= max(WELL, 2 * found.balanced):
            helps = found.dropped_rate <= WORTH_IT * now
            return {"roomier_factor": factor, "roomier_drop": found.dropped_rate} if helps else {}
    return {}


def _counts(name: str, windows: Sequence[RankWindow]) -> Iterator[MoeCounts]:
    """What the first rank that has this layer counted in it."""
    for window in windows:
        index = next((i for i, router in enumerate(window.hello.routers) if router.name == name), None)
        if index is not None:
            yield from (one for record in window.records for one in record.moe or () if one.layer == index)
            return
