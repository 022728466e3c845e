"""Samples and tokens: what the root module was given in the forwards that a backward made use of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from bsmon_agent.probes.base import Probe
from bsmon_agent.tape import BACKWARD, BACKWARD_ENDED, FORWARD, RETURNED, STEPPED, TOKENS, Event, evaluated_once

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


class Batch(NamedTuple):
    """What one forward was given."""

    samples: int
    tokens: int | None = None
    length: int | None = None
    padding: Any = None  # tokens; a tensor if the mask lies on a device
    source: str = ""


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
    sees = FORWARD

    def __init__(self) -> None:
        self._source: str | None = None
        self._reason = NO_FORWARD

    def see(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any, Any]:
        """Is it in training mode, and what is it given? Of a single tensor only the shape and type."""
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            return module.training, args[0].shape, args[0].dtype
        return module.training, read(args, kwargs), None

    def read(self, events: list[Event], record: dict[str, Any]) -> None:
        segments, backwards, user = self._segments(evaluated_once(events))
        self._write(record, max(segments, key=lambda segment: segment.samples), backwards)
        if user is not None:
            record["tokens"] = user
            self._source = USER

    def _segments(self, events: list[Event]) -> tuple[list[Segment], int, int | None]:
        """What each optimizer got, the number of backward passes, and the user's own count of tokens."""
        closed: dict[int, Segment] = {}
        current = Segment()
        given: tuple[bool, Any, Any] | None = None
        pending: list[tuple[bool, Batch]] = []  # returned, and waiting for a backward; True: in training mode
        used: list[Batch] = []  # in the running backward
        backwards, user = 0, None
        for kind, _, payload in events:
            if kind == FORWARD:
                given = payload
            elif kind == RETURNED and given is not None:
                training, seen, dtype = given
                batch = seen if dtype is None else _first(seen, dtype)
                if batch is None:
                    self._reason = NO_TENSOR
                else:
                    pending.append((training, batch))
                given = None
            elif kind == BACKWARD:
                trained = [batch for training, batch in pending if training]
                used = trained or [batch for _, batch in pending]
                pending = []
            elif kind == BACKWARD_ENDED and not payload:
                backwards += 1
                current.add(Segment.of(used) if used else Segment())
            elif kind == STEPPED:
                pending = []
                closed.setdefault(payload[0], Segment()).add(current)
                current = Segment()
            elif kind == TOKENS:
                user = (user or 0) + payload
        return [*closed.values(), current], backwards, user

    def _write(self, record: dict[str, Any], segment: Segment, backwards: int) -> None:
        record["accumulation"] = segment.backwards or backwards
        if not segment.backwards:
            return
        record["samples"] = segment.samples
        record["micro"] = segment.micro
        if not segment.counted:
            self._reason = NO_TOKENS
            return
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
    if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
        return _first(args[0].shape, args[0].dtype)
    inputs = _named(args, kwargs)
    for name in IDS:
        ids = inputs.get(name)
        if ids is not None and ids.dim() == 2:
            return _sequences(ids.shape, name, inputs.get(MASK))
    embedded = inputs.get(EMBEDDED)
    if embedded is not None and embedded.dim() == 3:
        return _sequences(embedded.shape[:2], EMBEDDED, inputs.get(MASK))
    for name, tensor in inputs.items():
        if tensor.dim() == 2 and tensor.dtype in INTEGERS and name not in NOT_TOKENS:
            return _sequences(tensor.shape, FIRST, inputs.get(MASK))
    return next((Batch(tensor.shape[0]) for tensor in inputs.values() if tensor.dim()), None)


def _first(shape: torch.Size, dtype: torch.dtype) -> Batch | None:
    """A call whose only input is of this shape and type."""
    if len(shape) == 2 and dtype in INTEGERS:
        return Batch(shape[0], shape[0] * shape[1], shape[1], None, FIRST)
    return Batch(shape[0]) if shape else None


def _sequences(shape: torch.Size, source: str, mask: torch.Tensor | None) -> Batch:
    padding: Any = None
    if mask is not None and mask.shape == shape:
        padding = shape.numel() - torch.count_nonzero(mask)
        padding = padding.item() if padding.device.type == "cpu" else padding
    return Batch(shape[0], shape[0] * shape[1], shape[1], padding, source)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Any, torch.Tensor]:
    """The tensors of a call by name or position, those in a mapping (a tokenizer's output) included."""
    inputs: dict[Any, torch.Tensor] = {}
    for key, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            inputs[key] = value
        elif hasattr(value, "items"):
            inputs.update((name, inner) for name, inner in value.items() if isinstance(inner, torch.Tensor))
    return inputs
