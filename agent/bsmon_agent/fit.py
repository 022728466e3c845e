"""Which fields of a record a reader would refuse: with one of them it would refuse the whole message.

The bounds are those of the app's ``Record``. Only the outer level and the user's own numbers are looked at; what is in
``moe`` and ``noise`` is made by our own probes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bsmon_agent import wire

ESSENTIAL = {"seq", "step", "time"}  # fields without which a record is none
LARGEST = 1 << 62
LARGEST_SMALL = 1 << 31
LATEST = 2.0**33  # Unix seconds
MAX_SCALARS = 64  # the user's own
MAX_KEY = 400  # characters


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _seconds(value: Any) -> bool:
    return _number(value) and value >= 0  # not NaN


def _moment(value: Any) -> bool:
    return _number(value) and 0 <= value <= LATEST


def _scalars(value: Any) -> bool:
    named = isinstance(value, dict) and len(value) <= MAX_SCALARS
    return named and all(isinstance(key, str) and len(key) <= MAX_KEY and _number(item) for key, item in value.items())


def _routers(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= wire.MAX_LAYERS


FITS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("seq", "step", "samples", "tokens", "padding"), _count),
    **dict.fromkeys(("micro", "accumulation", "sequence_length"), _count),
    **dict.fromkeys(("loss", "grad_norm", "learning_rate"), _number),
    **dict.fromkeys(("duration", "data_wait", "forward", "backward"), _seconds),
    **dict.fromkeys(("optimizer_time", "communication", "cpu_time"), _seconds),
    "optimizer": lambda value: _count(value) and value <= LARGEST_SMALL,
    "time": _moment,
    "skipped": lambda value: isinstance(value, bool),
    "moe": _routers,
    "noise": lambda value: isinstance(value, dict),
    "user": _scalars,
}


def unfit(record: Mapping[str, Any]) -> list[str]:
    """Names of the fields that must not be sent. A field of a later schema is its maker's affair."""
    return [name for name, value in record.items() if not _fits(name, value)]


def _fits(name: str, value: Any) -> bool:
    if value is None:
        return name not in ESSENTIAL and name != "skipped"
    fits = FITS.get(name)
    return fits is None or fits(value)
