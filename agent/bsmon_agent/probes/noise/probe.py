"""The gradient noise of a step: squared norms of its contributions and of their sum, taken at the same weights."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from bsmon_agent.probes.base import Probe
from bsmon_agent.probes.batch import Batch, read
from bsmon_agent.probes.noise.halves import Halves
from bsmon_agent.probes.noise.leaves import Leaves
from bsmon_agent.probes.noise.refusals import compiled, data_parallel_wrapper, group_size, refusal
from bsmon_agent.reductions import capturing

PATIENCE = 3  # steps in a row that could not be measured, after which the reason is said
RETRY = 64  # then 1 in so many is still tried
MAX_PARTS = 4096


class NoiseProbe(Probe):
    """Measures a step in which it is armed, in the way that the last such step allows.

    Several backward passes a step, or several processes that average their gradients: hooks on the leaves. One pass
    in one process: the two halves of its batch. What can't be trusted is left out, and the reason told.
    """

    name = "noise"
    optional = True

    def __init__(self) -> None:
        self.reason: str | None = None  # why nothing is measured
        self._root: Any = None  # weak
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._usual = 0  # backward passes in the last step in which it was armed
        self._failures = 0
        self._leaves: Leaves | None = None
        self._halves: Halves | None = None
        self._fresh()

    def _fresh(self) -> None:
        """A new step."""
        for hooks in (self._leaves, self._halves):
            if hooks is not None:
                self.spent += hooks.spent
                hooks.remove()
        self._leaves = self._halves = None
        self._tried = False
        self._passes = self._forwards = 0
        self._stepped = False
        self._trouble: str | None = None
        self._batch: Batch | None = None

    def remove(self) -> None:
        self._fresh()

    def model_found(self, root: Any, optimizer: Any) -> None:
        self._root = None if root is None else weakref.ref(root)
        if optimizer is not None:
            self._optimizers.add(optimizer)
        self._failures = 0

    # ------------------------------------------------------------ what happens in a step

    def forward_begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        self._forwards += 1
        if self._forwards == 1:
            self._batch = read(args, kwargs)
            self._begin()

    def backward_begin(self, roots: tuple[Any, ...]) -> None:
        self._passes += 1
        if self._passes == 1:
            self._begin()
        if self._stepped:
            self._trouble = "several optimizers take turns in a step: whose gradients these are is not known"
        if self._leaves is not None:
            self._leaves.begin()

    def backward_end(self, failed: bool) -> None:
        if failed:
            self._trouble = "a backward pass failed"
        elif self._leaves is not None:
            self._leaves.end(last=self._passes >= self._usual)
        elif self._halves is not None:
            self._halves.end()

    def step_begin(self, optimizer: Any) -> None:
        self._stepped = True
        if self._tried and optimizer not in self._optimizers:
            self._trouble = "an optimizer joined in this step"
        self._optimizers.add(optimizer)

    def collect(self, record: dict[str, Any]) -> None:
        if self._tried:
            found = self._found()
            if found is not None and not uneven(record, self._passes):
                record["noise"] = found
                self._failures, self.reason = 0, None
            elif self._trouble:
                self._failures += 1
                self.reason = self._trouble if self._failures >= PATIENCE else self.reason
        self._usual = self._passes or self._usual
        self._fresh()

    # ------------------------------------------------------------ how it is measured

    def _begin(self) -> None:
        """The first event of an armed step: put the hooks in."""
        if self._tried or not self._usual or capturing():
            return
        if self._failures >= PATIENCE and self._failures % RETRY:
            self._failures += 1
            return
        self._tried = True
        root = None if self._root is None else self._root()
        leaves = self._parameters(root)
        wrapper = data_parallel_wrapper(root)
        self._trouble = refusal(root, leaves, wrapper)
        if self._trouble:
            self._failures = max(self._failures, PATIENCE)
        elif self._usual > 1 or wrapper is not None:
            self._leaves = Leaves(leaves, group_size(wrapper))
        else:
            self._begin_halves(root, leaves)

    def _parameters(self, root: Any) -> list[torch.Tensor]:
        """What the optimizers update, as far as the model has it; else (master copies) what the model would train."""
        owned = {id(p): p for optimizer in self._optimizers for group in groups(optimizer) for p in group["params"]}
        if root is not None:
            trained = {id(p): p for p in root.parameters()}
            owned = {key: p for key, p in owned.items() if key in trained} or trained
        return [p for p in owned.values() if p.requires_grad and p.is_leaf]

    def _begin_halves(self, root: Any, leaves: list[torch.Tensor]) -> None:
        batch = self._batch
        if root is None or batch is None or batch.samples < 2:
            self._trouble = "one gradient a step, and no batch of two or more samples to split in halves"
        elif compiled(root):
            self._trouble = "one gradient a step, and a compiled model does not show the halves of its batch"
        else:
            self._halves = Halves(root, leaves, batch.samples, batch.length)

    def _found(self) -> dict[str, Any] | None:
        """The record's "noise", or None and perhaps a trouble."""
        hooks = self._leaves or self._halves
        self._trouble = self._trouble or (hooks.trouble if hooks is not None else None)
        if 0 < self._forwards < self._passes:
            self._trouble = self._trouble or "several backward passes go through one forward pass"
        if self._trouble:
            return None
        return self._found_parts() if self._leaves is not None else self._found_halves()

    def _found_parts(self) -> dict[str, Any] | None:
        leaves = self._leaves
        assert leaves is not None
        if len(leaves.parts) < self._passes:
            self._trouble = "a backward pass reached none of the optimizer's parameters"
        if self._trouble or leaves.total is None or not 1 < len(leaves.parts) * leaves.processes <= MAX_PARTS:
            return None
        found = {
            "total": leaves.total,
            "parts": torch.stack(leaves.parts),
            "estimator": "ranks" if leaves.processes > 1 else "accumulation",
            "coverage": leaves.coverage(),
            "processes": leaves.processes,
        }
        return found if leaves.residual is None else {**found, "residual": leaves.residual}

    def _found_halves(self) -> dict[str, Any] | None:
        if self._halves is None or self._passes != 1 or self._forwards != 1:
            return None
        if self._halves.found is None:
            self._trouble = "one gradient a step, and no layer whose samples can be told apart"
            return None
        return {**self._halves.found, "estimator": "half_split"}

    def describe(self, hello: dict[str, Any]) -> None:
        if self.reason:
            hello.setdefault("unavailable", {})["noise"] = self.reason


def groups(optimizer: Any) -> list[dict[str, Any]]:
    return list(getattr(optimizer, "param_groups", ()))


def uneven(record: dict[str, Any], passes: int) -> bool:
    """Were the micro-batches of different sizes, so that their weights are not known?"""
    samples, micro = record.get("samples"), record.get("micro")
    return bool(samples and micro and samples != micro * passes)
