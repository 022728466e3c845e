"""The gradient's L2 norm before clipping: what clip_grad_norm_ returned, or else a look of our own now and then."""

from __future__ import annotations

import functools
from typing import Any

import torch

from bsmon_agent.patches import Everywhere, Patches
from bsmon_agent.probes.base import Probe
from bsmon_agent.reductions import capturing, sum_of_squares

CLIPPING = "clip_grad_norm_"
SAMPLED = "gradients before the step, sampled"
SCALED = "the gradients still carry the loss scale when they are clipped: call unscale_ before"
SHARDED = "the norm is spread over several processes"
OTHER_NORM = "clip_grad_norm_ uses another norm than the L2"
NOT_YET = "no step was looked at yet"


class NormProbe(Probe):
    name = "norm"
    optional = True

    def __init__(self) -> None:
        self._patches = Patches()
        self._squares: Any = None  # of all calls of clip_grad_norm_ since the last step
        self._sampled: Any = None
        self._clips = False
        self._scaled = False  # a loss scale is on the gradients of this step
        self._source: str | None = None
        self._reason = NOT_YET

    def install(self) -> None:
        clip = torch.nn.utils.clip_grad_norm_
        self._patches.make(Everywhere(clip, self._clipping(clip)))
        self._patches.wrap(torch.amp.GradScaler, "scale", self._setting(True))
        self._patches.wrap(torch.amp.GradScaler, "unscale_", self._setting(False))

    def remove(self) -> None:
        self._patches.clear()

    def _setting(self, scaled: bool) -> Any:
        """Around a method of the scaler after which the gradients (will) carry its scale, or carry it no more."""

        def wrapper(original: Any) -> Any:
            @functools.wraps(original)
            def method(scaler: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(scaler, *args, **kwargs)
                if not torch.compiler.is_compiling() and scaler.is_enabled():
                    self._scaled = scaled
                return result

            return method

        return wrapper

    def _clipping(self, original: Any) -> Any:
        @functools.wraps(original)
        def clip_grad_norm_(parameters: Any, max_norm: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any) -> Any:
            norm = original(parameters, max_norm, norm_type, *args, **kwargs)
            if not torch.compiler.is_compiling():
                self.guarded(self._clipped, norm, norm_type)
            return norm

        return clip_grad_norm_

    def _clipped(self, norm: Any, norm_type: Any) -> None:
        self._clips = True
        if type(norm) is not torch.Tensor:
            self._reason = SHARDED
        elif norm_type not in (2, 2.0):
            self._reason = OTHER_NORM
        elif self._scaled:
            self._reason = SCALED
        elif norm.device.type == "cpu":
            self._squares = (self._squares or 0.0) + norm.item() ** 2
        elif not capturing():
            square = norm.detach().float().square()
            self._squares = square if self._squares is None else self._squares + square

    def step_begin(self, optimizer: Any) -> None:
        if not self.armed or self._clips or capturing():
            return
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(type(gradient) is not torch.Tensor for gradient in gradients):
            self._reason = SHARDED
            return
        squares = sum_of_squares(gradients)
        if squares is not None:
            squares = _without_scale(squares, optimizer)
            self._sampled = squares if self._sampled is None else self._sampled + squares

    def step_end(self, optimizer: Any) -> None:
        self._scaled = False

    def collect(self, record: dict[str, Any]) -> None:
        squares = self._squares if self._clips else self._sampled
        if squares is not None:
            record["grad_norm"] = squares.sqrt() if isinstance(squares, torch.Tensor) else squares**0.5
            self._source = CLIPPING if self._clips else SAMPLED
        self._squares = self._sampled = None
        self._clips = False

    def describe(self, hello: dict[str, Any]) -> None:
        if self._source is None:
            hello["unavailable"]["grad_norm"] = self._reason
        else:
            hello["grad_norm_source"] = self._source


def _without_scale(squares: torch.Tensor, optimizer: Any) -> torch.Tensor:
    """A fused optimizer gets its gradients with the loss scale on and the scale beside them."""
    scale = getattr(optimizer, "grad_scale", None)
    return squares if scale is None else squares / scale.to(squares.device).square()
