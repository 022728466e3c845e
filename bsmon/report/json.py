"""A snapshot as the contract's JSON: every key there, null with a reason where a value is not known."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from bsmon.model import Snapshot

# Reasons for what only the whole snapshot can lack; what a job lacks it explains itself.
DEFAULTS = {
    "regime": "nothing found here",
    "alerts": "this rule has no such figure",
    "gpus": "this GPU or its driver does not give it",
}
UNKNOWN = "not known"


def contract(snapshot: Snapshot) -> dict[str, Any]:
    """The contract's object, of plain dicts and lists. Reasons of jobs and GPUs move to the one ``unavailable``."""
    whole: dict[str, Any] = msgspec.to_builtins(snapshot)
    told: dict[str, str] = whole.pop("unavailable")
    for index, job in enumerate(whole["jobs"]):
        _move(job, f"jobs.{index}", told)
        for number, gpu in enumerate(job["gpus"]):
            _move(gpu, f"jobs.{index}.gpus.{number}", told)
    for number, gpu in enumerate(whole["gpus"]):
        _move(gpu, f"gpus.{number}", told)
    whole = {key: _known(value, key, told) for key, value in whole.items()}
    return {"schema": whole.pop("schema"), **whole, "unavailable": told}


def document(snapshot: Snapshot) -> str:
    """For people who read JSON: indented."""
    return msgspec.json.format(msgspec.json.encode(contract(snapshot)), indent=1).decode()


def line(snapshot: Snapshot) -> str:
    """For ``watch --json``: one line."""
    return msgspec.json.encode(contract(snapshot)).decode()


def _move(part: dict[str, Any], path: str, told: dict[str, str]) -> None:
    told |= {f"{path}.{name}": reason for name, reason in part.pop("unavailable").items()}


def _known(value: Any, path: str, told: dict[str, str]) -> Any:
    """The value with null for NaN and infinity; every null gets a reason unless it, or what it is part of, has one."""
    if isinstance(value, float) and not math.isfinite(value):
        told.setdefault(path, "NaN" if math.isnan(value) else "infinite")
        return None
    if value is None:
        if not any(prefix in told for prefix in _prefixes(path)):
            told[path] = _default(path)
    elif isinstance(value, dict):
        return {name: _known(item, f"{path}.{name}", told) for name, item in value.items()}
    elif isinstance(value, list) and not (value and isinstance(value[0], (int, str))):
        return [_known(item, f"{path}.{index}", told) for index, item in enumerate(value)]
    return value


def _default(path: str) -> str:
    return next((DEFAULTS[part] for part in path.split(".") if part in DEFAULTS), UNKNOWN)


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
