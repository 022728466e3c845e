"""Samples and tokens: what the root module was given in the forwards that a backward made use of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bsmon_agent.probes.base import Probe

IDS = ("input_ids", "decoder_input_ids")
EMBEDDED = "inputs_embeds"
MASK = "attention_mask"
NOT_TOKENS = ("labels", "targets", MASK, "position_ids", "token_type_ids")
INTEGERS = (torch.int64, torch.int32)

FIRST = "first integer input [B,T]"
USER = "user"
NO_FORWARD = "no call of the model was seen that a backward followed; give the count with bsmon_agent.tokens(n)"
NO_TENSOR = "the model is called without a tensor; give the count with bsmon_agent.tokens(n)"
NO_TOKENS = "the model's input has no token ids [B, T]; give the count with bsmon_agent.tokens(n)"


@dataclass
class Batch:
    """What one forward was given."""

    samples: int
    tokens: int | None = None
    length: int | None = None
    padding: Any = None  # tokens; a tensor if the mask lies on a device
    source: str = ""
    training: bool = True


@dataclass
class Segment:
    """The micro-batches between two optimizer steps."""

    samples: int = 0
    micro: int = 0
    backwards: int = 0
    tokens: int = 0
    length: int = 0
    padding: Any = None
    counted: bool = True  # every batch had tokens
    source: str = ""

    @classmethod
    def of(cls, batches: list[Batch]) -> Segment:
        """What went into one backward."""
        samples = sum(batch.samples for batch in batches)
        whole = cls(samples, samples, 1)
        for batch in batches:
            whole.counted &= batch.tokens is not None
            whole.tokens += batch.tokens or 0
            whole.length = max(whole.length, batch.length or 0)
            whole.padding = _sum(whole.padding, batch.padding)
            whole.source = batch.source
        return whole

    def add(self, other: Segment) -> None:
        self.samples += other.samples
        self.micro = max(self.micro, other.micro)
        self.backwards += other.backwards
        self.tokens += other.tokens
        self.length = max(self.length, other.length)
        self.padding = _sum(self.padding, other.padding)
        self.counted &= other.counted
        self.source = other.source or self.source


def _sum(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return first + second


class BatchProbe(Probe):
    """A forward counts once a backward follows it; with gradients disabled it never does. Forwards in eval mode count
    only where no forward in training mode stands before the same backward. Of several optimizers, that one's batch is
    told which had the most samples (the critic's of a GAN, say, not the sum over both networks)."""

    name = "batch"

    def __init__(self) -> None:
        self._given: Batch | None = None
        self._pending: list[Batch] = []
        self._open = Segment()
        self._closed: dict[int, Segment] = {}  # by optimizer
        self._committed: list[Batch] = []
        self._backwards = 0
        self._user: int | None = None
        self._source: str | None = None
        self._reason = NO_FORWARD

    def tokens(self, count: int) -> None:
        """The user's own count for the step, in parts or at once."""
        self._user = (self._user or 0) + int(count)

    def forward_begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = read(args, kwargs) if torch.is_grad_enabled() else None
        if self._given is not None:
            self._given.training = module.training
        elif torch.is_grad_enabled():
            self._reason = NO_TENSOR

    def forward_end(self, module: Any) -> None:
        if self._given is not None:
            self._pending.append(self._given)
            self._given = None

    def backward_begin(self, roots: tuple[Any, ...]) -> None:
        training = [batch for batch in self._pending if batch.training]
        self._committed = training or self._pending
        self._pending = []

    def backward_end(self, failed: bool) -> None:
        if not failed:
            self._backwards += 1
            if self._committed:
                self._open.add(Segment.of(self._committed))
        self._committed = []

    def step_end(self, optimizer: Any) -> None:
        self._pending = []
        self._keep(id(optimizer))

    def _keep(self, key: int) -> None:
        """Close the open segment in favour of an optimizer, which may step several times in one record."""
        self._closed.setdefault(key, Segment()).add(self._open)
        self._open = Segment()

    def collect(self, record: dict[str, Any]) -> None:
        self._keep(0)
        self._write(record, max(self._closed.values(), key=lambda segment: segment.samples))
        if self._user is not None:
            record["tokens"] = self._user
            self._source = USER
        self._closed = {}
        self._user = None
        self._backwards = 0

    def _write(self, record: dict[str, Any], segment: Segment) -> None:
        record["accumulation"] = segment.backwards or self._backwards
        if not segment.backwards:
            return
        record["samples"] = segment.samples
        record["micro"] = segment.micro
        if not segment.counted:
            self._reason = NO_TOKENS
        else:
            record["tokens"] = segment.tokens
            record["sequence_length"] = segment.length
            self._source = segment.source
            if segment.padding is not None:
                record["padding"] = segment.padding

    def describe(self, hello: dict[str, Any]) -> None:
        if self._source is None:
            hello["unavailable"]["tokens_per_s"] = self._reason
        else:
            hello["token_source"] = self._source


def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch | None:
    """Samples and tokens in the arguments of a call; None if no tensor is among them."""
    inputs = _named(args, kwargs)
    for name in IDS:
        ids = inputs.get(name)
        if ids is not None and ids.dim() == 2:
            return _sequences(ids.shape, name, inputs)
    embedded = inputs.get(EMBEDDED)
    if embedded is not None and embedded.dim() == 3:
        return _sequences(embedded.shape[:2], EMBEDDED, inputs)
    for name, tensor in inputs.items():
        if tensor.dim() == 2 and tensor.dtype in INTEGERS and name not in NOT_TOKENS:
            return _sequences(tensor.shape, FIRST, inputs)
    for tensor in inputs.values():
        if tensor.dim() > 0:
            return Batch(samples=tensor.shape[0])
    return None


def _sequences(shape: torch.Size, source: str, inputs: dict[Any, torch.Tensor]) -> Batch:
    batch = Batch(shape[0], shape[0] * shape[1], shape[1], source=source)
    mask = inputs.get(MASK)
    if mask is not None and mask.shape == shape:
        padding = shape.numel() - torch.count_nonzero(mask)
        batch.padding = int(padding) if padding.device.type == "cpu" else padding
    return batch


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Any, torch.Tensor]:
    """The tensors of a call by name or position, those in a mapping (a tokenizer's output) included."""
    inputs: dict[Any, torch.Tensor] = {}
    for key, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            inputs[key] = value
        elif hasattr(value, "items"):
            inputs.update((name, inner) for name, inner in value.items() if isinstance(inner, torch.Tensor))
    return inputs
