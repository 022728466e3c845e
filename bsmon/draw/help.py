"""The help page: keys as they are bound, and what the marks mean."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.draw.cells import Row, fit, wrap
from bsmon.draw.look import Look

LEGEND = (
    ("X crit", "crit", "it wastes most of its time, or breaks"),
    ("! warn", "warn", "something is worth changing"),
    ("~ note", "note", "something is worth knowing"),
    ("? stale, lost", "dim", "no step for three expected ones; not heard for 30 s, or its process is gone"),
    (". finished", "dim", "it ended by itself"),
    ("GNS/B", "bold", "gradient noise scale over the batch: far above 1, a larger batch pays; far below, it wastes"),
    ("DROP%", "bold", "share of router assignments that found no room in their expert"),
    ("AGE", "bold", "time since the last step was heard"),
    ("n/a", "bold", "it can't be known here; the job page says why"),
)
FILTERS = (
    ("text", "jobs whose name has it"),
    ("host:node2", "jobs on that host"),
    ("verdict:input", "jobs with that verdict"),
    (">warn", "jobs at least that bad: >note, >warn, >crit"),
)


def help_page(keys: Sequence[tuple[str, str]], width: int, look: Look) -> list[Row]:
    """Keys in as many columns as fit, then the legend and the filter language."""
    column = max((len(key) for key, _ in keys), default=0) + 2
    entry = column + max((len(name) for _, name in keys), default=0) + 2
    across = max(1, (width - 2) // entry)
    deep = -(-len(keys) // across)
    rows: list[Row] = [[], [("  Keys", "title"), ("   the screen only reads: no key can touch a training", "dim")]]
    for index in range(deep):
        row: Row = [("  ", "")]
        for key, name in keys[index::deep]:
            row += [(f"{key:<{column}}", "key"), (f"{name:<{entry - column}}", "")]
        rows.append(row)
    rows += [[], [("  Marks and columns", "title")]]
    for term, style, meaning in LEGEND:
        first, *more = wrap(meaning, max(1, width - 19), 9, look.glyphs.ellipsis)
        rows += [[(f"  {term:<16}", style), (first, "")], *([(" " * 18 + line, "")] for line in more)]
    rows += [[], [("  Filter", "title"), ("   several words must all hold", "dim")]]
    rows += [
        [(f"  {term:<16}", "bold"), (fit(meaning, max(0, width - 18), ellipsis=look.glyphs.ellipsis), "")]
        for term, meaning in FILTERS
    ]
    return rows
