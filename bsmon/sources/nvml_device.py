"""One GPU through NVML: each figure is asked for on its own, and one that is not given is None with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from bsmon.model import Gpu
from bsmon.sources import nvml_gpm

Figures = dict[str, Any]  # field of Gpu -> its value

LOST = "the GPU fell off the bus; `dmesg | grep -i xid` says more; a reset or a reboot brings it back"
REASONS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "this GPU or its driver does not give it",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "this driver is too old to give it",
    pynvml.NVML_ERROR_NO_PERMISSION: "the driver lets only root read it",
    pynvml.NVML_ERROR_GPU_IS_LOST: LOST,
}
# Names as nvidia-smi has them (clocks_event_reasons.*). An idle GPU is not throttled.
THROTTLE = {
    pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting: "applications_clocks_setting",
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
    pynvml.nvmlClocksThrottleReasonDisplayClockSetting: "display_clock_setting",
}


class NvmlGoneError(Exception):
    """NVML as a whole stopped answering, not one figure of one GPU."""


GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)


def _memory(handle: Any) -> Figures:
    found = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used": int(found.used), "memory_total": int(found.total)}


def _throttle(handle: Any) -> Figures:
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:  # its name before driver 535
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle": [name for bit, name in THROTTLE.items() if bits & bit]}


QUERIES: dict[tuple[str, ...], Callable[[Any], Figures]] = {
    ("utilization",): lambda h: {"utilization": pynvml.nvmlDeviceGetUtilizationRates(h).gpu / 100},
    ("memory_used", "memory_total"): _memory,
    ("temperature_c",): lambda h: {
        "temperature_c": float(pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU))
    },
    ("power_w",): lambda h: {"power_w": pynvml.nvmlDeviceGetPowerUsage(h) / 1000},
    ("power_limit_w",): lambda h: {"power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000},
    ("sm_clock_mhz",): lambda h: {"sm_clock_mhz": float(pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM))},
    ("throttle",): _throttle,
    ("energy_j",): lambda h: {"energy_j": pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1000},
}
FIGURES = tuple(field for fields in QUERIES for field in fields) + tuple(nvml_gpm.METRICS)


def reason(error: Exception) -> str:
    """Why a query failed, for people; raises NvmlGoneError if all others would fail as well."""
    code = getattr(error, "value", None)
    if code in GONE:
        raise NvmlGoneError(code) from error
    return REASONS.get(code, f"NVML: {error}") if code is not None else f"NVML: {error}"


class Device:
    """A GPU, or a MIG instance of one (then ``parent`` is the whole GPU)."""

    def __init__(self, handle: Any, index: int, parent: Any = None) -> None:
        self.handle, self.index = handle, index
        self.uuid: str = pynvml.nvmlDeviceGetUUID(handle)
        self.name = _optional(pynvml.nvmlDeviceGetName, handle)
        self.gpm, self.no_gpm = _gpm(handle, parent)

    def read(self) -> Gpu:
        figures: Figures = {}
        why: dict[str, str] = {}
        for fields, query in QUERIES.items():
            try:
                figures.update(query(self.handle))
            except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
                why.update(dict.fromkeys(fields, reason(error)))
        units = self._units()
        figures.update((field, value) for field, value in units.items() if not isinstance(value, str))
        why.update((field, value) for field, value in units.items() if isinstance(value, str))
        return Gpu(uuid=self.uuid, index=self.index, name=self.name, unavailable=why, **figures)

    def _units(self) -> dict[str, float | str]:
        if self.gpm is None:
            return dict.fromkeys(nvml_gpm.METRICS, self.no_gpm)
        try:
            return self.gpm.read()
        except pynvml.NVMLError as error:
            return dict.fromkeys(nvml_gpm.METRICS, reason(error))


def _optional(query: Callable[[Any], str], handle: Any) -> str | None:
    try:
        return query(handle)
    except pynvml.NVMLError:
        return None


def _gpm(handle: Any, parent: Any) -> tuple[nvml_gpm.Gpm | None, str]:
    whole = handle if parent is None else parent
    try:
        if not nvml_gpm.supported(whole):
            return None, nvml_gpm.NOT_HERE
        instance = None if parent is None else pynvml.nvmlDeviceGetGpuInstanceId(handle)
        return nvml_gpm.Gpm(whole, instance), ""
    except pynvml.NVMLError as error:
        return None, reason(error)


def devices() -> tuple[list[Device], list[str]]:
    """All GPUs that the driver shows to this process, each followed by its MIG instances; and those it can't open."""
    found: list[Device] = []
    closed: list[str] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found.append(Device(handle, index))
            found.extend(Device(instance, index, parent=handle) for instance in _instances(handle))
        except pynvml.NVMLError as error:  # the others can still be read
            closed.append(f"GPU {index}: {reason(error)}")
    return found, closed


def _instances(handle: Any) -> Iterator[Any]:
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:
        return
    for place in range(count):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError_NotFound:
            continue  # places are not filled in order
