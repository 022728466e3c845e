"""From counts to what is shown of a layer and of all layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from bsmon.estimators.routers import balance
from bsmon.estimators.routers.ranks import join
from bsmon.model import Moe, MoeCounts, MoeLayer, RankWindow, RouterInfo


def moe(windows: Sequence[RankWindow]) -> Moe | None:
    """All routers of a job over the newest steps of its processes; None if none was found."""
    layers = join(windows)
    return summary([layer_view(layer.info, layer.counts, layer.steps) for layer in layers]) if layers else None


def layer_view(info: RouterInfo, counts: Sequence[MoeCounts], sampled_steps: int | None = None) -> MoeLayer:
    """One router over a window. ``counts``: of every sampled step, of every process that counts apart."""
    layer = MoeLayer(
        name=info.name,
        router=info.router,
        experts=info.experts,
        top_k=info.top_k,
        capacity_factor=info.capacity_factor,
        capacity=info.capacity,
        dropless=info.dropless,
        tag=info.tag,
        reason=info.reason,
        sampled_steps=len(counts) if sampled_steps is None else sampled_steps,
    )
    if counts and info.tag != "unsupported":
        _fill_counts(layer, counts)
        _fill_load(layer, sum(one.tokens for one in counts), _entropy(counts), info.classes or info.experts)
        _fill_capacity(layer, counts)
    return layer


def _fill_counts(layer: MoeLayer, counts: Sequence[MoeCounts]) -> None:
    layer.assignments = sum(one.assignments for one in counts)
    layer.tokens_per_expert = per_expert(one.assigned for one in counts)
    layer.padding_per_expert = per_expert(one.padding for one in counts)
    layer.kept_per_expert = per_expert(one.kept if one.kept is not None else _whole(one) for one in counts)
    layer.dropped_assignments = total(counts, lambda one: one.dropped)
    layer.tokens_fully_dropped = total(counts, lambda one: one.fully_dropped)
    layer.policy_skipped = total(counts, lambda one: one.policy_skipped)
    if layer.dropped_assignments is not None and layer.assignments:
        layer.dropped_rate = layer.dropped_assignments / layer.assignments
    if layer.tokens_per_expert is None and layer.reason is None:
        layer.reason = "its library shows only what was kept, so the load before any drop is not known"


def _whole(counts: MoeCounts) -> list[int] | None:
    """Nothing dropped: kept is what was assigned."""
    return counts.assigned if counts.dropped == 0 else None


def _fill_load(layer: MoeLayer, tokens: int, entropy: float | None, classes: int | None) -> None:
    assignments, load = layer.assignments or 0, layer.tokens_per_expert
    if layer.experts and tokens:
        layer.cv_sampling = balance.null_cv(tokens, layer.experts, layer.top_k or assignments / tokens)
    if entropy is not None and classes and classes > 1:
        layer.entropy = entropy / math.log(classes)
    if load and sum(load):
        layer.load_variance = balance.variance(load)
        layer.load_cv = balance.variation(load)
        layer.max_over_mean = balance.max_over_mean(load)
        layer.load_entropy = balance.load_entropy(load)
        layer.dead_experts = balance.dead_experts(load, tokens, assignments)


def _entropy(counts: Sequence[MoeCounts]) -> float | None:
    """Mean over tokens, nats."""
    scored = [(one.entropy, one.tokens) for one in counts if one.entropy is not None and math.isfinite(one.entropy)]
    tokens = sum(weight for _, weight in scored)
    return sum(entropy * weight for entropy, weight in scored) / tokens if tokens else None


def _fill_capacity(layer: MoeLayer, counts: Sequence[MoeCounts]) -> None:
    """Places an expert has, and what balanced routing would drop with them, in groups of the size seen."""
    groups = sum(one.groups or one.calls or 1 for one in counts)
    tokens = sum(one.tokens for one in counts) / groups
    if not layer.experts or not tokens or not layer.assignments:
        return
    per_token = layer.assignments / (tokens * groups)
    layer.capacity = capacity_of(layer, tokens, layer.top_k or per_token)
    if layer.dropless is None and (layer.capacity or layer.dropped_assignments):
        layer.dropless = False
    if layer.capacity:
        layer.expected_drop = balance.expected_drop(tokens, layer.experts, per_token, layer.capacity)


def capacity_of(layer: MoeLayer, tokens: float, per_token: float) -> int | None:
    """Places an expert has for a group of tokens: as seen, else ceil(factor T k / E); None where nothing is dropped."""
    if layer.dropless:
        return None
    if layer.capacity:
        return layer.capacity
    if not layer.capacity_factor or not layer.experts:
        return None
    return math.ceil(layer.capacity_factor * tokens * per_token / layer.experts)


def per_expert(lists: Iterable[list[int] | None]) -> list[int] | None:
    """Element-wise sum; None if one is missing or of another length."""
    columns = list(lists)
    known = [column for column in columns if column is not None]
    if len(known) != len(columns) or not known or len({len(column) for column in known}) != 1:
        return None
    return [sum(values) for values in zip(*known, strict=True)]


def total(counts: Sequence[MoeCounts], of: Callable[[MoeCounts], int | None]) -> int | None:
    values = [of(one) for one in counts]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def summary(layers: Sequence[MoeLayer]) -> Moe:
    """All layers together: rates over all assignments; of the imbalances the worst layer's."""
    dropping = [layer for layer in layers if layer.dropped_assignments is not None and layer.assignments]
    assignments = sum(layer.assignments or 0 for layer in dropping)
    loads = [layer.load_cv for layer in layers if layer.load_cv is not None]
    busiest = [layer.max_over_mean for layer in layers if layer.max_over_mean is not None]
    counted = [layer for layer in layers if layer.assignments and layer.experts and layer.sampled_steps]
    return Moe(
        layers=list(layers),
        dropped_rate=sum(layer.dropped_assignments or 0 for layer in dropping) / assignments if assignments else None,
        load_cv=max(loads, default=None),
        max_over_mean=max(busiest, default=None),
        expected_tokens_per_expert=_expected(counted),
    )


def _expected(layers: Sequence[MoeLayer]) -> float | None:
    """B T k / E, a step, over the layers that agree; the mean where they differ."""
    means = [(layer.assignments or 0) / (layer.experts or 1) / layer.sampled_steps for layer in layers]
    return sum(means) / len(means) if means else None
