"""How the rows of a column are shared among its panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Want(NamedTuple):
    """Rows a panel needs at least and has use for at most; ``rank`` 0 is the last to go when there is no room.

    One that ``grows`` also takes its part of what nobody has use for.
    """

    least: int
    most: int
    rank: int
    grows: bool = False


def share(wants: Sequence[Want], room: int) -> list[int]:
    """Rows for each panel, 0 for one that is left out; together never more than ``room``."""
    kept = [index for index, want in enumerate(wants) if want.least > 0]
    while kept and sum(wants[index].least for index in kept) > room:
        kept.remove(max(kept, key=lambda index: wants[index].rank))
    rows = [want.least if index in kept else 0 for index, want in enumerate(wants)]
    left = room - sum(rows)
    while left > 0:
        hungry = [index for index in kept if rows[index] < wants[index].most]
        if not hungry:
            break
        poorest = min(hungry, key=lambda index: (rows[index], wants[index].rank))
        rows[poorest] += 1
        left -= 1
    growing = [index for index in kept if wants[index].grows]
    for place, index in enumerate(growing):
        extra = left // (len(growing) - place)
        rows[index] += extra
        left -= extra
    return rows
