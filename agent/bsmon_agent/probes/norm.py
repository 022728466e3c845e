"""The gradient's L2 norm before clipping: what clip_grad_norm_ returned, or else a look of our own now and then."""

from __future__ import annotations

from typing import Any

import torch

from bsmon_agent.probes.base import Probe
from bsmon_agent.reductions import capturing, sum_of_squares
from bsmon_agent.tape import CLIPPED, Event

CLIPPING = "clip_grad_norm_"
SAMPLED = "gradients before the step, sampled"
SCALED = "the gradients still carry the loss scale when they are clipped: call unscale_ before"
SHARDED = "the norm is spread over several processes"
OTHER_NORM = "clip_grad_norm_ uses another norm than the L2"
NOT_YET = "no step was looked at yet"


class NormProbe(Probe):
    name = "norm"
    optional = True
    sees = CLIPPED

    def __init__(self) -> None:
        self.carries_scale = False  # do the gradients of this step carry a loss scale?
        self._sampled: torch.Tensor | None = None
        self._clips = False
        self._source: str | None = None
        self._reason = NOT_YET

    def see(self, norm: Any, norm_type: Any) -> Any:
        """The square of a norm that was returned; None if it says nothing of the whole L2 norm."""
        self._clips = True
        if type(norm) is not torch.Tensor:
            self._reason = SHARDED
        elif norm_type not in (2, 2.0):
            self._reason = OTHER_NORM
        elif self.carries_scale:
            self._reason = SCALED
        elif norm.device.type == "cpu":
            return norm.item() ** 2
        elif not capturing():
            return norm.detach().float().square()
        return None

    def read(self, events: list[Event], record: dict[str, Any]) -> None:
        squares = [payload for kind, _, payload in events if kind == CLIPPED and payload is not None]
        if squares:
            self._write(record, sum(squares[1:], squares[0]), CLIPPING)

    def _write(self, record: dict[str, Any], squares: Any, source: str) -> None:
        record["grad_norm"] = squares.sqrt() if isinstance(squares, torch.Tensor) else squares**0.5
        self._source = source

    def step_begin(self, optimizer: Any) -> None:
        clips, self._clips = self._clips, False
        if clips or capturing():
            return
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(type(gradient) is not torch.Tensor for gradient in gradients):
            self._reason = SHARDED
            return
        squares = sum_of_squares(gradients)
        if squares is not None:
            squares = _without_scale(squares, optimizer)
            self._sampled = squares if self._sampled is None else self._sampled + squares

    def collect(self, record: dict[str, Any]) -> None:
        if self._sampled is not None and "grad_norm" not in record:
            self._write(record, self._sampled, SAMPLED)
        self._sampled = None

    def describe(self, hello: dict[str, Any]) -> None:
        if self._source is None:
            hello["unavailable"]["grad_norm"] = self._reason
        else:
            hello["grad_norm_source"] = self._source


def _without_scale(squares: torch.Tensor, optimizer: Any) -> torch.Tensor:
    """A fused optimizer gets its gradients with the loss scale on and the scale beside them."""
    scale = getattr(optimizer, "grad_scale", None)
    return squares if scale is None else squares / scale.to(squares.device).square()
