"""GPM: what the units of a GPU do (Hopper and newer), from two samples of hardware counters.

``utilization.gpu`` only says that some kernel ran; these tell how many SMs, tensor cores and DRAM cycles were busy.
NVML wants at least 100 ms between the two samples; ours are one poll apart. Under MIG, counters are read by instance.
"""

from __future__ import annotations

import math
from typing import Any

import pynvml

METRICS = {
    "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
NOT_HERE = "GPM, which tells it, needs a Hopper or newer GPU"
FIRST = "GPM needs two samples; the next poll has it"


class Gpm:
    """The two newest samples of one GPU, or of one MIG instance of it (``parent``, ``instance``)."""

    def __init__(self, handle: Any, instance: int | None = None) -> None:
        self.handle, self.instance = handle, instance
        self.older, self.newer = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self.samples = 0

    def read(self) -> dict[str, float | str]:
        """Shares 0..1 since the last call, or why there is none."""
        self.older, self.newer = self.newer, self.older
        if self.instance is None:
            pynvml.nvmlGpmSampleGet(self.handle, self.newer)
        else:
            pynvml.nvmlGpmMigSampleGet(self.handle, self.instance, self.newer)
        self.samples += 1
        return self._difference() if self.samples > 1 else dict.fromkeys(METRICS, FIRST)

    def _difference(self) -> dict[str, float | str]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
        request.sample1, request.sample2 = self.older, self.newer
        for place, number in enumerate(METRICS.values()):
            request.metrics[place].metricId = number
        pynvml.nvmlGpmMetricsGet(request)
        return {field: _share(request.metrics[place]) for place, field in enumerate(METRICS)}


def _share(metric: Any) -> float | str:
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        return f"GPM did not give it ({pynvml.NVMLError(metric.nvmlReturn)})"
    return metric.value / 100 if math.isfinite(metric.value) else "GPM gave no finite number"


def supported(handle: Any) -> bool:
    return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
