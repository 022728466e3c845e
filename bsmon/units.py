"""Numbers as people read them."""

from __future__ import annotations

import math


def si(value: float | None, digits: int = 3) -> str:
    """A count or rate with an SI suffix in at most ``digits`` significant figures: 124k, 93.8k, 1.25M. None: ``-``."""
    if value is None or not math.isfinite(value):
        return "-"
    sign, value = ("-", -value) if value < 0 else ("", value)
    for suffix in ("", "k", "M", "G", "T", "P"):
        if value < 999.5 or suffix == "P":
            break
        value /= 1000
    if value == 0:
        return "0"
    if not suffix and value == int(value) and value < 1000:
        return f"{sign}{int(value)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(value))) if value >= 1 else digits - 1
    return f"{sign}{value:.{min(decimals, digits)}f}{suffix}"


def size(value: float | None) -> str:
    """Bytes with a binary suffix: 512 B, 1.5 GiB."""
    if value is None or not math.isfinite(value):
        return "-"
    for suffix in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or suffix == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {suffix}" if suffix == "B" or value >= 100 else f"{value:.1f} {suffix}"


def seconds(value: float | None) -> str:
    """A duration of a step or phase: 850us, 12.3ms, 1.24s."""
    if value is None or not math.isfinite(value):
        return "-"
    for factor, suffix in ((1e6, "us"), (1e3, "ms")):
        if abs(value) * factor < 999.5:
            return f"{value * factor:.3g}{suffix}"
    return f"{value:.3g}s"


def age(value: float | None) -> str:
    """Elapsed time in at most six characters: 0s, 59s, 4m12, 3h05, 2d04h."""
    if value is None or not math.isfinite(value):
        return "-"
    total = max(0, int(value))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}"
    if total < 86400:
        return f"{total // 3600}h{total % 3600 // 60:02d}"
    return f"{total // 86400}d{total % 86400 // 3600:02d}h"


def percent(share: float | None, digits: int = 1) -> str:
    """A share 0..1 as a percentage without its sign: 0.031 -> 3.1."""
    if share is None or not math.isfinite(share):
        return "-"
    return f"{share * 100:.{digits}f}"
