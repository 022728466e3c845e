"""What a probe is: a thing hooked in the training process that adds its fields to the step's record.

A probe overrides the moments it cares about; the session calls only those that are overridden, in the training
thread, each guarded: an exception switches that probe off with a note and never reaches the training. A probe keeps
to four rules: no device synchronisation, no change to any tensor, gradient or random state of the run, nothing that
blocks, nothing that raises on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any


class Probe:
    """Base of all probes. ``name`` is the key under which its sampling and its failures are reported.

    ``optional`` probes cost something per step beyond a few dict writes; the governor decides in which steps they
    look (``armed``), so that the agent as a whole stays in its budget. The others see every step.
    """

    name = "probe"
    optional = False
    armed = True  # set by the session at the start of each step for optional probes
    spent = 0  # ns in hooks of its own, outside the methods below: it adds, the session takes and zeroes after a step
    repeats = False  # also told of the second and later evaluations of a closure inside one step (LBFGS)
    failed: Callable[[Probe, Exception], None] | None = None  # set by the session: takes this probe out

    def guarded(self, method: Callable[..., None], *args: Any) -> None:
        """From a patch or hook of the probe's own: call one of its methods, timed, and never let it raise."""
        begun = perf_counter_ns()
        try:
            method(*args)
        except Exception as error:
            if self.failed is not None:
                self.failed(self, error)
        finally:
            self.spent += perf_counter_ns() - begun

    def install(self) -> None:
        """Patch or hook what is global (torch is imported by now). Undone by ``remove``."""

    def remove(self) -> None:
        """Take every hook out again. Called on detach, and when the probe has failed."""

    def model_found(self, root: Any, optimizer: Any) -> None:
        """The module that is trained was found, or another one took its place. ``optimizer`` may be None."""

    def forward_begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The root module is called, outside of any recomputation; may be an evaluation."""

    def forward_end(self, module: Any) -> None:
        """The root module returned (not called if it raised)."""

    def backward_begin(self, roots: tuple[Any, ...]) -> None:
        """An outermost backward() starts from these tensors."""

    def backward_end(self, failed: bool) -> None:
        """The outermost backward() returned or raised."""

    def step_begin(self, optimizer: Any) -> None:
        """An outermost optimizer step starts; gradients are as the optimizer will see them.

        With a closure this comes after its first evaluation. Steps taken inside a backward (optimizer-in-backward) or
        in compiled code do not have it: there ``step_end`` alone is told, once for all of them.
        """

    def step_end(self, optimizer: Any) -> None:
        """It ended; parameters are updated."""

    def collect(self, record: dict[str, Any]) -> None:
        """The step is complete: write this probe's fields (names of ``wire.RECORD_FIELDS``) and start afresh.

        A value that is still a tensor on a device goes in as it is; ``reductions.Lagged`` turns it into numbers.
        """

    def describe(self, hello: dict[str, Any]) -> None:
        """Add what is known of this run to a hello (names of the app's ``Hello``). Called in the publisher's thread."""

    def report(self, beat: dict[str, Any]) -> None:
        """Add to the heartbeat (names of the app's ``Beat``). Called in the publisher's thread, once a second."""
