"""Panels that are one long list: routers, GPUs, alerts, help."""

from __future__ import annotations

from typing import ClassVar

from bsmon.draw.alerts import newest_first, table
from bsmon.draw.cells import Row
from bsmon.draw.experts import LevelMemory, layers_table
from bsmon.draw.gpus import all_gpus
from bsmon.draw.header import heading
from bsmon.draw.heat import legend
from bsmon.draw.help import help_page
from bsmon.model import Alert
from bsmon.tui import keys
from bsmon.tui.board import View
from bsmon.tui.widgets.panel import Panel


class LayerList(Panel):
    """Every router of the selected job, with its strip."""

    every: ClassVar[float] = 1.0

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._memory = LevelMemory()
        self._job: str | None = None

    def draw(self, view: View) -> list[Row]:
        job, width = view.job, self.size.width
        if job is None:
            return []
        if job.id != self._job:
            self._job = job.id
            self._memory.forget()
        return [
            heading("experts", legend(view.look), width, view.look),
            *layers_table(job, width, view.look, self._memory),
        ]


class AllGpus(Panel):
    """Every GPU of this host."""

    def draw(self, view: View) -> list[Row]:
        owners = {gpu.uuid: job.name for job in view.snapshot.jobs for gpu in job.gpus}
        snapshot, width = view.snapshot, self.size.width
        reason = snapshot.unavailable.get("gpus")
        rows = all_gpus(snapshot.host, snapshot.gpus, owners, reason, width, view.look)
        return [heading(f"GPUs of {snapshot.host}", [], width, view.look), *rows]


class AlertList(Panel):
    """Alerts that stand, then those that were dealt with."""

    every: ClassVar[float] = 1.0

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chosen: str | None = None
        self._alerts: list[Alert] = []

    def draw(self, view: View) -> list[Row]:
        self._alerts = newest_first(view.snapshot.alerts)
        names = {job.id: job.name for job in view.snapshot.jobs}
        width = self.size.width
        cursor = self._cursor() if self.id == "main" else -1
        return [heading("alerts", [], width, view.look), *table(self._alerts, names, cursor, width, view.look)]

    def _cursor(self) -> int:
        return next((index for index, alert in enumerate(self._alerts) if alert.id == self._chosen), 0)

    @property
    def chosen(self) -> Alert | None:
        return self._alerts[self._cursor()] if self._alerts else None

    def choose(self, delta: int) -> None:
        """Move the choice; it sticks to the alert, not to the row."""
        if self._alerts:
            place = min(len(self._alerts) - 1, max(0, self._cursor() + delta))
            self._chosen = self._alerts[place].id
            self.top = max(place + 3 - self.size.height, min(self.top, place))
            self.redraw()


class HelpText(Panel):
    """The keys as they are bound, and the meaning of marks."""

    every: ClassVar[float] = 3600.0

    def draw(self, view: View) -> list[Row]:
        return help_page(keys.listed(keys.GLOBAL), self.size.width, view.look)
