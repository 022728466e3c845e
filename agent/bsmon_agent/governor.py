"""Keeps the agent under its budget: it measures what the callbacks cost, and lets optional probes look less often."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Protocol

SHARE = 0.01  # of the step time
FLOOR = 30.0  # microseconds a step that the agent may always use
RAREST = 1024  # an optional probe looks at least once in so many steps
WARM_UP = 2  # first steps, whose cost (finding the model, first calls) says nothing of the rest
MEMORY = 20  # steps that a moving mean remembers
SETTLED = 8  # values after which a mean is trusted enough to judge outliers by it
CALIBRATION = 8  # steps from the first look of a probe, which pays for its own warm-up, to the second


class Governed(Protocol):
    """What the governor needs of a probe (``probes.base.Probe``)."""

    name: str
    optional: bool
    armed: bool
    spent: int


class Mean:
    """A plain mean of the first twenty values, then a moving one. One value counts as four times the mean at most:
    what a preempted thread waits for others is not its own cost."""

    def __init__(self) -> None:
        self.value = 0.0
        self.seen = 0

    def add(self, value: float, weight: int = 1) -> None:
        """``value`` is itself the mean of ``weight`` values."""
        if self.seen > SETTLED:
            value = min(value, 4 * self.value)
        self.seen += weight
        self.value += (value - self.value) * min(1.0, max(1 / self.seen, 1 / MEMORY) * weight)


class Duty:
    """How often one optional probe looks."""

    def __init__(self, first: int) -> None:
        self.cost = Mean()  # microseconds a look
        self.every = CALIBRATION
        self.last = first - CALIBRATION  # step of the last look; the first one is due at ``first``
        self.looks = 0

    @property
    def next(self) -> int:
        """The step in which a look is due: moves with the budget, so that one dear look delays nothing for long."""
        return self.last + self.every

    def looked(self, cost: float) -> None:
        self.looks += 1
        if self.looks == 2:  # the first look paid for its own warm-up
            self.cost = Mean()
        self.cost.add(cost)

    def allow(self, slice_: float) -> float:
        """Given this many microseconds a step, choose 1 step in k; return what that uses."""
        if self.looks >= 2:
            self.every = RAREST if slice_ <= 0 else min(RAREST, max(1, math.ceil(self.cost.value / slice_)))
        return self.cost.value / self.every


def share_from_environment() -> float:
    """``BSMON_BUDGET``, a share of the step time; the default where it is not a number."""
    try:
        share = float(os.environ.get("BSMON_BUDGET", SHARE))
    except ValueError:
        return SHARE
    return share if share >= 0 else SHARE


class Governor:
    """One budget for all that the agent does in the training thread."""

    def __init__(self, share: float | None = None) -> None:
        self.share = share_from_environment() if share is None else share
        self.duties: dict[str, Duty] = {}
        self._base = Mean()
        self._step = Mean()
        self._steps = 0

    def close(self, steps: int, seconds: float, base: int, probes: Sequence[Governed]) -> None:
        """Steps are complete, the last with the optional probes as they are armed now: book what was spent in them
        (``base``, ns, outside of those probes), and arm for the next."""
        self._steps += steps
        for probe in probes:
            if probe.optional and probe.armed:
                self._duty(probe.name).looked(probe.spent / 1e3)
            else:
                base += probe.spent
            probe.spent = 0
        if seconds > 0 and self._steps > WARM_UP:
            self._step.add(seconds * 1e6 / steps, steps)
            self._base.add(base / 1e3 / steps, steps)
        self._share_out()
        for probe in probes:
            if probe.optional:
                probe.armed = self._due(self._duty(probe.name))

    def ahead(self) -> int:
        """Steps until the next look of an optional probe is due."""
        return max(1, min((duty.next for duty in self.duties.values()), default=RAREST) - self._steps)

    def _duty(self, name: str) -> Duty:
        if name not in self.duties:
            self.duties[name] = Duty(first=self._steps + WARM_UP + 3 * len(self.duties))
        return self.duties[name]

    def _due(self, duty: Duty) -> bool:
        if self.share < 1 and self._steps < duty.next:
            return False
        duty.last = self._steps
        return True

    def _share_out(self) -> None:
        """Cheap probes first: what one does not need is left for the dearer ones."""
        left = self.budget - self._base.value
        duties = sorted(self.duties.values(), key=lambda duty: duty.cost.value)
        for position, duty in enumerate(duties):
            left -= duty.allow(left / (len(duties) - position))

    @property
    def budget(self) -> float:
        """Microseconds a step."""
        return max(self.share * self._step.value, FLOOR)

    def cost(self) -> dict[str, Any]:
        """The heartbeat's ``overhead``."""
        always = self.share >= 1
        looks = {name: duty for name, duty in list(self.duties.items()) if duty.looks}
        sampling = {name: 1.0 if always else 1.0 / duty.every for name, duty in looks.items()}
        spent = self._base.value + sum(duty.cost.value * sampling[name] for name, duty in looks.items())
        cost = {"us_per_step": spent, "budget": self.budget, "sampling": sampling}
        if self._step.value > 0:
            cost["share_of_step"] = spent / self._step.value
        return cost
