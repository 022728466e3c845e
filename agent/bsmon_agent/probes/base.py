"""What a probe is: a thing in the training process that adds its fields to the step's record.

Most probes are readers: the agent writes down what happens (``tape``), and when a step is over each probe reads its
events. A probe that must act while the step runs is told of the moments of a step instead; it is ``optional``, and
only told in the steps in which the governor has armed it.

Everything a probe does runs in the training thread, guarded: an exception switches that probe off with a note and
never reaches the training. A probe keeps to four rules: no device synchronisation, no change to any tensor, gradient
or random state of the run, nothing that blocks, nothing that raises on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from bsmon_agent.tape import Event


class Probe:
    """Base of all probes. ``name`` is the key under which its sampling and its failures are reported."""

    name = "probe"
    optional = False  # acts while a step runs; the governor decides in which steps, so that the agent stays in budget
    armed = True  # set at the start of each step for optional probes
    spent = 0  # ns in hooks of its own, outside the methods below: it adds, the governor takes and zeroes after a step
    sees = 0  # the kind of event that ``see`` writes the payload of
    failed: Callable[[Probe, Exception], None] | None = None  # set by the session: takes this probe out

    def guarded(self, method: Callable[..., None], *args: Any) -> None:
        """From a hook of the probe's own: call one of its methods, timed, and never let it raise."""
        begun = perf_counter_ns()
        try:
            method(*args)
        except Exception as error:
            if self.failed is not None:
                self.failed(self, error)
        finally:
            self.spent += perf_counter_ns() - begun

    # ------------------------------------------------------------ for all probes

    def remove(self) -> None:
        """Take every hook out again. Called on detach, and when the probe has failed."""

    def model_found(self, root: Any, optimizer: Any) -> None:
        """The module that is trained was found, or another one took its place. ``optimizer`` may be None."""

    def see(self, *args: Any) -> Any:
        """What of this moment is to be written down, in as little time as can be. It must keep no big tensor alive."""

    def read(self, events: list[Event], record: dict[str, Any]) -> None:
        """The step is complete, and this is what happened in it: write fields (names of ``wire.RECORD_FIELDS``).

        A value that is still a tensor on a device goes in as it is; ``reductions.Lagged`` turns it into numbers.
        """

    def between(self, optimizer: Any) -> None:
        """Some steps were just read, the last one of this optimizer: the time for what is seldom done."""

    def describe(self, hello: dict[str, Any]) -> None:
        """Add what is known of this run to a hello (names of the app's ``Hello``). Called in the publisher's thread."""

    def report(self, beat: dict[str, Any]) -> None:
        """Add to the heartbeat (names of the app's ``Beat``). Called in the publisher's thread, once a second."""

    # ------------------------------------------------------------ for optional probes, in steps in which they are armed

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

        With a closure this comes after its first evaluation; of later evaluations optional probes are told nothing.
        Steps taken inside a backward (optimizer-in-backward) or in compiled code do not have it.
        """

    def collect(self, record: dict[str, Any]) -> None:
        """The step is complete, after ``read``: write fields, and start afresh."""
