"""Who this training process is: what goes into a hello."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
import uuid
import weakref
from typing import Any

import torch

import bsmon_agent
from bsmon_agent import modelinfo, modelshape, wire
from bsmon_agent.frameworks import ranks

MAX_OPTIMIZERS = 64
MAX_ARGUMENTS = 64
MAX_ARGUMENT = 400  # characters

NO_MODEL = "the trained module was not found; give it with bsmon_agent.attach(model=…)"


class Card:
    """Facts gathered in the training thread; ``describe`` puts them together in the publisher's."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.total_steps: int | None = None
        self.optimizers: list[str] = []
        self.session = uuid.uuid4().hex
        self._started = time.time()
        self._known: list[weakref.ref[Any]] = []  # beside ``optimizers``
        self._model: dict[str, Any] = {}
        self._root: weakref.ref[Any] | None = None
        self._device: dict[str, Any] = {"type": "cpu"}
        self._data_parallel: int | None = None
        self._active: tuple[int, int | None] = (-1, None)  # number of routers, parameters a token meets
        self._shape: tuple[dict[str, int], str | None] = ({}, None)

    def number(self, optimizer: Any) -> int:
        """This optimizer's place in ``optimizers``; the place of one that is gone may be taken again."""
        free = None
        for place, known in enumerate(self._known):
            other = known()
            if other is optimizer:
                return place
            if other is None and free is None:
                free = place
        name = type(optimizer).__name__
        if free is not None:
            self._known[free], self.optimizers[free] = weakref.ref(optimizer), name
            return free
        if len(self._known) >= MAX_OPTIMIZERS:
            return MAX_OPTIMIZERS - 1
        self._known.append(weakref.ref(optimizer))
        self.optimizers.append(name)
        return len(self._known) - 1

    def optimizer(self, number: int) -> Any:
        """The optimizer at a place, if it is still there."""
        return self._known[number]() if number < len(self._known) else None

    def model_found(self, root: Any) -> None:
        self._root = weakref.ref(root)
        self._active = (-1, None)
        self._model = {"name": modelinfo.name(root), **modelinfo.parameters(root), **modelshape.precision(root)}
        self._device = modelinfo.device(root)
        self._data_parallel = modelinfo.data_parallel(root)

    def describe(self) -> dict[str, Any]:
        """A hello, before the probes add to it."""
        hello: dict[str, Any] = {
            "schema": wire.SCHEMA,
            "session": self.session,
            "pid": os.getpid(),
            "pid_start": wire.process_start(os.getpid()),
            "host": socket.gethostname(),
            "started": self._started,
            **ranks.identity(self.name),
            "command": [argument[:MAX_ARGUMENT] for argument in sys.orig_argv[:MAX_ARGUMENTS]],
            "python": platform.python_version(),
            "torch": torch.__version__,
            "agent": bsmon_agent.__version__,
            "device": dict(self._device),
            "total_steps": self.total_steps,
            "optimizers": list(self.optimizers),
            "model": dict(self._model),
            "data_parallel": self._data_parallel,
            "unavailable": {} if self._root is not None else {"model": NO_MODEL},
        }
        return {key: value for key, value in hello.items() if value is not None}

    def complete(self, hello: dict[str, Any]) -> None:
        """Add what follows from what the probes said."""
        root = self._root() if self._root is not None else None
        routers = hello.get("routers", [])
        if root is None:
            return
        if self._active[0] != len(routers):
            self._active = len(routers), modelinfo.active(root, routers)
            self._shape = modelshape.read(root, routers)
        if self._active[1] is not None:
            hello["model"]["active"] = self._active[1]
        else:
            hello["unavailable"]["model.active_parameters"] = "which parameters the experts own could not be told"
        counts, reason = self._shape
        hello["model"].update(counts)
        if reason is not None:
            hello["unavailable"]["model.flops_per_token"] = reason
