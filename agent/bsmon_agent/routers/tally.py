"""From two raw tensors of a counter, read, to the fields that go on the wire (``wire.MOE_FIELDS``)."""

from __future__ import annotations

import math
from typing import Any

from bsmon_agent.routers.feeding import agreed

SCALARS = (
    "calls",
    "tokens",
    "assignments",  # tokens x K
    "groups",
    "capacity",  # sum over calls
    "scored",  # tokens whose entropy was added
    "masked",  # calls of which it is known what was padding
    "assigned",  # calls that showed what was chosen, then those that showed …
    "kept",
    "tokenwise",  # … which token was kept where
    "sightless",  # calls after which the experts may drop unseen
    "dropless",  # calls of a router known to drop nothing: what it chose of nobody is its policy
    "unsplit",  # calls whose missing choices may be policy or capacity
    "skipped",
    "lost",
    "doubt",
    "refused",
)
PLACE = {name: position for position, name in enumerate(SCALARS)}


class UnreadableError(Exception):
    """What was counted can't be trusted; the text says why."""


def tally(
    experts: int, ints: list[int], floats: list[float], host: list[int], fed: list[int] | None = None
) -> dict[str, Any]:
    """The counted fields of one router, without its name. An empty dict: it was not called.

    ``ints`` is [3 (E + 2) + scalars], ``floats`` is [entropy sum, 0 or NaN], ``host`` adds to the scalars.
    """
    size = experts + 2  # nobody's on either side
    scalars = [device + python for device, python in zip(ints[3 * size :], host, strict=True)]
    count = {name: scalars[place] for name, place in PLACE.items()}
    if count["refused"]:
        raise UnreadableError("its output had an unexpected shape inside a compiled region")
    if not count["calls"]:
        return {}
    if any(not math.isfinite(value) for value in floats):
        raise UnreadableError("NaN or infinity in its output")
    blocks = [ints[number * size + 1 : (number + 1) * size - 1] for number in range(3)]
    fields: dict[str, Any] = {name: count[name] for name in ("tokens", "calls", "groups")}
    fields |= _choices(count, *blocks)
    if count["sightless"] == count["calls"]:
        fields |= _seen_at_experts(fields["assignments"], blocks[0], fed)
    if count["scored"]:
        fields["entropy"] = floats[0] / count["scored"]
    if count["capacity"]:
        fields["capacity"] = count["capacity"] // count["calls"]
    return fields


def _choices(count: dict[str, int], chosen: list[int], kept: list[int], padding: list[int]) -> dict[str, Any]:
    """What was chosen, kept, dropped. A choice that never shows is missing by policy or by capacity."""
    calls, nominal, skipped = count["calls"], count["assignments"], count["skipped"]
    trusted = count["assigned"] == calls and not count["doubt"]
    shows_kept = count["kept"] == calls
    if trusted and count["dropless"] == calls:
        skipped = nominal - sum(chosen)
    elif trusted and sum(chosen) < nominal - skipped:  # the router itself hides what it dropped
        trusted, shows_kept, kept = False, True, kept if shows_kept else chosen
    fields: dict[str, Any] = {"assignments": nominal - skipped, "policy_skipped": skipped}
    if trusted:
        fields["assigned"] = chosen
        if count["masked"] == calls:
            fields["padding"] = padding
    if shows_kept:
        fields |= _drops(count, fields["assignments"], kept)
    elif not count["sightless"]:
        fields |= {"dropped": 0, "fully_dropped": 0}
    return fields


def _seen_at_experts(assignments: int, chosen: list[int], fed: list[int] | None) -> dict[str, Any]:
    """What the logits leave open, where the experts themselves show it."""
    rows = agreed(fed, assignments, chosen)
    if rows is None:
        return {}
    dropped = assignments - sum(rows)
    fields: dict[str, Any] = {"dropped": dropped, "confirmed": True}
    if not dropped and rows != chosen:
        fields["padding"] = None  # worked out for choices that were not these
    return fields | ({"kept": rows} if dropped else {"assigned": rows, "fully_dropped": 0})


def _drops(count: dict[str, int], assignments: int, kept: list[int]) -> dict[str, Any]:
    missing = assignments - sum(kept)
    fields: dict[str, Any] = {"kept": kept}
    if count["sightless"]:
        return fields
    if missing and (count["unsplit"] or (count["doubt"] and count["skipped"])):
        return fields | {"policy_skipped": None, "missing": missing}
    fields["dropped"] = missing
    if count["tokenwise"] == count["calls"]:
        fields["fully_dropped"] = count["lost"]
    return fields
