"""The other panels about the selected job: phases, experts, GPUs, figures."""

from __future__ import annotations

from typing import ClassVar

from bsmon.draw.cells import Row
from bsmon.draw.experts import LevelMemory, experts
from bsmon.draw.facts import facts
from bsmon.draw.gpus import gpus
from bsmon.draw.phases import parts, phases
from bsmon.tui.board import View
from bsmon.tui.layout import Want
from bsmon.tui.widgets.panel import JobPanel


class Phases(JobPanel):
    def draw(self, view: View) -> list[Row]:
        return phases(view.job, *self.size, view.look, self.has_focus) if view.job else []

    def wants(self, view: View) -> Want:
        if view.job is None:
            return Want(0, 0, 1)
        measured = len(parts(view.job))
        return Want(2, 1 + max(1, measured), 1) if measured else Want(2, 3, 1)


class Experts(JobPanel):
    every: ClassVar[float] = 1.0

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._memory = LevelMemory()
        self._job: str | None = None

    def draw(self, view: View) -> list[Row]:
        if view.job is None:
            return []
        if view.job.id != self._job:
            self._job = view.job.id
            self._memory.forget()
        return experts(view.job, *self.size, view.look, self._memory, self.has_focus)

    def wants(self, view: View) -> Want:
        if view.job is None or view.job.moe is None:
            return Want(0, 0, 1)
        return Want(4, 2 + max(1, len(view.job.moe.layers)), 1)


class Gpus(JobPanel):
    def draw(self, view: View) -> list[Row]:
        if view.job is None:
            return []
        reason = view.snapshot.unavailable.get("gpus")
        return gpus(view.job, reason, *self.size, view.look, self.has_focus)

    def wants(self, view: View) -> Want:
        return Want(2, 1 + max(1, len(view.job.gpus)), 4) if view.job else Want(0, 0, 4)


class Facts(JobPanel):
    """Batch, agent, optimizer, model, memory."""

    every: ClassVar[float] = 1.0

    def draw(self, view: View) -> list[Row]:
        if view.job is None:
            return []
        up = view.now - view.job.started if view.job.started is not None else None
        return facts(view.job, up, *self.size, view.look, self.has_focus)

    def wants(self, view: View) -> Want:
        return Want(3, 9 if view.job.user else 8, 1) if view.job else Want(0, 0, 1)
