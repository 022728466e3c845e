"""Counts what one router does, on its own device, without a synchronisation.

A forward hook reads the call through the site's adapter and adds to two small tensors; they are never read here. It
counts forward passes only: recomputation by any kind of activation checkpointing runs inside a backward, which the
graph task tells. Under selective checkpointing an operator of ours that ran in one of the two passes would shift the
library's cache of results and corrupt gradients without a word, so the hook works with gradients and all modes off.
Inside a compiled region it is traced into the graph instead: tensor operations only, no Python state.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from bsmon_agent.patches import Callback
from bsmon_agent.routers.blind import compiler_ran
from bsmon_agent.routers.feeding import Feeding, listed_experts
from bsmon_agent.routers.reading import Call, Choice, Ids, Mask, Reading, describe
from bsmon_agent.routers.registry import Site
from bsmon_agent.routers.tally import PLACE, SCALARS

MOST = 512  # tokens a call whose entropy is worked out; more are taken evenly spaced


class Owner(Protocol):
    """Who counts: the router probe of a job, or a watch."""

    @property
    def armed(self) -> bool: ...

    spent: int  # ns in hooks
    training_only: bool
    padding: Tensor | None  # [T] bool, true at padding, of the forward pass that is running


class Start(NamedTuple):
    """Where a counter stood at some moment."""

    ints: Tensor
    host: list[int]
    fed: list[int]


class Delta(NamedTuple):
    """What it counted since: tensors [3 (E + 2) + scalars] and [2], and scalars that Python counted."""

    ints: Tensor
    floats: Tensor
    host: list[int]
    fed: list[int]  # rows that each expert was given; empty where that is not looked at


class Mark(NamedTuple):
    """What a counter's tensors held at some moment, to undo what came after."""

    counter: Counter
    ints: Tensor
    floats: Tensor

    def restore(self) -> None:
        with torch.no_grad():
            self.counter.ints.copy_(self.ints)
            self.counter.floats.copy_(self.floats)


def marks(counters: Iterable[Counter]) -> list[Mark]:
    """Marks of those counters that may be part of compiled regions.

    A graph cannot ask whether it is being recomputed (a checkpoint around a compiled block), but nothing that a
    backward adds is a forward pass, so it can be undone.
    """
    if not compiler_ran():
        return []
    with torch.no_grad():
        return [Mark(one, one.ints.clone(), one.floats.clone()) for one in counters if not one.host[PLACE["calls"]]]


