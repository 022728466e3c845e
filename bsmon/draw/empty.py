"""The page for a first look, when there is nothing to see yet."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.draw.cells import Row, clean, fit
from bsmon.draw.look import Look

_WAYS = (
    ("bsmon run train.py", "starts your script unchanged, with the agent in it"),
    ("bsmon run -- torchrun ...", "the same for a launcher and all its ranks"),
    ("bsmon_agent.attach()", "one line in your script, after import bsmon_agent"),
    ("bsmon demo", "two small real trainings, to see what this shows"),
)


def empty(looked_at: Sequence[str], settled: bool, width: int, height: int, look: Look) -> list[Row]:
    """The ways to a first picture, what was looked at, and what to ask when a job should be here and is not."""
    room = max(20, min(width - 4, 100))
    column = max(len(command) for command, _ in _WAYS) + 4
    if not settled:
        return [[], [("   connecting", "bold"), ("  looking for trainings on this host", "dim")]][:height]
    rows: list[Row] = [[], [("   No training is seen yet.", "bold"), (" It will appear here by itself.", "")], []]
    for command, meaning in _WAYS:
        if column + len(meaning) + 3 <= width:
            rows.append([(f"   {command:<{column}}", "key"), (meaning, "dim")])
        else:
            rows += [[(f"   {command}", "key")], [(fit(f"     {meaning}", width), "dim")]]
    rows += [[], [("   Looked at", "bold")]]
    rows += [[(fit(f"     {clean(place)}", room, ellipsis=look.glyphs.ellipsis), "dim")] for place in looked_at]
    rows += [[], [("   bsmon doctor", "key"), ("  says what is wrong when a job should be here and is not", "dim")]]
    return rows[:height]


def nothing_matches(filter_text: str, hidden: int, width: int) -> list[Row]:
    text = f"   none of {hidden} jobs matches {clean(filter_text)}"
    return [[], [(fit(text, width), "dim")], [("   esc", "key"), (" clears the filter", "dim")]]
