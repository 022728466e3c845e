"""Numbers from tensors without making the device wait: sums on the device, and a read that comes some steps later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

INTERVAL = 0.1  # seconds between two copies from a device
WAITING = 2048  # records that may wait for a copy; then the oldest goes without its tensors
NOTHING = nullcontext()

Place = tuple[Any, Any, Any]  # container, key or index, the tensor that stands there
Load = tuple[dict[str, Any], list[Place]]  # a record, and where it waits for a number


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """|x|² over all tensors together (0-d, float32 or wider, on the first one's device); None for none of them.

    Read-only and without a sync; sparse tensors count by their coalesced values.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        dense = tensor.coalesce().values() if tensor.is_sparse else tensor
        groups.setdefault((dense.device, dense.dtype), []).append(dense.detach())
    sums = [_group(group) for group in groups.values()]
    if not sums:
        return None
    home = sums[0].device
    return torch.stack([part.to(home, non_blocking=True) for part in sums]).sum()


def _group(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Of one device and dtype; narrow floats are accumulated in float32."""
    narrow = tensors[0].dtype in (torch.float16, torch.bfloat16)
    norms = torch._foreach_norm(tensors, 2, dtype=torch.float32) if narrow else torch._foreach_norm(tensors, 2)
    return torch.stack(norms).square().sum()


def unseen_by_modes() -> AbstractContextManager[Any]:
    """What we compute is nothing to a mode of the user's that looks at operators (a FLOP counter, a logger)."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else NOTHING


def capturing() -> bool:
    """Is a CUDA graph being captured, so that nothing of ours may touch the device?"""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def places(container: Any) -> Iterator[Place]:
    """Every tensor in a record, with where it stands."""
    items = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in items:
        if isinstance(value, torch.Tensor):
            yield container, key, value
        elif isinstance(value, dict) or (isinstance(value, list) and value and not isinstance(value[0], (int, float))):
            yield from places(value)


class Flight(Protocol):
    """A copy under way."""

    def landed(self) -> bool: ...

    def values(self) -> list[Any]: ...


class CudaFlight:
    """All tensors stacked on each device, one non-blocking copy into a pinned buffer, one event."""

    buffers: dict[torch.device, torch.Tensor] = {}  # noqa: RUF012  (reused: only one flight is in the air)

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.shapes = [(tensor.device, tensor.shape, tensor.dtype) for tensor in tensors]
        self.legs = [self._leg(device, tensors) for device in {tensor.device for tensor in tensors}]

    def _leg(self, device: torch.device, tensors: Sequence[torch.Tensor]) -> tuple[Any, torch.Tensor, torch.device]:
        mine = [tensor.detach().reshape(-1).double() for tensor in tensors if tensor.device == device]
        with torch.cuda.device(device):
            flat = torch.cat(mine)
            buffer = self._buffer(device, flat.numel())
            buffer.copy_(flat, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        return event, buffer, device

    def _buffer(self, device: torch.device, size: int) -> torch.Tensor:
        buffer = self.buffers.get(device)
        if buffer is None or buffer.numel() < size:
            room = 1 << max(8, size.bit_length())
            buffer = self.buffers[device] = torch.empty(room, dtype=torch.float64, pin_memory=True)
        return buffer[:size]

    def landed(self) -> bool:
        return all(event.query() for event, _, _ in self.legs)

    def values(self) -> list[Any]:
        streams = {device: iter(buffer.tolist()) for _, buffer, device in self.legs}
        return [_rebuild(streams[device], shape, dtype) for device, shape, dtype in self.shapes]


def _rebuild(stream: Iterator[float], shape: torch.Size, dtype: torch.dtype) -> Any:
    """A number for a 0-d tensor, a flat list for any other; integers stay integers (exact below 2^53)."""
    kind = float if dtype.is_floating_point else bool if dtype == torch.bool else int
    numbers = [kind(next(stream)) for _ in range(shape.numel())]
    return numbers if len(shape) else numbers[0]


def _on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "cpu"


class Lagged:
    """Hands records on in their order, tensors turned into numbers.

    What lies on the CPU is read at once. For what lies on a GPU, all records of the last ``INTERVAL`` share one copy,
    read at a later step if it has landed by then. Only the training thread calls this.
    """

    def __init__(
        self,
        deliver: Callable[[dict[str, Any]], None],
        flight: Callable[[Sequence[torch.Tensor]], Flight] = CudaFlight,
        remote: Callable[[torch.Tensor], bool] = _on_device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deliver = deliver
        self._flight = flight
        self._remote = remote
        self._clock = clock
        self._waiting: deque[Load] = deque()
        self._flying: Flight | None = None
        self._aboard: list[Load] = []
        self._last = -INTERVAL

    def add(self, record: dict[str, Any]) -> None:
        """Take a complete record; it is delivered now or, behind those that wait for a copy, later."""
        far = []
        for place in list(places(record)):
            container, key, tensor = place
            if self._remote(tensor):
                far.append(place)
            else:
                container[key] = tensor.tolist()
        if far or self._waiting or self._flying is not None:
            self._waiting.append((record, far))
            self._pump()
        else:
            self._deliver(record)

    def _pump(self) -> None:
        """What has landed is handed on, and if it is time for it the next copy starts."""
        if self._flying is not None and self._flying.landed():
            self._land()
        if self._flying is None:
            while self._waiting and not self._waiting[0][1]:
                self._deliver(self._waiting.popleft()[0])
            now = self._clock()
            if self._waiting and now - self._last >= INTERVAL and not capturing():
                self._last = now
                self._launch()
        while len(self._waiting) > WAITING:
            self._without(self._waiting.popleft())

    def _launch(self) -> None:
        """All that waits goes aboard."""
        self._aboard = list(self._waiting)
        self._waiting.clear()
        self._flying = self._flight([tensor for _, far in self._aboard for _, _, tensor in far])

    def _land(self) -> None:
        assert self._flying is not None
        values = iter(self._flying.values())
        load, self._aboard, self._flying = self._aboard, [], None
        for record, far in load:
            for container, key, _ in far:
                container[key] = next(values)
            self._deliver(record)

    def _without(self, load: Load) -> None:
        """Deliver a record without its tensors."""
        record, far = load
        for container, key, _ in far:
            if isinstance(container, dict):
                del container[key]
            else:
                container[key] = None
        self._deliver(record)

    def close(self) -> None:
        """The run ends: what lands within a moment is read, the rest goes without its tensors."""
        deadline = time.monotonic() + INTERVAL
        while self._flying is not None and time.monotonic() < deadline:
            if self._flying.landed():
                self._land()
            else:
                time.sleep(INTERVAL / 20)
        for load in [*self._aboard, *self._waiting]:
            self._without(load)
        self._flying = None
        self._aboard.clear()
        self._waiting.clear()
