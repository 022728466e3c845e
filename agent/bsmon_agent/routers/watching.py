"""``watch(module)``: find and count every router of a module, without a job around it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bsmon_agent.patches import Callback
from bsmon_agent.routers import statistics, wraps
from bsmon_agent.routers.blind import why_uncalled
from bsmon_agent.routers.counter import Counter, Mark, Start, marks
from bsmon_agent.routers.find import find
from bsmon_agent.routers.padding import padding_of
from bsmon_agent.routers.registry import Site
from bsmon_agent.routers.structure import Facts
from bsmon_agent.routers.tally import UnreadableError, tally


def watch(module: nn.Module, training_only: bool = True) -> Watch:
    """Count every router in ``module`` from now on. ``training_only``: forwards in evaluation mode do not count."""
    return Watch(module, training_only)


class Watch:
    """What ``watch`` answers: ``read()`` as often as wanted, ``reset()`` to start afresh, ``close()`` at the end."""

    armed = True

    def __init__(self, module: nn.Module, training_only: bool = True) -> None:
        self.training_only = training_only
        self.spent = 0
        self.padding: Tensor | None = None
        self._marks: list[Mark] = []
        self.forwards = {True: 0, False: 0}  # by training mode
        sites = find(module, named=True)
        self._wraps = wraps.acquire(sites)
        self._counters = [Counter(site, self) for site in sites]
        self._hooks = [
            module.register_forward_pre_hook(Callback(self._begin), with_kwargs=True),
            module.register_forward_hook(Callback(self._end), always_call=True),
        ]
        self.reset()

    def read(self) -> list[dict[str, Any]]:
        """One map a router, in the order of the modules: the counted fields of the contract's ``moe.layers``."""
        self._undo()
        return [self._layer(counter, start) for counter, start in zip(self._counters, self._starts, strict=True)]

    def reset(self) -> None:
        """Count from here."""
        self._undo()
        self.forwards = {True: 0, False: 0}
        for counter in self._counters:
            counter.forgive()
        self._starts = [counter.start() for counter in self._counters]

    def close(self) -> None:
        """Take every hook out. What was counted can still be read."""
        for counter in self._counters:
            counter.remove()
        for hook in self._hooks:
            hook.remove()
        wraps.release(self._wraps)
        self._hooks, self._wraps = [], []

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        self._undo()
        self.forwards[module.training] += 1
        self.padding = padding_of(module, args, kwargs)

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        self.padding = None
        self._marks = marks(self._counters)

    def _undo(self) -> None:
        """Forget what was counted since the last forward ended: compiled regions that a checkpoint recomputed."""
        for mark in self._marks:
            mark.restore()
        self._marks = []

    def _counted(self, counter: Counter, start: Start) -> dict[str, Any]:
        delta = counter.since(start)
        return tally(counter.experts, delta.ints.tolist(), delta.floats.tolist(), delta.host, delta.fed)

    def _layer(self, counter: Counter, start: Start) -> dict[str, Any]:
        site, reason = counter.site, counter.reason
        counted: dict[str, Any] = {}
        try:
            counted = {} if reason else self._counted(counter, start)
        except UnreadableError as why:
            reason = str(why)
        if not counted and reason is None:
            reason = why_uncalled(self.forwards, self.training_only)
        return layer(site, counted, reason, counter.experts)


def layer(site: Site, counted: dict[str, Any], reason: str | None, experts: int) -> dict[str, Any]:
    """The contract's map of one router, from what was counted (``wire.MOE_FIELDS``)."""
    facts = site.facts()
    tokens, assignments, load = (counted.get(name) for name in ("tokens", "assignments", "assigned"))
    dropped, kept = counted.get("dropped"), counted.get("kept")
    capacity = counted.get("capacity") or facts.capacity or _capacity(facts, counted)
    return {
        "name": site.name,
        "router": site.router,
        "experts": experts or facts.experts,
        "top_k": facts.top_k or _top_k(counted),
        "capacity_factor": facts.capacity_factor,
        "capacity": capacity,
        "dropless": False if facts.dropless is None and (capacity or dropped) else facts.dropless,
        "tag": "unsupported" if reason else "derived" if counted.get("confirmed") else site.tag,
        "reason": reason,
        "assignments": assignments,
        "tokens_per_expert": load,
        "padding_per_expert": counted.get("padding"),
        "kept_per_expert": kept or (load if dropped == 0 else None),
        "dropped_assignments": dropped,
        "dropped_rate": None if dropped is None or not assignments else dropped / assignments,
        "tokens_fully_dropped": counted.get("fully_dropped"),
        "policy_skipped": counted.get("policy_skipped"),
        "cv_sampling": statistics.sampling_variation(tokens or 0, experts, facts.top_k or _top_k(counted)),
        **_imbalance(load or [], tokens or 0, assignments or 0),
        "entropy": statistics.normalised(counted.get("entropy"), facts.classes or experts),
        "sampled_steps": counted.get("calls", 0),
    }


def _imbalance(load: list[int], tokens: int, assignments: int) -> dict[str, Any]:
    """What the load before any drop tells; None where it is not known."""
    return {
        "load_variance": statistics.variance(load) if any(load) else None,
        "load_cv": statistics.variation(load),
        "max_over_mean": statistics.max_over_mean(load),
        "load_entropy": statistics.load_entropy(load),
        "dead_experts": statistics.dead_experts(load, tokens, assignments),
    }


def _top_k(counted: dict[str, Any]) -> int | None:
    tokens = counted.get("tokens")
    nominal = (counted.get("assignments") or 0) + (counted.get("policy_skipped") or 0)
    return round(nominal / tokens) if tokens else None


def _capacity(facts: Facts, counted: dict[str, Any]) -> int | None:
    """Places an expert has by the usual formula, ceil(factor T k / E), where the output does not show them."""
    if not facts.capacity_factor or not facts.experts or not facts.top_k or not counted.get("groups"):
        return None
    tokens: float = counted["tokens"] / counted["groups"]
    return math.ceil(facts.capacity_factor * tokens * facts.top_k / facts.experts)
