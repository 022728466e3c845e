"""Where the time of a step goes, by the clock of the training thread: data, forward, backward, optimizer.

On a GPU the thread only hands out work; its times would say nothing of the device, so there only the wait for data
is told.
"""

from __future__ import annotations

import functools
import threading
from time import perf_counter as clock
from typing import Any

import torch
from torch.utils.data import dataloader

from bsmon_agent.patches import Patches
from bsmon_agent.probes.base import Probe

NO_LOADER = "no torch DataLoader was seen delivering data in the training thread"
NO_BACKWARD = "no call of the model followed by a backward was seen"
ON_DEVICE = "the thread's times on a GPU are those of handing out work, not of doing it"


class PhasesProbe(Probe):
    """Data: inside the loader's ``next``, gradients enabled. Forward: from the root's call to the backward, so that
    the loss is in it. Optimizer: inside its step, without what a closure evaluates again."""

    name = "phases"
    repeats = True

    def __init__(self) -> None:
        self._patches = Patches()
        self._thread = threading.get_ident()
        self._host = True
        self._loader = False
        self._worked = False
        self._data = 0.0
        self._forward = 0.0
        self._backward = 0.0
        self._optimizer: float | None = None
        self._in_step = 0.0  # forward and backward inside the running step
        self._forward_from: float | None = None
        self._training = False
        self._returned = False
        self._backward_from = 0.0
        self._step_from: float | None = None

    def install(self) -> None:
        self._patches.wrap(dataloader._BaseDataLoaderIter, "__next__", self._timed)

    def remove(self) -> None:
        self._patches.clear()

    def _timed(self, original: Any) -> Any:
        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            if threading.get_ident() != self._thread or not torch.is_grad_enabled():
                return original(iterator)
            begun = clock()
            try:
                return original(iterator)
            finally:
                self._data += clock() - begun
                self._loader = True

        return __next__

    def model_found(self, root: Any, optimizer: Any) -> None:
        self._thread = threading.get_ident()
        parameter = next(iter(root.parameters()), None)
        self._host = parameter is None or parameter.device.type == "cpu"

    def forward_begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        outranks = module.training and not self._training
        if self._forward_from is None or not self._returned or outranks:
            self._forward_from = clock()
            self._training = module.training
        self._returned = False

    def forward_end(self, module: Any) -> None:
        self._returned = True

    def backward_begin(self, roots: tuple[Any, ...]) -> None:
        self._backward_from = clock()
        if self._forward_from is not None:
            self._add_forward(self._backward_from - self._forward_from)

    def _add_forward(self, seconds: float) -> None:
        self._forward += seconds
        if self._step_from is not None:
            self._in_step += seconds
        self._forward_from = None
        self._training = False
        self._worked = True

    def backward_end(self, failed: bool) -> None:
        seconds = clock() - self._backward_from
        self._backward += seconds
        if self._step_from is not None:
            self._in_step += seconds

    def step_begin(self, optimizer: Any) -> None:
        self._in_step = 0.0
        self._step_from = clock()

    def step_end(self, optimizer: Any) -> None:
        self._thread = threading.get_ident()
        self._forward_from = None
        if self._step_from is not None:
            self._optimizer = (self._optimizer or 0.0) + clock() - self._step_from - self._in_step
            self._step_from = None

    def collect(self, record: dict[str, Any]) -> None:
        if self._loader:
            record["data_wait"] = self._data
        if self._host and self._worked:
            record["forward"], record["backward"] = self._forward, self._backward
        if self._host and self._optimizer is not None:
            record["optimizer_time"] = self._optimizer
        self._data = self._forward = self._backward = 0.0
        self._optimizer = self._forward_from = self._step_from = None

    def describe(self, hello: dict[str, Any]) -> None:
        reasons = hello["unavailable"]
        if not self._loader:
            reasons["phases_s.data_wait"] = NO_LOADER
        for phase in ("forward", "backward", "optimizer"):
            if not self._host:
                reasons[f"phases_s.{phase}"] = ON_DEVICE
            elif not self._worked and phase != "optimizer":
                reasons[f"phases_s.{phase}"] = NO_BACKWARD
