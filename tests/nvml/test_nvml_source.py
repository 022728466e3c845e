"""The thread around NVML: it hands samples on, says when the driver hangs, and never holds up who stops it."""

from __future__ import annotations

import threading
import time

import pytest

from bsmon.model import Event, Gpu, GpuSample
from bsmon.sources import nvml
from bsmon.sources.nvml import Nvml, NvmlSource

GPU = Gpu(uuid="GPU-0", index=0, utilization=0.5)


def wait_for(condition: object, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_samples_arrive_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(self: Nvml) -> GpuSample:
        self.devices = [object()]  # type: ignore[list-item]
        return GpuSample(time=time.time(), host="here", gpus=[GPU])

    monkeypatch.setattr(Nvml, "sample", sample)
    source, events = NvmlSource(interval=0.01), list[Event]()
    assert not source.settled
    source.start(events.append)
    assert wait_for(lambda: len(events) >= 3) and source.settled and source.problem is None
    assert source.looked_at == ["NVML: 1 GPU"]
    source.stop()
    count = len(events)
    time.sleep(0.05)
    assert len(events) == count


def test_without_a_driver_it_tells_the_reason_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "RETRY", 0.01)
    monkeypatch.setattr(Nvml, "sample", lambda self: GpuSample(time=0.0, host="here", gpus=[], reason="no driver"))
    source, events = NvmlSource(), list[Event]()
    source.start(events.append)
    assert wait_for(lambda: len(events) >= 2) and source.problem == "no driver"
    source.stop()


def test_a_driver_that_hangs_is_said_and_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(nvml, "SILENT", 0.05)
    monkeypatch.setattr(nvml, "JOIN", 0.05)
    monkeypatch.setattr(Nvml, "sample", lambda self: release.wait(10) and None)
    source = NvmlSource()
    source.start(lambda event: None)
    assert wait_for(lambda: source.problem is not None) and "not answered" in str(source.problem)
    begun = time.monotonic()
    source.stop()
    assert time.monotonic() - begun < 1
    release.set()
