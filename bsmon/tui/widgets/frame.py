"""What frames every page: the header, the alert line, the keys, and thin rules."""

from __future__ import annotations

from typing import ClassVar

from bsmon.draw.cells import Row
from bsmon.draw.header import alert_line, header, key_line, one_line, rule
from bsmon.draw.marks import worst_alert
from bsmon.tui.board import View
from bsmon.tui.widgets.panel import Panel


class HeaderLine(Panel):
    """Who is watched, how they stand, and the time."""

    def draw(self, view: View) -> list[Row]:
        standings = [view.standings[job.id] for job in view.jobs]
        width = self.size.width
        if self.board_app.form == "line":
            return [one_line(view.jobs, standings, width)]
        rate = view.choices.rate
        return [header(view.jobs, standings, view.hidden, rate, view.behind, view.now, width, view.title)]


class Rule(Panel):
    def draw(self, view: View) -> list[Row]:
        return [rule(self.size.width, view.look)]


class AlertLine(Panel):
    """The newest of the worst alerts that are raised."""

    def draw(self, view: View) -> list[Row]:
        raised = [alert for alert in view.snapshot.alerts if alert.state == "raised"]
        worst = worst_alert(raised)
        name = next((job.name for job in view.snapshot.jobs if worst and job.id == worst.job), "")
        standings = [view.standings[job.id] for job in view.jobs]
        return [alert_line(worst, len(raised) - 1, name, self.size.width, view.look, standings)]


class KeyLine(Panel):
    """The keys worth knowing here."""

    every: ClassVar[float] = 1.0

    def draw(self, view: View) -> list[Row]:
        return [key_line(self.board_app.hints(), self.size.width)]
