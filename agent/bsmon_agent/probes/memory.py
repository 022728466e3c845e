"""Memory: what the model keeps, counted rarely; what the allocator says, once a second; the process's own size."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from bsmon_agent.probes.base import Probe

COUNT_AT = 2  # looks; by then the optimizer has its state
COUNT_EVERY = 60.0  # seconds
ALLOCATOR_EVERY = 1.0  # seconds


class MemoryProbe(Probe):
    name = "memory"

    def __init__(self) -> None:
        self._looks = 0
        self._counted = 0.0
        self._asked = 0.0
        self._bytes: dict[str, int] = {}
        self._allocator: dict[str, int] = {}
        self._device = torch.device("cpu")

    def model_found(self, root: Any, optimizer: Any) -> None:
        self._device = next((parameter.device for parameter in root.parameters()), self._device)
        self._bytes["parameter_bytes"] = sum(_size(parameter) for parameter in root.parameters())

    def between(self, optimizer: Any) -> None:
        self._looks += 1
        now = time.monotonic()
        if self._looks == COUNT_AT or (self._looks > COUNT_AT and now - self._counted > COUNT_EVERY):
            self._counted = now
            self._count(optimizer)
        if self._device.type == "cuda" and now - self._asked > ALLOCATOR_EVERY:
            self._asked = now
            self._ask()

    def _count(self, optimizer: Any) -> None:
        """A step has just ended: gradients and the optimizer's state are both there."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._bytes["gradient_bytes"] = sum(_size(p.grad) for p in parameters if p.grad is not None)
        state = [value for slot in optimizer.state.values() if isinstance(slot, dict) for value in slot.values()]
        self._bytes["optimizer_bytes"] = sum(_size(value) for value in state if isinstance(value, torch.Tensor))

    def _ask(self) -> None:
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        self._allocator = {
            "allocated": allocated["current"],
            "peak": allocated["peak"],
            "reserved": reserved["current"],
            "device_total": torch.cuda.get_device_properties(self._device).total_memory,
        }

    def describe(self, hello: dict[str, Any]) -> None:
        hello["model"].update(self._bytes)

    def report(self, beat: dict[str, Any]) -> None:
        beat["memory"] = {**self._allocator, "process_rss": _resident()}


def _size(tensor: torch.Tensor) -> int:
    """Bytes in this process: a sharded tensor counts with its own part."""
    own = getattr(tensor, "_local_tensor", tensor)
    return own._values().nbytes if own.is_sparse else own.nbytes


def _resident() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
