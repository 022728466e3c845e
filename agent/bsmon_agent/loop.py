"""The training loop as the agent sees it: what the taps leave over, and when the tape is read.

Everything here runs in the training thread. While the state says ``careful``, the taps pass everything on: an optional
probe looks at this step and is told moment by moment, or the model is still being looked for.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter_ns as clock
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.optim import Optimizer

from bsmon_agent import tape
from bsmon_agent.card import Card
from bsmon_agent.dispatch import Dispatch, unseen
from bsmon_agent.governor import Governor
from bsmon_agent.probes.loss import LossProbe
from bsmon_agent.probes.norm import NormProbe
from bsmon_agent.rootfinder import RootFinder
from bsmon_agent.steps import Steps
from bsmon_agent.taps import State, forward_taps, nothing
from bsmon_agent.torchhooks import TorchHooks

MANY = 8  # optimizers after which a new one is no reason to look for the model again
ONE_BY_ONE = 3  # first steps, whose events are read at once
READ_EVERY = 100_000_000  # ns; later the tape is read at the first step after so long
MOST = 64  # or after so many steps
QUIET = 5_000_000_000  # ns without a step, after which the training may have moved to another thread

_STEP = Optimizer.profile_hook_step(lambda optimizer: None).__code__  # of the frame in which torch calls its step hooks


class Loop:
    """``starts`` is called at the first sign of a training, ``broken`` if we fail."""

    def __init__(
        self,
        card: Card,
        dispatch: Dispatch,
        governor: Governor,
        steps: Steps,
        starts: Callable[[], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._broken = broken
        self.state = State()
        self.write = steps.tape.append
        self.stepped = 0  # outermost optimizer steps that came by here; all of them where a loss is scaled
        self.inside: Any = None  # the optimizer that stepped inside the running backward
        self.hooks = TorchHooks(self)
        self.see_forward = self.see_backward = self.see_step = unseen
        self._forward_taps = forward_taps(self)
        self.finder = RootFinder(*self._forward_taps)
        self._card = card
        self._dispatch = dispatch
        self._governor = governor
        self._steps = steps
        self._starts = starts
        self._made = 0  # optimizers constructed
        self._read = 0  # records
        self._evaluations: int | None = None  # of the running step's closure, if it has one
        self._listening = False  # was anything listened to when the tape was read last?

    def install(self) -> None:
        """The probes are in place by now."""
        self._open_eyes()
        self.hooks.install()

    def _open_eyes(self) -> None:
        self.see_forward = self._dispatch.seer(tape.FORWARD)
        self.see_backward = self._dispatch.seer(tape.BACKWARD)
        self.see_step = self._dispatch.seer(tape.STEPPED)

    def remove(self) -> None:
        self.hooks.patches.clear()
        self.finder.close()

    def guarded(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call one of ours: its time is the agent's, its failure is not the training's."""
        begun = clock()
        try:
            return method(*args)
        except Exception as error:
            self.failed(error)
            return None
        finally:
            self.state.spent += clock() - begun

    def failed(self, error: Exception) -> None:
        """Something of ours raised: a probe at what it sees, which is taken out, or else the agent."""
        if self._dispatch.blame(error):
            self._open_eyes()
        else:
            self._broken(error)

    # ------------------------------------------------------------ what a training is made of

    def given(self, model: Any, optimizer: Any) -> None:
        """The user says what is trained."""
        if optimizer is not None:
            self._prepare()
        if model is not None:
            self.finder.listen([model])

    def optimizer_made(self, optimizer: Any, frame: FrameType | None) -> None:
        self._made += 1
        self._prepare()
        if self.finder.settled and self._card.optimizer(self.state.number) is None:
            self.finder.reopen()  # the former training is over, and this is another one
            self.state.root, self.state.careful, self._made = 0, True, 1
        if self._made <= MANY:
            self.finder.look(frame, optimizer)

    def _prepare(self) -> None:
        """This process trains, in this thread."""
        self.state.thread = threading.get_ident()
        self._starts()
        owners = (Loop, Steps, Dispatch)
        ours = [value for owner in owners for value in vars(owner).values() if isinstance(value, FunctionType)]
        seers = [value for probe in self._dispatch.probes for value in (type(probe).see,) if probe.sees]
        self.hooks.run_eagerly([*ours, *seers, *self._forward_taps])

    def module_compiled(self, module: Any) -> None:
        self.finder.compiled(module)
        self.state.careful |= not self.finder.settled

    def length_known(self, steps: int) -> None:
        if self._card.total_steps is None:
            self._card.total_steps = int(steps)

    def _found(self, root: Any) -> None:
        self.state.root = id(root)
        self._card.model_found(root)
        self._dispatch.model_found(root, self.state.optimizer())

    # ------------------------------------------------------------ forward and backward

    def forward_begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A candidate or the root is called."""
        if self.state.root != id(module):
            if not self.finder.elect(module, self.state.in_forward):
                return
            self._found(module)
        self.state.in_forward = True
        if torch.is_grad_enabled():
            self.write((tape.FORWARD, clock(), self.see_forward(module, args, kwargs)))
        elif self.state.unread:
            self.read()  # an evaluation begins, which may take its time
        self._tell("forward_begin", module, args, kwargs)

    def forward_ended(self, module: Any) -> None:
        self._tell("forward_end", module)

    def backward_begins(self, roots: Any) -> None:
        self._tell("backward_begin", (roots,) if isinstance(roots, torch.Tensor) else tuple(roots))

    def backward_ended(self, failed: bool) -> None:
        self._tell("backward_end", failed)
        if self.inside is not None:
            optimizer, self.inside = self.inside, None
            self._step_over(optimizer)

    def _tell(self, moment: str, *args: Any) -> None:
        """To the probes that are armed; but not what a closure evaluates again."""
        if self._dispatch.live and (self._evaluations is None or self._evaluations < 2 or not self._in_step()):
            self.state.spent -= self._dispatch.tell(moment, *args)

    # ------------------------------------------------------------ loss scale, clipping, the user's own

    def loss_scaled(self, outputs: Any, scaled: Any) -> None:
        self.state.optimizer = nothing  # so that the end of the step comes here, to look for infinities
        loss: LossProbe | None = self._dispatch.of(LossProbe)
        if loss is not None:
            loss.guarded(loss.scaled, outputs, scaled)
        self.gradients_carry_scale(True)

    def gradients_carry_scale(self, carry: bool) -> None:
        norm: NormProbe | None = self._dispatch.of(NormProbe)
        if norm is not None:
            norm.carries_scale = carry

    def clipped(self, norm: Any, norm_type: Any) -> None:
        self.write((tape.CLIPPED, clock(), self._dispatch.see(tape.CLIPPED, norm, norm_type)))

    def logged(self, scalars: dict[str, Any]) -> None:
        self.write((tape.LOGGED, clock(), self._dispatch.see(tape.LOGGED, scalars)))

    def tokens(self, count: int) -> None:
        self.write((tape.TOKENS, clock(), int(count)))

    # ------------------------------------------------------------ steps

    def step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """May give other arguments back: the closure in a wrapper that counts its evaluations."""
        state = self.state
        frame = sys._getframe(2)  # torch's, that calls the tap
        state.in_step = steps_running(frame)
        if state.in_step > 1 or state.in_backward or not self._is_mine():
            return None
        state.in_forward = False
        if not self.finder.heard_of:
            self._prepare()
            self.finder.look(frame, optimizer)
        first = len(args) > 1 and _takes_closure(type(optimizer).step)  # args[0] is the optimizer
        closure = args[1] if first else kwargs.get("closure")
        if not callable(closure):
            self._evaluations = None
            self._updates(optimizer)
            return None
        self._evaluations = 0
        counting = self._counting(closure, optimizer)
        return ((args[0], counting, *args[2:]), kwargs) if first else (args, {**kwargs, "closure": counting})

    def _is_mine(self) -> bool:
        """Is this the training's thread? It may have moved, but two trainings at a time are not told apart."""
        state, here = self.state, threading.get_ident()
        if here == state.thread:
            return True
        if self.stepped and state.thread in sys._current_frames() and clock() - state.due < QUIET:
            return False
        state.thread = here
        return True

    def _updates(self, optimizer: Any) -> None:
        """The gradients are complete, and parameters about to change."""
        self._tell("step_begin", optimizer)
        self.write((tape.STEP, clock(), None))

    def _counting(self, closure: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
        @functools.wraps(closure, updated=())
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            self.guarded(self._evaluation_begins)
            result = closure(*args, **kwargs)
            self.guarded(self._evaluation_ended, optimizer)
            return result

        return evaluate

    def _evaluation_begins(self) -> None:
        self._evaluations = (self._evaluations or 0) + 1
        self.write((tape.EVALUATION, clock(), self._evaluations))

    def _evaluation_ended(self, optimizer: Any) -> None:
        if self._evaluations == 1:
            self._updates(optimizer)

    def step_ended(self, optimizer: Any) -> None:
        state = self.state
        running = steps_running(sys._getframe(2))
        state.in_step = max(0, running - 1)
        if running > 1:
            return
        if state.in_backward:
            self.inside = optimizer if self.inside is None else self.inside
        elif threading.get_ident() == state.thread:
            self._evaluations = None
            self._step_over(optimizer, skipped=_found_inf(optimizer))

    def compiled_step(self) -> None:
        """A step was taken inside compiled code, some time before the event that tells it."""
        optimizer, self.state.compiled = self.state.compiled, None
        self._step_over(optimizer)

    def scaler_stepped(self, optimizer: Any, before: int) -> None:
        """GradScaler.step returned; if it did not call the optimizer, it found an infinity."""
        if before == self.stepped and getattr(type(optimizer).step, "hooked", False):
            self._step_over(optimizer, skipped=True)

    def gradients_cleared(self, owner: Any) -> None:
        """zero_grad is called; after a backward without a step it throws gradients away."""
        state = self.state
        if state.compiled is not None:
            self.compiled_step()
        elif not self._in_step() and (owner is self.finder.root or owner is self._card.optimizer(state.number)):
            state.pending = False
            self.write((tape.CLEARED, clock(), (state.number, None, True)))

    def _in_step(self) -> bool:
        """A step that raised is no longer on the stack."""
        if self.state.in_step:
            self.state.in_step = steps_running(sys._getframe(1))
        return self.state.in_step > 0

    def _step_over(self, optimizer: Any, skipped: bool = False) -> None:
        state = self.state
        state.pending = False
        self.stepped += 1
        state.number = self._card.number(optimizer)
        state.optimizer = weakref.ref(optimizer)
        self.gradients_carry_scale(False)
        now = clock()
        self.write((tape.STEPPED, now, (state.number, self.see_step(optimizer), skipped)))
        state.unread += 1
        if state.careful or state.unread >= state.most or now > state.due:
            self.read(optimizer)

    # ------------------------------------------------------------ reading

    def read(self, optimizer: Any = None) -> None:
        """Have the tape read, book what all this cost, and let the governor choose who looks next."""
        state = self.state
        state.unread = 0
        count, seconds = self._steps.read()
        if count:
            spent, state.spent = state.spent, 0  # this reading itself is booked with the next
            self._governor.close(count, seconds, spent, self._dispatch.probes)
            self._dispatch.arm()
        if optimizer is not None:
            self._dispatch.between(optimizer)
            self._look_after_root(optimizer)
        state.careful = self._dispatch.live or not self.finder.settled
        self._read += count
        state.most = 1 if self._read < ONE_BY_ONE else min(MOST, self._governor.ahead())
        state.due = clock() + READ_EVERY

    def _look_after_root(self, optimizer: Any) -> None:
        """A root that was not called in a step with a backward is not the one that is called."""
        if self._steps.heard:
            self.finder.settle()
        elif self._steps.silent and self._listening:
            self.finder.look_again(sys._getframe(1), optimizer)
            self.state.root = 0
        self._listening = self.finder.heard_of


def steps_running(frame: FrameType | None) -> int:
    """In how many optimizer steps, one inside another, this frame is. No hook tells that a step raised; this does."""
    running = 0
    while frame is not None:
        running += frame.f_code is _STEP
        frame = frame.f_back
    return running


@functools.lru_cache(maxsize=64)
def _takes_closure(step: Any) -> bool:
    """Is the first argument of this step of an optimizer class a closure? Some take gradients there, or a model."""
    try:
        parameters = list(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        return False
    return parameters[1:2] == ["closure"]


def _found_inf(optimizer: Any) -> bool:
    """A fused optimizer steps without effect where the loss scaler found an infinity; told only if it is on the CPU."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and found.is_cpu and bool(found.item() > 0)
