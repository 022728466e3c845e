"""The pages: fleet, job, experts, GPUs, alerts, help."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import Vertical
from textual.widget import Widget

from bsmon.tui.board import View
from bsmon.tui.screens.page import Page
from bsmon.tui.widgets.fleet_table import FleetTable
from bsmon.tui.widgets.frame import Rule
from bsmon.tui.widgets.job_pane import JobPane, set_height
from bsmon.tui.widgets.lists import AlertList, AllGpus, HelpText, LayerList
from bsmon.tui.widgets.panel import Panel
from bsmon.tui.widgets.verdict import Verdict

_BELOW_TABLE = 9  # rows for the verdict and one chart, before the table may take more


class FleetPage(Page):
    """The table of jobs, and beside or below it what is known of the selected one."""

    def body(self) -> Iterable[Widget]:
        with Vertical(id="list"):
            yield FleetTable()
            yield AlertList(id="fleet-alerts")
        yield Rule(id="middle-rule")
        yield JobPane()

    def apportion(self, view: View) -> None:
        form, height = self.board_app.form, self.query_one("#body").size.height
        table, pane = self.query_one(FleetTable), self.query_one(JobPane)
        pane.display = form in ("normal", "wide") and view.job is not None
        self.query_one("#middle-rule").display = form == "normal" and pane.display
        alerts = self.query_one("#fleet-alerts")
        alerts.display = form == "wide" and pane.display
        listed = self.query_one("#list")
        rows = height
        if form == "normal" and pane.display:
            rows = min(len(view.jobs) + 1, max(3, height - 1 - _BELOW_TABLE))
        set_height(listed, rows)
        set_height(table, min(rows, len(view.jobs) + 3) if alerts.display else rows)
        super().apportion(view)


class JobPage(Page):
    """One job, on the whole page."""

    name_of_page = "job"

    def body(self) -> Iterable[Widget]:
        yield JobPane()


class _ListPage(Page):
    """One long list."""

    @property
    def mover(self) -> Panel | None:
        return self.query_one("#main", Panel)


class MoePage(_ListPage):
    """Every router of the selected job."""

    name_of_page = "moe"

    def body(self) -> Iterable[Widget]:
        yield Verdict()
        yield LayerList(id="main")


class GpuPage(_ListPage):
    name_of_page = "gpus"

    def body(self) -> Iterable[Widget]:
        yield AllGpus(id="main")


class HelpPage(_ListPage):
    name_of_page = "help"

    def body(self) -> Iterable[Widget]:
        yield HelpText(id="main")


class AlertPage(Page):
    """Every alert; the arrow keys choose the one to acknowledge."""

    name_of_page = "alerts"

    def body(self) -> Iterable[Widget]:
        yield AlertList(id="main")

    @property
    def alerts(self) -> AlertList:
        return self.query_one("#main", AlertList)

    def move(self, delta: int) -> None:
        self.alerts.choose(delta)
