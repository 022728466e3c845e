"""Where torch tells us what happens: reversible wrappers and hooks, each of which calls the session, guarded.

torch.compile sees none of it: traced, every wrapper is the function that it wraps, without a graph break; and the
frames of the wrappers themselves are never compiled. A step that was compiled leaves a mark for the next event.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from time import perf_counter_ns as clock
from types import FrameType
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from bsmon_agent import rootfinder
from bsmon_agent.governor import Governor
from bsmon_agent.patches import Hook, Patches, run_eagerly

Wrapped = Callable[..., Any]

is_compiling = torch.compiler.is_compiling


class Listener(Protocol):
    """What a session does about each event. Whatever one of these raises ends the agent, not the training."""

    governor: Governor

    def optimizer_made(self, optimizer: Any, frame: FrameType | None) -> None: ...

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any, frame: FrameType) -> Any: ...

    def step_ended(self, optimizer: Any) -> None: ...

    def compiled_step(self, optimizer: Any) -> None: ...

    def backward_begins(self, roots: Any) -> bool: ...

    def backward_ended(self, failed: bool) -> None: ...

    def gradients_cleared(self, owner: Any) -> None: ...

    def scaler_stepped(self, optimizer: Any, before: int | None) -> None: ...

    def steps_seen(self) -> int: ...

    def module_compiled(self, module: Any) -> None: ...

    def length_known(self, steps: int) -> None: ...

    def hide_from(self, script: bool) -> None: ...

    def broken(self, error: Exception) -> None: ...


class _Mark:
    """What traced code may leave behind: a plain store on it is neither a graph break nor a guard."""

    stepped: Any = None


_mark = _Mark()


class TorchHooks:
    """Everything of torch's own that the session listens to, apart from the root module."""

    def __init__(self, listener: Listener) -> None:
        self.patches = Patches()
        self._listener = listener
        self._functions: list[Any] = []

    def install(self) -> None:
        wrap = self.patches.wrap
        wrap(Optimizer, "__init__", self._optimizer_init)
        wrap(Optimizer, "zero_grad", self._zero_grad)
        wrap(torch.nn.Module, "zero_grad", self._zero_grad)
        wrap(torch.autograd, "backward", self._backward)
        wrap(torch.amp.GradScaler, "step", self._scaler_step)
        wrap(torch, "compile", self._compile)
        wrap(torch.jit, "script", self._script)
        wrap(OneCycleLR, "__init__", self._schedule_init)
        before, after = self._step_hooks()
        self.patches.make(Hook(lambda: register_optimizer_step_pre_hook(before)))
        self.patches.make(Hook(lambda: register_optimizer_step_post_hook(after)))

    def run_eagerly(self) -> None:
        """To be called when torch's compiler may have been loaded since."""
        run_eagerly([*self._functions, *rootfinder.functions()])
        run_eagerly([TorchHooks.guarded], callees_too=True)

    def _wrapper(self, original: Wrapped, wrapper: Wrapped) -> Wrapped:
        """Dress the wrapper as the original."""
        self._functions.append(wrapper)
        return functools.update_wrapper(wrapper, original)

    def guarded(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call the session; its time is the agent's, its failure is not the training's."""
        begun = clock()
        try:
            if _mark.stepped is not None:
                optimizer, _mark.stepped = _mark.stepped, None
                self._listener.compiled_step(optimizer)
            return method(*args)
        except Exception as error:
            self._listener.broken(error)
            return None
        finally:
            self._listener.governor.base_ns += clock() - begun

    # ------------------------------------------------------------ the wrappers

    def _optimizer_init(self, original: Wrapped) -> Wrapped:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            if not is_compiling():
                self.guarded(self._listener.optimizer_made, optimizer, sys._getframe(1))
            return result

        return self._wrapper(original, init)

    def _zero_grad(self, original: Wrapped) -> Wrapped:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                self.guarded(self._listener.gradients_cleared, owner)
            return original(owner, *args, **kwargs)

        return self._wrapper(original, zero_grad)

    def _backward(self, original: Wrapped) -> Wrapped:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            roots = args[0] if args else kwargs.get("tensors", ())
            if not self.guarded(self._listener.backward_begins, roots):
                return original(*args, **kwargs)
            failed = True
            try:
                result = original(*args, **kwargs)
                failed = False
                return result
            finally:
                self.guarded(self._listener.backward_ended, failed)

        return self._wrapper(original, backward)

    def _scaler_step(self, original: Wrapped) -> Wrapped:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(scaler, optimizer, *args, **kwargs)
            before = self.guarded(self._listener.steps_seen)
            result = original(scaler, optimizer, *args, **kwargs)
            self.guarded(self._listener.scaler_stepped, optimizer, before)
            return result

        return self._wrapper(original, step)

    def _compile(self, original: Wrapped) -> Wrapped:
        """The wrapper that torch.compile puts around a module is what will be called; its inside is traced."""

        def compile(*args: Any, **kwargs: Any) -> Any:
            compiled = original(*args, **kwargs)
            if issubclass(type(compiled), torch.nn.Module):
                self.guarded(self._listener.module_compiled, compiled)
            return compiled

        return self._wrapper(original, compile)

    def _script(self, original: Wrapped) -> Wrapped:
        """TorchScript would try to compile the hooks of a module, ours too: it meets none."""

        def script(*args: Any, **kwargs: Any) -> Any:
            self.guarded(self._listener.hide_from, True)
            try:
                return original(*args, **kwargs)
            finally:
                self.guarded(self._listener.hide_from, False)

        return self._wrapper(original, script)

    def _schedule_init(self, original: Wrapped) -> Wrapped:
        """The only schedule whose length is always in optimizer steps."""

        def init(schedule: Any, *args: Any, **kwargs: Any) -> None:
            original(schedule, *args, **kwargs)
            self.guarded(self._listener.length_known, int(schedule.total_steps))

        return self._wrapper(original, init)

    def _step_hooks(self) -> tuple[Wrapped, Wrapped]:
        def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if is_compiling():
                return None
            return self.guarded(self._listener.step_begins, optimizer, args, kwargs, sys._getframe(1))

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling():
                _mark.stepped = optimizer
                return
            self.guarded(self._listener.step_ended, optimizer)

        self._functions += [before, after]
        return before, after
