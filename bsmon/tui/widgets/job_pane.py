"""All that is known of the selected job: the verdict on top, panels in two columns, figures below."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from bsmon.tui.board import View
from bsmon.tui.layout import Want, share
from bsmon.tui.widgets.charts import Drops, GradNorm, Loss, NoiseScale, Tokens
from bsmon.tui.widgets.job_panels import Experts, Facts, Gpus, Phases
from bsmon.tui.widgets.panel import Panel
from bsmon.tui.widgets.verdict import Verdict

_TWO_COLUMNS = 76
_ONE_CHART = 8  # with fewer rows than this there is one chart and nothing else


class JobPane(Vertical):
    """Panels appear and go with the room there is and with what the job has."""

    def compose(self) -> ComposeResult:
        yield Verdict()
        with Horizontal(classes="columns"):
            with Vertical(classes="left"):
                yield Tokens()
                yield NoiseScale()
                yield Phases()
            with Vertical(classes="right"):
                yield Drops()
                yield Experts()
                yield Loss()
                yield GradNorm()
                yield Gpus()
        yield Facts()

    def apportion(self, view: View) -> None:
        """Give every panel its rows."""
        width, height = self.size
        if not height:
            return
        verdict, facts = self.query_one(Verdict), self.query_one(Facts)
        left, right = self.query_one(".left", Vertical), self.query_one(".right", Vertical)
        roomy = height >= 20
        said = verdict.wants(view)
        verdict_rows = min(said.most if roomy else min(said.most, 4) if height >= 12 else said.least, height)
        facts_rows = 2 if height >= 16 else 0
        if roomy:
            facts_rows = max(3, min(facts.wants(view).most, (height - verdict_rows) // 5))
        room = height - verdict_rows - facts_rows
        set_height(verdict, verdict_rows)
        set_height(facts, facts_rows if view.job else 0)
        two = width >= _TWO_COLUMNS and room >= _ONE_CHART
        right.display = two
        self._fill(left, view, room, alone=room < _ONE_CHART)
        if two:
            self._fill(right, view, room)

    def _fill(self, column: Widget, view: View, room: int, alone: bool = False) -> None:
        panels = list(column.query(Panel))
        wants = [panel.wants(view) for panel in panels]
        if alone:
            wants = [Want(min(3, room), room, 0), *[Want(0, 0, 0)] * (len(wants) - 1)]
        for panel, rows in zip(panels, share(wants, room), strict=True):
            set_height(panel, rows)


def set_height(panel: Widget, rows: int) -> None:
    """Change the layout only where it changes."""
    if panel.display != (rows > 0):
        panel.display = rows > 0
    if rows and (panel.styles.height is None or panel.styles.height.value != rows):
        panel.styles.height = rows
