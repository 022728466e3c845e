"""GPUs as NVML tells of them, a row each."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.draw.bars import meter
from bsmon.draw.cells import Row, clean, crop, fit
from bsmon.draw.header import heading
from bsmon.draw.look import Look
from bsmon.draw.trend import absent
from bsmon.model import Gpu, Job
from bsmon.units import percent

_GIB = 1024**3


def _figure(value: float | None, unit: str, scale: float = 1.0, digits: int = 0) -> str:
    return f"{value / scale:.{digits}f}{unit}" if value is not None else "n/a"


def _pair(used: float | None, total: float | None, unit: str, scale: float = 1.0) -> str:
    if used is None:
        return "n/a"
    return f"{used / scale:.0f}/{total / scale:.0f}{unit}" if total is not None else f"{used / scale:.0f}{unit}"


def _name(gpu: Gpu) -> str:
    return f"{gpu.index} " + clean(gpu.name or "GPU").removeprefix("NVIDIA ")


def gpu_row(gpu: Gpu, label: int, width: int, look: Look) -> Row:
    """Busy share as a meter, memory, power, temperature, clock, and why it is slowed down, if it is."""
    name = fit(_name(gpu), label, ellipsis=look.glyphs.ellipsis)
    throttle = " ".join(clean(reason) for reason in gpu.throttle or ())
    figures = (
        f" {percent(gpu.utilization, 0):>4}%"
        f" {_pair(gpu.memory_used, gpu.memory_total, 'G', _GIB):>9}"
        f" {_pair(gpu.power_w, gpu.power_limit_w, 'W'):>9}"
        f" {_figure(gpu.temperature_c, 'C'):>4}"
        f" {_figure(gpu.sm_clock_mhz, 'GHz', 1000, 2):>8}"
    )
    room = min(24, max(4, width - len(name) - len(figures) - len(throttle) - 4))
    return crop(
        [(f" {name} ", "dim"), *meter(gpu.utilization, room, look.glyphs), (figures, ""), (f"  {throttle}", "warn")],
        width,
    )


def _label(every: Sequence[Gpu], width: int) -> int:
    return min(max(len(_name(gpu)) for gpu in every), max(6, width // 5))


def gpus(job: Job, reason: str | None, width: int, height: int, look: Look, focused: bool = False) -> list[Row]:
    """The job's own GPUs, or why there are none to show."""
    rows = [heading("GPU", [], width, look, focused)]
    if not job.gpus:
        why = job.unavailable.get("gpus") or reason or "this job trains on no GPU that NVML knows"
        return [*rows, *absent(why, width, look)][:height]
    return [*rows, *(gpu_row(gpu, _label(job.gpus, width), width, look) for gpu in job.gpus)][:height]


def all_gpus(
    host: str, every: Sequence[Gpu], owners: dict[str, str], reason: str | None, width: int, look: Look
) -> list[Row]:
    """Every GPU of the host, two rows each: figures, then activity and whose it is."""
    if not every:
        return absent(reason or "NVML told of no GPU", width, look)
    rows: list[Row] = []
    for gpu in every:
        rows.append(gpu_row(gpu, _label(every, width), width, look))
        owner = owners.get(gpu.uuid, "no job of bsmon")
        activity = "  ".join(
            f"{name} {percent(share, 0)}%"
            for name, share in (("SM", gpu.sm_active), ("tensor", gpu.tensor_active), ("DRAM", gpu.dram_active))
            if share is not None
        )
        rows.append([(fit(f"   {clean(owner)}  {activity}", width, ellipsis=look.glyphs.ellipsis), "dim")])
    return rows
