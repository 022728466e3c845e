"""Numbers for narrow places."""

from __future__ import annotations

import math

from bsmon.units import si


def compact(value: float | None, digits: int = 3) -> str:
    """Any number in at most seven cells: 2.32, 93.8k, 0.0123, 3e-04, 1e+18."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if size and (size < (1e-2 if value < 0 else 1e-3) or size >= 9.995e14):
        return f"{value:.0e}"
    if size >= 1000:
        return si(value, digits)
    return f"{value:.{digits}g}" if size < 1 else f"{value:.{max(0, digits - 1 - int(math.log10(size)))}f}"


def exact(value: float | None) -> str:
    """A count with its thousands apart: 48,210."""
    return "-" if value is None or not math.isfinite(value) else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A learning rate or the like: 3e-4 rather than 0.0003."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def span(seconds: float) -> str:
    """A round length of time: 30s, 10m, 1h, 1d."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.3g}s"


def multiple(value: float | None) -> str:
    """A ratio: 0.8x, 2.2x, 140x."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < 9.95:
        return f"{value:.1f}x" if abs(value) >= 0.095 or value == 0 else f"{value:.0e}x"
    return f"{compact(value, 2)}x" if abs(value) >= 999.5 else f"{value:.0f}x"
