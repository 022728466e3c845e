"""The GPUs of this host, once a second. Without a driver, a GPU or an answer it says so, why, and what to do."""

from __future__ import annotations

import platform
import threading
import time

import pynvml

from bsmon.model import GpuSample
from bsmon.sources.base import Ingest
from bsmon.sources.nvml_device import Device, NvmlGoneError, devices
from bsmon.sources.nvml_gpm import FIRST

INTERVAL = 1.0  # seconds between two polls
SECOND = 0.15  # seconds until the second one where GPM needs it, and wants at least 0.1 between them
RETRY = 10.0  # seconds until NVML is tried again after it failed
SILENT = 10.0  # seconds without an answer until that is said
JOIN = 2.0  # seconds that stopping waits for an answer; a hung driver keeps its daemon thread

CURES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver here (libnvidia-ml.so.1 was not found); "
    "in a container, start it with `--gpus all`",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded; try `sudo modprobe nvidia`, "
    "or reboot after a kernel update",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated while its old module is loaded; reboot",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not open /dev/nvidia*; ask for access to the devices",
    pynvml.NVML_ERROR_UNINITIALIZED: "the NVIDIA driver went away while it was read; it is tried again every 10 s",
}
NO_GPU = "the NVIDIA driver shows no GPU; look at CUDA_VISIBLE_DEVICES, the container's `--gpus`, and `nvidia-smi -L`"


def cure(code: int) -> str:
    return CURES.get(code, f"NVML failed ({pynvml.NVMLError(code)}); see what `nvidia-smi` says")


class Nvml:
    """The library, opened on first use and opened anew after it failed or showed nothing."""

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.closed: list[str] = []  # GPUs that are there and can't be opened, with the reason

    def sample(self) -> GpuSample:
        host, now = platform.node(), time.time()
        try:
            if not self.devices:
                pynvml.nvmlInit()
                self.devices, self.closed = devices()
            gpus = [device.read() for device in self.devices]
        except (pynvml.NVMLError, NvmlGoneError) as error:
            self.close()
            code = error.value if isinstance(error, pynvml.NVMLError) else error.args[0]
            return GpuSample(time=now, host=host, gpus=[], reason=cure(code))
        if gpus:
            return GpuSample(time=now, host=host, gpus=gpus)
        self.close()
        return GpuSample(time=now, host=host, gpus=[], reason="; ".join(self.closed) or NO_GPU)

    def close(self) -> None:
        self.devices = []
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass  # it was not open, or its driver is gone


def driver() -> str | None:
    """The driver's version, while NVML is open."""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


class NvmlSource:
    """Polls NVML in a thread of its own: a driver that hangs stops nobody else."""

    name = "nvml"

    def __init__(self, interval: float = INTERVAL) -> None:
        self.interval = interval
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml = Nvml()
        self._newest: GpuSample | None = None
        self._asked = 0.0

    @property
    def problem(self) -> str | None:
        silent = time.monotonic() - self._asked if self._asked else 0.0
        if silent > SILENT:
            return f"NVML has not answered for {silent:.0f} s; a GPU or its driver hangs (see `dmesg | grep -i xid`)"
        reason = self._newest.reason if self._newest else None
        return reason or "; ".join(self._nvml.closed) or None

    @property
    def looked_at(self) -> list[str]:
        if self._newest is None:
            return ["NVML: not asked yet"]
        count = len(self._newest.gpus)
        return [f"NVML: {self._newest.reason or f'{count} GPU' + 's' * (count != 1)}"]

    @property
    def settled(self) -> bool:
        return self._newest is not None and not _half_read(self._newest)

    def start(self, ingest: Ingest) -> None:
        self._thread = threading.Thread(target=self._run, args=(ingest,), name="bsmon-nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=JOIN)

    def _run(self, ingest: Ingest) -> None:
        while not self._stop.is_set():
            self._asked = time.monotonic()
            self._newest = self._nvml.sample()
            self._asked = 0.0
            ingest(self._newest)
            self._stop.wait(self._pause())
        self._nvml.close()

    def _pause(self) -> float:
        if not self._nvml.devices:
            return RETRY
        return SECOND if self._newest and _half_read(self._newest) else self.interval


def _half_read(sample: GpuSample) -> bool:
    """Whether a figure waits for the second sample."""
    return any(reason == FIRST for gpu in sample.gpus for reason in gpu.unavailable.values())