class Counter:
    """The hook on one router, and what it has counted since it was put there."""

    def __init__(self, site: Site, owner: Owner) -> None:
        self.site = site
        self.owner = owner
        self.reason: str | None = None  # why it can't be read; then the hook does nothing
        self.trouble: str | None = None  # why what it counted last can't be used
        self.traced: bool | None = None  # is it part of a compiled region? Not known before it was called
        self.capacity: int | None = None
        self.confirmed = False  # did the experts' inputs confirm what the logits tell?
        self.seen: tuple[int, int] | None = None  # experts and choices of the first call
        facts = site.facts()
        self.experts = facts.experts or 0
        self.host = [0] * len(SCALARS)
        self._allocate(_device(site.module))
        self._held: Any = None
        self._handles = [site.module.register_forward_hook(Callback(self._hook), with_kwargs=True)]
        if site.adapter.before is not None:
            self._handles.append(site.module.register_forward_pre_hook(Callback(self._before)))
        experts = listed_experts(site.parent, self.experts) if site.tag == "logits-only" else None
        self._feeding = Feeding(experts or [], self._wanted)

    def _allocate(self, device: torch.device) -> None:
        self.ints = torch.zeros(3 * (self.experts + 2) + len(SCALARS), dtype=torch.int64, device=device)
        self.floats = torch.zeros(2, dtype=torch.float32, device=device)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._feeding.remove()

    def start(self) -> Start:
        """Count from here."""
        with torch.no_grad():
            self.floats.zero_()
            return Start(self.ints.clone(), self.host.copy(), self._feeding.rows.copy())

    def since(self, start: Start) -> Delta:
        """What was counted since the newest start, without waiting for the device; the hook goes on."""
        with torch.no_grad():
            same = start.ints.shape == self.ints.shape  # else the first call, after the start, told the size
            ints = self.ints - start.ints.to(self.ints.device) if same else self.ints.clone()
            fed = _difference(self._feeding.rows, start.fed)
            return Delta(ints, self.floats.clone(), _difference(self.host, start.host), fed)

    def forgive(self) -> None:
        """Try again to read a router that could not be read."""
        self.reason = self.seen = self.trouble = None

    # ------------------------------------------------------------ the hook

    def _hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if torch.compiler.is_compiling():
            if module.training or not self.owner.training_only:
                self._traced(Call(args, kwargs, output))
        elif self._wanted(module):
            start = time.perf_counter_ns()
            with torch.no_grad(), _disable_current_modes():
                self._eager(Call(args, kwargs, output, self._held))
            self._held = None
            self.owner.spent += time.perf_counter_ns() - start

    def _wanted(self, module: nn.Module) -> bool:
        """Does this call count, outside of compiled regions?"""
        if not self.owner.armed or self.reason is not None or torch._C._is_tracing():
            return False
        return torch._C._current_graph_task_id() == -1 and (module.training or not self.owner.training_only)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or self.site.adapter.before is None or not self._wanted(module):
            return
        try:
            self._held = self.site.adapter.before(module)
        except Exception as error:
            self.reason = f"what its call begins with could not be read: {error}"[:400]

    def _traced(self, call: Call) -> None:
        with torch.no_grad():
            reading = self.site.adapter.read(self.site, call)
            if isinstance(reading, str) or reading.experts != self.experts:
                self._scalar("refused").add_(1)
                return
            scored = self._add(reading, None)
            for name, value in self._constants(reading, scored, 0).items():
                self._scalar(name).add_(value)

    def _eager(self, call: Call) -> None:
        try:
            reading = self.site.adapter.read(self.site, call)
            self.reason = reading if isinstance(reading, str) else self._strange(reading)
            if self.reason is None:
                assert isinstance(reading, Reading)
                self._count(reading)
        except Exception as error:  # a router nobody knew must never stop a training
            self.reason = f"its output {describe(call.output)} could not be read: {error}"[:400]

    def _strange(self, reading: Reading) -> str | None:
        """Why this call does not go with those before it."""
        now = reading.experts, reading.top_k
        if self.seen is not None and self.seen != now:
            return "its output changed from {} experts and {} choices a token to {} and {}".format(*self.seen, *now)
        if self.seen is None:
            self.seen = now
            if reading.experts != self.experts:
                self.experts = reading.experts
                self._allocate(self.ints.device)
        device = _device_of(reading)
        if device is not None and device != self.ints.device:
            self.ints, self.floats = self.ints.to(device), self.floats.to(device)
        return None

    def _count(self, reading: Reading) -> None:
        padding = self.owner.padding if reading.padding is None else reading.padding
        if padding is not None and (padding.shape[0] != reading.tokens or not _by_token(reading.assigned)):
            padding = None
        scored = self._add(reading, padding)
        for name, value in self._constants(reading, scored, int(padding is not None)).items():
            self.host[PLACE[name]] += value

    # ------------------------------------------------------------ adding up

    def _add(self, reading: Reading, padding: Tensor | None) -> int:
        """Add one call to the tensors; answers how many tokens' entropies went in."""
        _add_choice(reading.assigned, self._block(0))
        _add_choice(reading.kept, self._block(1))
        if padding is not None and _by_token(reading.assigned):
            reading.assigned.add_to(self._block(2), padding)
        if _by_token(reading.kept):
            self._scalar("lost").add_(_lost(reading, reading.kept, self.experts))
        for name in ("skipped", "doubt"):
            count = getattr(reading, name)
            if count is not None:
                self._scalar(name).add_(count)
        if reading.weights is not None:
            self.floats[1].add_(reading.weights.sum().float() * 0)  # stays 0 unless something is not finite
        if reading.scores is None:
            return 0
        entropy, scored = reading.scores.entropy(MOST)
        self.floats[0].add_(entropy)
        return scored

    def _constants(self, reading: Reading, scored: int, masked: int) -> dict[str, int]:
        """What a call adds whose size Python knows."""
        return {
            "calls": 1,
            "tokens": reading.tokens,
            "assignments": reading.tokens * reading.top_k,
            "groups": reading.groups,
            "capacity": reading.capacity or 0,
            "scored": scored,
            "masked": masked,
            "assigned": int(reading.assigned is not None),
            "kept": int(reading.kept is not None),
            "tokenwise": int(_by_token(reading.kept)),
            "sightless": int(not reading.shows_drops),
            "dropless": int(self.site.known.dropless is True),
            "unsplit": int(not reading.splits),
        }

    def _block(self, number: int) -> Tensor:
        size = self.experts + 2
        return self.ints[number * size : (number + 1) * size]

    def _scalar(self, name: str) -> Tensor:
        return self.ints[3 * (self.experts + 2) + PLACE[name]]


def _difference(after: list[int], before: list[int]) -> list[int]:
    return [now - then for now, then in zip(after, before, strict=True)]


def _by_token(choice: Choice | Tensor | None) -> TypeGuard[Choice]:
    """Is it known which token chose, and not only how many did?"""
    return isinstance(choice, (Ids, Mask))


def _add_choice(choice: Choice | Tensor | None, block: Tensor) -> None:
    if isinstance(choice, Tensor):
        block[1:-1] += choice.to(block.device, non_blocking=True)
    elif choice is not None:
        choice.add_to(block)


def _lost(reading: Reading, kept: Choice, experts: int) -> Tensor:
    """Tokens that were routed and kept no expert."""
    none_left = kept.per_token(experts) == 0
    return (none_left if reading.used is None else none_left & reading.used).sum()


def _device(module: nn.Module) -> torch.device:
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        return tensor.device
    return torch.device("cpu")


def _device_of(reading: Reading) -> torch.device | None:
    choice = reading.kept if reading.kept is not None else reading.assigned
    if isinstance(choice, Tensor):
        return choice.device
    if isinstance(choice, Ids):
        return choice.ids.device
    return None if choice is None else choice.mask.device
