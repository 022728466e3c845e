"""What runs in every step of a training: flat on purpose.

A step sweeps the processor's caches, so that whatever runs once a step runs cold, and each function called or object
touched costs a microsecond. The taps below therefore do all their ordinary work themselves: a look at a few flags, a
time, one event on the tape. Whatever is not ordinary they leave to ``Loop``. The first lines of each make torch.compile
trace nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

import torch

from bsmon_agent.tape import BACKWARD, BACKWARD_ENDED, DATA, FORWARD, RETURNED, STEP, STEPPED

if TYPE_CHECKING:
    from bsmon_agent.loop import Loop

Function = Callable[..., Any]

is_compiling = torch.compiler.is_compiling  # also true in an export that runs the module with tensors of no content
is_traced = torch.compiler.is_dynamo_compiling  # a constant to whoever traces, and cheaper to ask
is_grad_enabled = torch.is_grad_enabled
is_tracing = torch._C._is_tracing  # TorchScript's tracer would write down what we ask of a tensor


def nothing() -> None:
    """Stands for a weak reference to an object that is gone."""


class State:
    """The flags that taps look at."""

    __slots__ = (
        "careful",
        "compiled",
        "due",
        "in_backward",
        "in_forward",
        "in_step",
        "most",
        "number",
        "optimizer",
        "pending",
        "root",
        "spent",
        "thread",
        "unread",
    )

    def __init__(self) -> None:
        self.careful = True  # a probe looks at this step, or the model is still being looked for
        self.compiled: Any = None  # the optimizer that stepped inside compiled code; written by what is traced
        self.due = 0  # when the tape is to be read, ns
        self.in_backward = False
        self.in_forward = False  # of the root, unless that raised
        self.in_step = 0  # nested optimizer steps that began; one that raised is still in it
        self.most = 1  # steps after which the tape is to be read
        self.number = 0  # of the optimizer that stepped last
        self.optimizer: Callable[[], Any] = nothing  # weak
        self.pending = False  # was there a backward since the last step?
        self.root = 0  # identity of the root module
        self.spent = 0  # ns in the agent since the tape was read last
        self.thread = get_ident()  # the one that trains
        self.unread = 0  # steps on the tape


def forward_taps(loop: Loop) -> tuple[Function, Function]:
    """A forward pre-hook (with keyword arguments) and a forward hook for every module that is listened to."""
    state, write = loop.state, loop.write

    def before(module: Any, args: Any, kwargs: Any) -> None:
        if is_compiling() or is_tracing():
            return
        begun = clock()
        try:
            if state.compiled is not None:
                loop.compiled_step()
            if state.in_backward or get_ident() != state.thread:
                return
            if state.careful or state.root != id(module) or not is_grad_enabled():
                loop.forward_begins(module, args, kwargs)
            else:
                write((FORWARD, begun, loop.see_forward(module, args, kwargs)))
                state.in_forward = True
        except Exception as error:
            loop.failed(error)
        state.spent += clock() - begun

    def after(module: Any, args: Any, output: Any) -> None:
        if is_compiling() or not state.in_forward or state.root != id(module) or state.in_backward:
            return
        state.in_forward = False
        write((RETURNED, clock(), None))
        if state.careful:
            loop.guarded(loop.forward_ended, module)

    return before, after


def backward_tap(loop: Loop, original: Function) -> Function:
    """In place of ``torch.autograd.backward``. One inside another is a recomputation, and none of ours."""
    state, write = loop.state, loop.write

    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_traced() or state.in_backward or get_ident() != state.thread:
            return original(*args, **kwargs)
        begun = clock()
        try:
            if state.compiled is not None:
                loop.compiled_step()
            roots = args[0] if args else kwargs["tensors"]
            write((BACKWARD, begun, loop.see_backward(roots)))
            state.in_backward = True
            state.in_forward = False
            if state.careful:
                loop.backward_begins(roots)
        except Exception as error:
            loop.failed(error)
        state.spent += clock() - begun
        failed = True
        try:
            result = original(*args, **kwargs)
            failed = False
            return result
        finally:
            begun = clock()
            try:
                state.in_backward = False
                state.pending = True
                write((BACKWARD_ENDED, begun, failed))
                if state.careful or loop.inside is not None:
                    loop.backward_ended(failed)
            except Exception as error:
                loop.failed(error)
            state.spent += clock() - begun

    return backward


def step_taps(loop: Loop) -> tuple[Function, Function]:
    """A global optimizer step pre-hook and post-hook."""
    state, write = loop.state, loop.write

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_traced():
            return None
        begun = clock()
        try:
            closure = len(args) > 1 or kwargs
            if state.careful or state.in_step or state.in_backward or closure or get_ident() != state.thread:
                return loop.step_begins(optimizer, args, kwargs)
            state.in_step = 1
            write((STEP, begun, None))
        except Exception as error:
            loop.failed(error)
        finally:
            state.spent += clock() - begun
        return None

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_traced():
            state.compiled = optimizer
            return
        begun = clock()
        try:
            if state.careful or state.in_step != 1 or state.in_backward or state.optimizer() is not optimizer:
                loop.step_ended(optimizer)
            elif get_ident() == state.thread:
                state.in_step = 0
                state.pending = False
                write((STEPPED, begun, (state.number, loop.see_step(optimizer), False)))
                state.unread += 1
                if state.unread >= state.most or begun > state.due:
                    loop.read(optimizer)
        except Exception as error:
            loop.failed(error)
        state.spent += clock() - begun

    return before, after


def zero_grad_tap(loop: Loop, original: Function) -> Function:
    """In place of ``Optimizer.zero_grad`` and ``Module.zero_grad``."""
    state = loop.state

    def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_traced() and state.pending:
            loop.guarded(loop.gradients_cleared, owner)
        return original(owner, *args, **kwargs)

    return zero_grad


def loader_tap(loop: Loop, original: Function) -> Function:
    """In place of a DataLoader iterator's ``__next__``. Data for an evaluation, without gradients, is not counted."""
    state, write = loop.state, loop.write

    def __next__(iterator: Any) -> Any:  # noqa: N807
        begun = clock()
        batch = original(iterator)
        if get_ident() == state.thread and is_grad_enabled() and not is_traced():
            now = clock()
            write((DATA, now, now - begun))
        return batch

    return __next__
