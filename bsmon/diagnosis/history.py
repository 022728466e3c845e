"""What a job was like before: its best window, its usual gradient norm, the lowest loss, the highest clock."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from statistics import median

from msgspec.structs import replace

from bsmon.diagnosis.signals import Features

KEPT = 120  # windows
ENOUGH = 5  # windows before the present one is compared with them
SAME_WORK = 0.25  # tokens a step may differ by this much and still be compared
CREEP_STEPS = 50


class History:
    """A job's own references. ``relate`` adds to the signals what only a comparison with the past can tell."""

    def __init__(self) -> None:
        self._paces, self._cpu_paces = _Paces(), _Paces()
        self._losses: deque[float] = deque(maxlen=KEPT)
        self._norms: deque[float] = deque(maxlen=KEPT)
        self._memory: deque[tuple[int, float]] = deque(maxlen=KEPT)  # (step, bytes)
        self._clock: float | None = None
        self._work: float | None = None

    def relate(self, features: Features) -> Features:
        """The signals with drift, rise of the loss, norm ratio, clock loss and memory creep filled in."""
        drift, sigmas = self._paces.above(_pace(features, features.step_s))
        cpu_drift, _ = self._cpu_paces.above(_pace(features, features.cpu_time))
        rise, loss_sigmas = self._rise(features)
        return replace(
            features,
            drift=drift,
            drift_sigmas=sigmas,
            cpu_drift=cpu_drift,
            loss_low=min(self._losses, default=None),
            loss_rise=rise,
            loss_sigmas=loss_sigmas,
            norm_ratio=self._norm_ratio(features.grad_norm),
            clock_loss=self._clock_loss(features),
            memory_creep=self._creep(features),
        )

    def add(self, features: Features, slow: bool = False, unstable: bool = False) -> None:
        """Keep a closed window; a bad one is no reference. Another amount of work a step begins a new one."""
        if _changed(self._work, features.work):
            self._paces, self._cpu_paces = _Paces(), _Paces()
        self._work = features.work
        if not slow:
            self._paces.add(_pace(features, features.step_s))
            self._cpu_paces.add(_pace(features, features.cpu_time))
        if not unstable:
            _keep(self._losses, features.loss)
            _keep(self._norms, features.grad_norm)
        if features.memory_now is not None and features.last_step is not None:
            self._memory.append((features.last_step, features.memory_now))
        if features.sm_clock is not None:
            self._clock = max(self._clock or 0.0, features.sm_clock)

    def _rise(self, features: Features) -> tuple[float | None, float | None]:
        if features.loss is None or len(self._losses) < ENOUGH:
            return None, None
        low = min(self._losses)
        rise = max(0.0, features.loss - low)
        sigmas = rise / features.loss_noise if features.loss_noise else None
        return (rise / abs(low) if low else None), sigmas

    def _norm_ratio(self, norm: float | None) -> float | None:
        if norm is None or len(self._norms) < ENOUGH:
            return None
        usual = median(self._norms)
        return norm / usual if usual > 0 else None

    def _clock_loss(self, features: Features) -> float | None:
        """Only under load: an idle GPU clocks down because it may."""
        busy = features.gpu_busy is not None and features.gpu_busy >= 0.5
        if not busy or features.sm_clock is None or not self._clock:
            return None
        return max(0.0, 1 - features.sm_clock / self._clock)

    def _creep(self, features: Features) -> float | None:
        """Bytes above the lowest, over fifty steps or more in which nearly every window brought some."""
        step, memory = features.last_step, features.memory_now
        if memory is None or step is None or len(self._memory) < ENOUGH:
            return None
        start, low = min(self._memory, key=lambda point: point[1])
        later = [*(size for at, size in self._memory if at >= start), memory]
        grows = sum(after > before for before, after in pairwise(later))
        steady = step - start >= CREEP_STEPS and grows >= 0.8 * (len(later) - 1)
        return memory - low if steady else 0.0


def _pace(features: Features, span: float | None) -> float | None:
    """Seconds a unit of work: dynamic batches must not look like drift."""
    return span / (features.work or 1.0) if span else None


def _changed(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) > SAME_WORK * before


def _keep(series: deque[float], value: float | None) -> None:
    if value is not None and math.isfinite(value):
        series.append(value)


class _Paces:
    """Seconds a token, sample or step in past windows."""

    def __init__(self) -> None:
        self._past: deque[float] = deque(maxlen=KEPT)
        self._best = self._middle = self._spread = 0.0

    def add(self, pace: float | None) -> None:
        """Best is the lower decile: on a noisy machine the very best window is luck."""
        _keep(self._past, pace)
        if self._past:
            ordered = sorted(self._past)
            self._best, self._middle = ordered[len(ordered) // 10], ordered[len(ordered) // 2]
            self._spread = 1.4826 * median(abs(past - self._middle) for past in ordered)

    def above(self, pace: float | None) -> tuple[float | None, float | None]:
        """(pace over the best, less 1; above the middle in standard deviations of the past windows)."""
        if pace is None or len(self._past) < ENOUGH:
            return None, None
        spread = max(self._spread, 0.01 * self._best)
        return max(0.0, pace / self._best - 1), max(0.0, pace - self._middle) / spread
