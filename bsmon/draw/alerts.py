"""The list of alerts, newest first; acknowledged and cleared ones stay."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from bsmon.draw.cells import Row, clean, crop, fit, pad, restyle
from bsmon.draw.look import Look
from bsmon.draw.marks import MARKS
from bsmon.draw.numbers import compact
from bsmon.draw.table import GAP, Column, heading, layout
from bsmon.model import Alert

COLUMNS = (
    Column("since", "SINCE", 14, "left", 0),
    Column("job", "JOB", 12, "left", 2, 24),
    Column("rule", "RULE", 14, "left", 4, 20),
    Column("where", "WHERE", 8, "left", 5, 24),
    Column("value", "VALUE", 7, rank=6),
    Column("limit", "LIMIT", 7, rank=7),
    Column("state", "STATE", 12, "left", 3),
    Column("message", "WHAT", 32, "left", 0, 90),
)


def newest_first(alerts: Sequence[Alert]) -> list[Alert]:
    """Raised ones before those that were dealt with."""
    return sorted(alerts, key=lambda alert: (alert.state != "raised", -alert.since))


def table(alerts: Sequence[Alert], names: Mapping[str, str], cursor: int, width: int, look: Look) -> list[Row]:
    """A heading and a row an alert; ``names`` gives a job's name by its id."""
    if not alerts:
        return [[], [("   no alert was raised yet", "dim")]]
    placed = layout(COLUMNS, width - 5)
    rows: list[Row] = [crop([("     ", ""), *heading(placed)], width)]
    for index, alert in enumerate(alerts):
        row = pad(_row(alert, names, placed, index == cursor, look), width)
        rows.append(restyle(row, "selected") if index == cursor else row)
    return rows


def _row(alert: Alert, names: Mapping[str, str], placed: Sequence[tuple[Column, int]], chosen: bool, look: Look) -> Row:
    raised = alert.state == "raised"
    cells = {
        "since": time.strftime("%m-%d %H:%M:%S", time.localtime(alert.since)),
        "job": clean(names.get(alert.job, alert.job)),
        "rule": alert.rule.replace("_", "-"),
        "where": clean(alert.where),
        "value": compact(alert.value),
        "limit": compact(alert.limit),
        "state": alert.state,
        "message": clean(alert.message),
    }
    row: Row = [(" > " if chosen else "   ", ""), (f"{MARKS[alert.severity]} ", alert.severity if raised else "dim")]
    for index, (column, width) in enumerate(placed):
        text = fit(cells[column.key], width, column.align, look.glyphs.ellipsis)
        row.append((" " * (GAP if index else 0) + text, "" if raised else "dim"))
    return row
