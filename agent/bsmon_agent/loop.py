"""The training loop as the agent sees it: torch's events in, complete records out. Runs in the training thread."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from bsmon_agent.card import Card
from bsmon_agent.cycle import Closed, Cycle, Nesting
from bsmon_agent.dispatch import Dispatch
from bsmon_agent.governor import Governor
from bsmon_agent.rootfinder import RootFinder
from bsmon_agent.torchhooks import TorchHooks

MANY = 8  # optimizers after which a new one is no reason to look for the model again


class Loop:
    """``starts`` is called at the first sign of a training, ``deliver`` with every record, ``broken`` if we fail."""

    def __init__(
        self,
        card: Card,
        dispatch: Dispatch,
        governor: Governor,
        starts: Callable[[], None],
        deliver: Callable[[dict[str, Any]], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self.card = card
        self.governor = governor
        self.broken = broken
        self.hooks = TorchHooks(self)
        self.finder = RootFinder(
            begin=functools.partial(self.hooks.guarded, self.forward_begins),
            end=functools.partial(self.hooks.guarded, self.forward_ended),
            found=functools.partial(self.hooks.guarded, self.model_found),
        )
        self.cycle = Cycle()
        self._dispatch = dispatch
        self._tell = dispatch.tell
        self._starts = starts
        self._deliver = deliver
        self._thread = threading.get_ident()
        self._nesting = Nesting()
        self._optimizer: weakref.ref[Any] | None = None  # the one that stepped last
        self._made = 0  # optimizers constructed
        self._steps = 0  # outermost optimizer steps
        self._base = 0  # steps before the first that we counted
        self._base_of: int | None = None  # the optimizer whose own count says so
        self._uncounted: set[int] = set()  # optimizers without such a count
        self._evaluations: int | None = None  # of the running step's closure, if it has one
        self._in_forward = False
        self._in_backward = False
        self._inside: Any = None  # the optimizer that stepped inside the running backward
        self._unapplied = 0  # backwards of the model since the last step
        self._backwards = 0  # since the last record, as is the next
        self._forwards = 0
        self._listening = False  # was anything listened to when this record was opened?
        self._closed_at: float | None = None
        self._cpu = time.thread_time()

    def install(self) -> None:
        self.hooks.install()

    def remove(self) -> None:
        self.hooks.patches.clear()
        self.finder.close()

    def given(self, model: Any, optimizer: Any) -> None:
        """The user says what is trained."""
        if optimizer is not None:
            self._prepare(optimizer)
        if model is not None:
            self.finder.listen([model])

    # ------------------------------------------------------------ what a training is made of

    def optimizer_made(self, optimizer: Any, frame: FrameType | None) -> None:
        self._made += 1
        self._prepare(optimizer)
        if self._made <= MANY:
            self.finder.look(frame, optimizer)

    def _prepare(self, optimizer: Any) -> None:
        """This process trains, in this thread."""
        self._thread = threading.get_ident()
        self._starts()
        self.hooks.run_eagerly()

    def module_compiled(self, module: Any) -> None:
        self.finder.compiled(module)

    def length_known(self, steps: int) -> None:
        if self.card.total_steps is None:
            self.card.total_steps = steps

    def model_found(self, root: Any) -> None:
        self.card.model_found(root)
        self._tell("model_found", root, self._last())

    def _last(self) -> Any:
        """The optimizer that stepped last, if it is still there."""
        return self._optimizer() if self._optimizer is not None else None

    # ------------------------------------------------------------ forward and backward

    def forward_begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._in_backward or _recomputing() or not self._is_mine():
            return
        if torch.is_grad_enabled():
            self._forwards += 1
        self._in_forward = True
        self._tell("forward_begin", module, args, kwargs, again=self._again())

    def forward_ended(self, module: Any) -> None:
        if self._in_forward:
            self._in_forward = False
            self._tell("forward_end", module, again=self._again())

    def backward_begins(self, roots: Any) -> bool:
        """False for a backward inside another one, which is a recomputation."""
        if self._in_backward or _recomputing() or not self._is_mine():
            return False
        again = self._again()
        self._in_backward = True
        self._in_forward = False
        self.finder.outside()
        if not again:
            self._backwards += 1
            self.cycle.backward()
        self._tell("backward_begin", roots if isinstance(roots, tuple) else _listed(roots), again=again)
        return True

    def backward_ended(self, failed: bool) -> None:
        self._in_backward = False
        self._tell("backward_end", failed, again=self._again())
        if not failed and self._forwards:
            self._unapplied += 1
        if self._inside is not None:
            optimizer, self._inside = self._inside, None
            self._tell("step_end", optimizer)
            self._stepped(optimizer)

    def _again(self) -> bool:
        """Is this a later evaluation of the closure of a running step?"""
        return self._in_step() and self._evaluations is not None and self._evaluations > 1

    def _in_step(self) -> bool:
        """A step that raised is forgotten at the first event outside of it."""
        if self._nesting:
            self._nesting.settle(sys._getframe(1))
            if not self._nesting:
                self._evaluations = None
        return bool(self._nesting)

    def _is_mine(self) -> bool:
        """Another thread's events (evaluation on the side) are not this training's, while its own thread lives."""
        here = threading.get_ident()
        if here != self._thread and self._thread not in sys._current_frames():
            self._thread = here
        return here == self._thread

    # ------------------------------------------------------------ steps

    def step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        """May give other arguments back: the closure in a wrapper that counts its evaluations."""
        if not self._in_backward and not self._is_mine():
            return None
        if not self._nesting.enter(optimizer, frame) or self._in_backward:
            return None
        self.finder.outside()
        self._in_forward = False
        if not self._steps:
            self._prepare(optimizer)
        if not self.finder.heard_of:
            self.finder.look(frame, optimizer)
            if not self.finder.heard_of:
                self.finder.search(optimizer)
        closure = args[0] if args else kwargs.get("closure")
        if not callable(closure):
            self._evaluations = None
            self._tell("step_begin", optimizer)
            return None
        self._evaluations = 0
        counting = self._counting(closure, optimizer)
        return ((counting, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": counting})

    def _counting(self, closure: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
        @functools.wraps(closure, updated=())
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            self.hooks.guarded(self._evaluation_begins)
            result = closure(*args, **kwargs)
            self.hooks.guarded(self._evaluation_ended, optimizer)
            return result

        return evaluate

    def _evaluation_begins(self) -> None:
        self._evaluations = (self._evaluations or 0) + 1

    def _evaluation_ended(self, optimizer: Any) -> None:
        if self._evaluations == 1:
            self._tell("step_begin", optimizer)

    def step_ended(self, optimizer: Any) -> None:
        if not self._in_backward and not self._is_mine():
            return
        if not self._nesting.leave(optimizer):
            return
        if self._in_backward:
            self._inside = optimizer if self._inside is None else self._inside
            return
        if self._evaluations == 0:
            self._tell("step_begin", optimizer)
        self._evaluations = None
        self._tell("step_end", optimizer)
        self._stepped(optimizer, skipped=_found_inf(optimizer))

    def compiled_step(self, optimizer: Any) -> None:
        """A step was taken inside compiled code, before the event that tells it."""
        self._tell("step_end", optimizer)
        self._stepped(optimizer)

    def steps_seen(self) -> int:
        return self._steps

    def scaler_stepped(self, optimizer: Any, before: int | None) -> None:
        """GradScaler.step returned; if it did not call the optimizer, it found an infinity."""
        if before == self._steps and getattr(type(optimizer).step, "hooked", False):
            self._stepped(optimizer, skipped=True)

    def gradients_cleared(self, owner: Any) -> None:
        """zero_grad after a backward without a step: told only where one optimizer trains the whole model."""
        if not self._unapplied or self._in_step() or len(self.cycle.members) != 1:
            return
        optimizer = self._last()
        if optimizer is not None and (owner is self.finder.root or owner is optimizer):
            self._stepped(optimizer, skipped=True)

    def _stepped(self, optimizer: Any, skipped: bool = False) -> None:
        self._steps += not skipped
        self._unapplied = 0
        if self._optimizer is None or self._optimizer() is not optimizer:
            self._optimizer = weakref.ref(optimizer)
        number = self.card.number(optimizer)
        closed = self.cycle.step(number, skipped)
        if not skipped:
            self._number_from(optimizer, number)
        if closed is not None:
            self._close(closed, optimizer, number)

    def _number_from(self, optimizer: Any, number: int) -> None:
        """Steps made before we came are in the optimizer's own count, if it has one."""
        if self._base_of not in self.cycle.members:
            self._base_of = None
            self._uncounted.intersection_update(self.cycle.members)
        if self._base_of is None and number not in self._uncounted:
            own = own_count(optimizer)
            if own is None:
                self._uncounted.add(number)
            else:
                self._base, self._base_of = own - self.cycle.count, number

    def _close(self, closed: Closed, optimizer: Any, number: int) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        record: dict[str, Any] = {"step": self._base + self.cycle.count, "time": time.time(), "optimizer": number}
        duration = None if self._closed_at is None else now - self._closed_at
        if duration is not None:
            record["duration"], record["cpu_time"] = duration, cpu - self._cpu
        if closed.skipped:
            record["skipped"] = True
        self._closed_at, self._cpu = now, cpu
        self._tell("collect", record)
        self._deliver(record)
        self.governor.close(duration, self._dispatch.probes)
        self._check_root(optimizer)

    def _check_root(self, optimizer: Any) -> None:
        """A root that was not called in a record with a backward is not the one that is called."""
        if self._forwards:
            if not self.finder.settled:
                self.finder.settle()
        elif self._backwards and self._listening:
            self.finder.look_again(sys._getframe(1), optimizer)
        self._listening = self.finder.heard_of
        self._forwards = self._backwards = 0

    def hide_from(self, script: bool) -> None:
        """TorchScript compiles a module's hooks with it: it is to find none of ours."""
        if script:
            self.finder.pause()
        else:
            self.finder.resume()


def _listed(roots: Any) -> tuple[Any, ...]:
    """What backward() was given, as a tuple."""
    return (roots,) if isinstance(roots, torch.Tensor) or not hasattr(roots, "__iter__") else tuple(roots)


def _recomputing() -> bool:
    """Is this thread inside the autograd engine (activation checkpointing, a hook)?"""
    return bool(torch._C._current_graph_task_id() != -1)


def _found_inf(optimizer: Any) -> bool:
    """A fused optimizer steps without effect where the loss scaler found an infinity; told only if it is on the CPU."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and found.device.type == "cpu" and bool(found.item() > 0)


def own_count(optimizer: Any) -> int | None:
    """Steps by the optimizer's own count; None if it has none, or only on a device."""
    state = next(iter(optimizer.state.values()), None)
    count = state.get("step") if isinstance(state, dict) else None
    if isinstance(count, torch.Tensor):
        return int(count.item()) if count.device.type == "cpu" and count.numel() == 1 else None
    return int(count) if isinstance(count, (int, float)) else None
