"""Everything of torch's that is hooked or wrapped, and can be taken out again.

torch.compile sees none of it: traced, every wrapper is just the function that it wraps, without a graph break, and the
frames of the wrappers are never compiled themselves.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from bsmon_agent import taps
from bsmon_agent.copies import Copying
from bsmon_agent.patches import Everywhere, Hook, Patches, run_eagerly

if TYPE_CHECKING:
    from bsmon_agent.loop import Loop

Wrapped = Callable[..., Any]

is_compiling = torch.compiler.is_compiling


class TorchHooks:
    """The taps of ``taps``, and around what is called seldom a wrapper each that tells the loop."""

    def __init__(self, loop: Loop) -> None:
        self.patches = Patches()
        self._loop = loop
        self._functions: list[Any] = []

    def install(self) -> None:
        for holder, name, wrapper in (
            (torch.autograd, "backward", functools.partial(taps.backward_tap, self._loop)),
            (Optimizer, "zero_grad", functools.partial(taps.zero_grad_tap, self._loop)),
            (torch.nn.Module, "zero_grad", functools.partial(taps.zero_grad_tap, self._loop)),
            (dataloader._BaseDataLoaderIter, "__next__", functools.partial(taps.loader_tap, self._loop)),
            (Optimizer, "__init__", self._optimizer_init),
            (OneCycleLR, "__init__", self._schedule_init),
            (GradScaler, "scale", self._scaler_scale),
            (GradScaler, "unscale_", self._scaler_unscale),
            (GradScaler, "step", self._scaler_step),
            (torch, "compile", self._compile),
            (torch.jit, "script", self._script),
        ):
            self.patches.wrap(holder, name, functools.partial(self._dressed, wrapper))
        clip = torch.nn.utils.clip_grad_norm_
        self.patches.make(Everywhere(clip, self._dressed(self._clip, clip)))
        self.patches.make(Copying())
        before, after = taps.step_taps(self._loop)
        self._functions += [before, after]
        self.patches.make(Hook(lambda: register_optimizer_step_pre_hook(before)))
        self.patches.make(Hook(lambda: register_optimizer_step_post_hook(after)))

    def _dressed(self, wrapper: Callable[[Wrapped], Wrapped], original: Wrapped) -> Wrapped:
        """The wrapper around a function, looking like it."""
        wrapped = wrapper(original)
        self._functions.append(wrapped)
        return functools.update_wrapper(wrapped, original)

    def run_eagerly(self, ours: list[Any]) -> None:
        """To be called when torch's compiler may have been loaded since. ``ours`` and all they call are skipped."""
        run_eagerly(self._functions)
        run_eagerly(ours, callees_too=True)

    # ------------------------------------------------------------ wrappers of what is called seldom

    def _optimizer_init(self, original: Wrapped) -> Wrapped:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if not is_compiling():
                self._loop.guarded(self._loop.optimizer_made, optimizer, sys._getframe(1))

        return init

    def _schedule_init(self, original: Wrapped) -> Wrapped:
        """The only schedule whose length is always in optimizer steps."""

        def init(schedule: Any, *args: Any, **kwargs: Any) -> None:
            original(schedule, *args, **kwargs)
            self._loop.guarded(self._loop.length_known, schedule.total_steps)

        return init

    def _scaler_scale(self, original: Wrapped) -> Wrapped:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if not is_compiling() and scaler.is_enabled():
                self._loop.guarded(self._loop.loss_scaled, outputs, scaled)
            return scaled

        return scale

    def _scaler_unscale(self, original: Wrapped) -> Wrapped:
        def unscale_(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if not is_compiling():
                self._loop.guarded(self._loop.gradients_carry_scale, False)
            return result

        return unscale_

    def _scaler_step(self, original: Wrapped) -> Wrapped:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._loop.stepped
            result = original(scaler, optimizer, *args, **kwargs)
            if not is_compiling() and scaler.is_enabled():
                self._loop.guarded(self._loop.scaler_stepped, optimizer, before)
            return result

        return step

    def _clip(self, original: Wrapped) -> Wrapped:
        def clip_grad_norm_(parameters: Any, max_norm: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any) -> Any:
            norm = original(parameters, max_norm, norm_type, *args, **kwargs)
            if not is_compiling():
                self._loop.guarded(self._loop.clipped, norm, norm_type)
            return norm

        return clip_grad_norm_

    def _compile(self, original: Wrapped) -> Wrapped:
        """The wrapper that torch.compile puts around a module is what will be called; its inside is traced."""

        def compile(*args: Any, **kwargs: Any) -> Any:
            compiled = original(*args, **kwargs)
            if issubclass(type(compiled), torch.nn.Module):
                self._loop.guarded(self._loop.module_compiled, compiled)
            return compiled

        return compile

    def _script(self, original: Wrapped) -> Wrapped:
        """TorchScript would try to compile the hooks of a module, ours too: it meets none. It looks up names in the
        frame that called it, which is one further up."""

        def script(*args: Any, **kwargs: Any) -> Any:
            if len(args) < 3:
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            self._loop.guarded(self._loop.finder.pause)
            try:
                return original(*args, **kwargs)
            finally:
                self._loop.guarded(self._loop.finder.resume)

        return script
