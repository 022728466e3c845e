"""The signals that a diagnosis rests on, one flat struct: filled from a live job or from a written observation.

None means unknown, never zero. Shares are of the step time, 0..1, unless a name says otherwise; times are seconds,
sizes bytes. The derived signals below are what the rules read; they stay None as long as a part of them is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

LAUNCHES_S = 0.3  # more host time than this in a step is no launch overhead: 30,000 operations of 10 us
LINEAR = 1.2  # elasticity up to which a step still grows with the batch, not faster
LOSS_SIGMAS = 5.0  # a loss has risen when it left its own step-to-step noise by this much (proposed)
BURSTS_HIGH, BURSTS_LOW, BURSTS_RARE = 0.90, 0.05, 0.10  # GPU utilization that tells stalls from steady low load
UNNAMED_FLOPS = 4 / 3  # a rate whose convention isn't named may count a full recompute: 8N instead of 6N a token


class Features(Struct, frozen=True, kw_only=True):
    """What is known of one job at one moment."""

    # how much was looked at
    steps: int = 0
    last_step: int | None = None
    window_s: float = 0.0
    world_size: int | None = None
    on_cpu: bool | None = None

    # where the time goes
    step_s: float | None = None
    step_cv: float | None = None
    work: float | None = None  # tokens (else samples) in a step of this process
    data_wait: float | None = None
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    communication: float | None = None  # exposed, of the rank that waits least
    cpu_time: float | None = None  # of the training thread
    drift: float | None = None  # step time over the best window's, less 1
    drift_sigmas: float | None = None  # the same in units of the job's own noise between windows
    cpu_drift: float | None = None  # of the thread's CPU time a step
    lateness: float | None = None  # one rank behind the others before the collective
    late_rank: int | None = None

    # what other configurations, or a report, say about the time
    stall_period: float | None = None  # steps between two freezes
    workers: float | None = None  # of the data loader
    starved_host: bool | None = None  # a disk, core or worker count that is known to be small
    launch: float | None = None
    bubble: float | None = None  # of a pipeline
    elasticity: float | None = None  # d ln(step time) / d ln(batch)
    gpu_over_cpu: float | None = None  # the same work: time on the GPU over time on the CPU, less 1
    scaling_loss: float | None = None  # rate a GPU lost against one node or one GPU
    optimizer_excess: float | None = None  # optimizer phase over what its memory traffic needs
    gc_share: float | None = None
    gc_explains: float | None = None  # of the slowdown against the job's own baseline

    # the GPU
    gpu_busy: float | None = None  # of the time
    gpu_busy_low: float | None = None
    gpu_busy_high: float | None = None
    gpu_idle: float | None = None
    hardware_throttle: bool | None = None
    sm_clock: float | None = None  # MHz, of the slowest GPU
    clock_loss: float | None = None  # SM clock below the job's own reference, or the GPU's maximum
    power_gap: float | None = None  # draw below the limit while the software power cap is on
    limit_cut: float | None = None  # power limit below the default
    power_below_peers: float | None = None  # while the peers draw their limit
    heat: float | None = None  # degrees above the temperature at which this GPU slows down
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    flops: float | None = None  # of the achievable peak
    flops_nominal: float | None = None  # of the nominal peak, recomputation included where it is known

    # memory
    memory_used: float | None = None  # of the device
    memory_free: float | None = None
    memory_now: float | None = None  # allocated on the device, or the process's resident memory
    reserved_ratio: float | None = None
    memory_creep: float | None = None
    allocator: float | None = None  # CPU time spent in cudaMalloc and cudaFree

    # statistics
    loss: float | None = None
    loss_noise: float | None = None  # from one step to the next
    loss_low: float | None = None  # the recent minimum
    loss_rise: float | None = None  # above it, as a share of it
    loss_sigmas: float | None = None
    loss_trend_up: bool | None = None  # said in words
    non_finite: bool | None = None
    grad_norm: float | None = None
    norm_ratio: float | None = None  # to the job's own median
    skipped_streak: float | None = None
    noise_low: float | None = None  # lower end of B_noise / B
    noise_high: float | None = None
    reference_batch: float | None = None  # the batch known to work, over this one
    critical_excess: float | None = None  # this batch over the known critical batch

    # experts
    drop_rate: float | None = None
    drop_expected: float | None = None  # with balanced routing at this capacity
    drop_layer: str | None = None
    roomier_factor: float | None = None  # the least capacity factor of the usual ones that would do for that layer
    roomier_drop: float | None = None  # and what it would drop
    hot_share: float | None = None  # tokens that go to the busiest expert
    hot_ratio: float | None = None  # its load over the mean
    hot_place: str | None = None
    dead_experts: float | None = None
    dead_place: str | None = None
    dispatch_slowdown: float | None = None  # of the all-to-all, against balanced routing

    @property
    def input_stalls(self) -> float | None:
        """Share of the time in which the GPU stands still between bursts at full load: something arrives late."""
        if self.gpu_busy_high is None or _under(self.data_wait, 0.05):
            return None
        bursts = self.gpu_busy_high >= BURSTS_HIGH
        if self.gpu_busy is not None:
            rare = self.gpu_busy <= (0.3 if self.starved_host else BURSTS_RARE)
            return 1 - self.gpu_busy if bursts and rare else 0.0
        if self.gpu_busy_low is None or not self.starved_host:
            return None
        return 0.5 if bursts and self.gpu_busy_low <= BURSTS_LOW else 0.0

    @property
    def worker_stalls(self) -> float | None:
        """1 when the run freezes once in as many steps as the loader has workers: they can't refill in time."""
        if self.stall_period is None or self.workers is None:
            return None
        return float(self.workers >= 2 and self.stall_period == self.workers)

    @property
    def idle_unexplained(self) -> float | None:
        """GPU idle time that neither data nor collectives explain. Long stalls between bursts are something else."""
        idle = self.gpu_idle
        if idle is None or self.data_wait is None or (self.gpu_busy_high or 0.0) >= BURSTS_HIGH:
            return None
        if self.communication is None and (self.world_size or 1) > 1:
            return None
        return idle - self.data_wait - (self.communication or 0.0)

    @property
    def idle_launching(self) -> float | None:
        """``idle_unexplained`` where it is short enough for launches, synchronisation and Python to be the cause."""
        return self._short(self.idle_unexplained)

    @property
    def batch_free(self) -> float | None:
        """Share of the step time that does not grow with the batch, where launches can be its cause."""
        return None if self.elasticity is None else self._short(1 - self.elasticity)

    def _short(self, share: float | None) -> float | None:
        if share is None or self.step_s is None:
            return None
        return _where(share, share * self.step_s <= LAUNCHES_S)

    @property
    def batch_linear(self) -> float | None:
        """Elasticity, as a sign of a busy GPU: only where nothing says that it waits.

        Much over 1, the larger batch hits something else: other kernels, or memory that spills.
        """
        waits = _over(self.data_wait, 0.05) or _under(self.gpu_busy, 0.7) or _over(self.gpu_idle, 0.15)
        return None if self.elasticity is None or waits or self.elasticity > LINEAR else self.elasticity

    @property
    def scaling(self) -> float | None:
        """``scaling_loss`` where data, an idle GPU or a pipeline bubble don't explain it."""
        waits = _over(self.data_wait, 0.05) or _under(self.gpu_busy, 0.7) or _over(self.bubble, 0.15)
        return None if waits else self.scaling_loss

    @property
    def gc_late(self) -> float | None:
        """Share of the step lost to garbage collection, where that is half of a slowdown or more."""
        return self.gc_share if _over(self.gc_explains, 0.5) and _over(self.drift, 0.05) else None

    @property
    def slower(self) -> float | None:
        """Drift that is no noise: 4 standard deviations, and on a CPU the thread must have worked longer, too."""
        real = _where(self.drift, _over(self.drift_sigmas, 4))
        return min(real, self.cpu_drift) if real and self.on_cpu and self.cpu_drift is not None else real

    @property
    def step_ratio(self) -> float | None:
        """Step time over the best window's."""
        return None if self.drift is None else 1 + self.drift

    @property
    def cpu_ratio(self) -> float | None:
        """The training thread's CPU time a step over the best window's."""
        return None if self.cpu_drift is None else 1 + self.cpu_drift

    @property
    def slower_share(self) -> float | None:
        """Share of the step to win if the job ran as in its best window."""
        return None if self.drift is None else self.drift / (1 + self.drift)

    @property
    def contention(self) -> float | None:
        """On a CPU: slower by the clock on the wall, though the training thread does no more work than before."""
        if not self.on_cpu or self.drift is None or self.cpu_drift is None or _over(self.data_wait, 0.2):
            return None
        return _where(self.drift - max(0.0, self.cpu_drift), _over(self.drift_sigmas, 4))

    @property
    def dram_bound(self) -> float | None:
        """DRAM activity while the tensor cores rest (KempnerPulse: < 15%)."""
        return _where(self.dram_active, _under(self.tensor_active, 0.15))

    @property
    def tensor_busy(self) -> float | None:
        """Tensor activity while the SMs are busy (KempnerPulse: >= 60%)."""
        return _where(self.tensor_active, _over(self.sm_active, 0.6))

    @property
    def memory_full(self) -> float | None:
        """Share of the device's memory in use, where no idle GPU asks for another cause."""
        if _under(self.gpu_busy, 0.7) or _over(self.gpu_idle, 0.3):
            return None
        return self.memory_used

    @property
    def memory_gone(self) -> float | None:
        """1 when less than 0.25 GiB is free: 3% of the smallest device that trains today (8 GB)."""
        return None if self.memory_free is None else float(self.memory_free < 2**28)

    @property
    def fragmented(self) -> float | None:
        """Reserved over allocated memory, where little room is left to reserve."""
        return _where(self.reserved_ratio, _over(self.memory_used, 0.8))

    @property
    def loss_jump(self) -> float | None:
        """``loss_rise`` where it is far outside the loss's own noise; if that is not known, a doubling at least."""
        far = _over(self.loss_rise, 1.0) if self.loss_sigmas is None else self.loss_sigmas >= LOSS_SIGMAS
        return _where(self.loss_rise, far)

    @property
    def noise_spent(self) -> float | None:
        """This batch over the noise scale, at least (1 / upper end of B_noise / B)."""
        return None if self.noise_high is None else 1 / max(self.noise_high, 1e-9)

    @property
    def drop_excess(self) -> float | None:
        """Dropped rate over twice the balanced expectation, which sampling alone may reach."""
        return None if self.drop_rate is None else self.drop_rate - 2 * (self.drop_expected or 0.0)

    @property
    def hot_expert(self) -> float | None:
        """Load of the busiest expert over the mean, where it takes more than half of the tokens."""
        return _where(self.hot_ratio, _over(self.hot_share, 0.5))


def _where(value: float | None, condition: bool) -> float | None:
    """The value where the condition holds, else 0: known, and nothing to see."""
    return value if value is None or condition else 0.0


def _over(value: float | None, limit: float) -> bool:
    return value is not None and value >= limit


def _under(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


SIGNALS: dict[str, str] = {
    "data_wait": "how long a step waits for data",
    "step_s": "the step time",
    "gpu_busy": "GPU utilization",
    "gpu_idle": "the share of time in which the GPU idles, or whether the CPU keeps ahead of it (CPU lead)",
    "communication": "exposed time in collectives",
    "lateness": "each rank's time before the collective",
    "scaling_loss": "the rate a GPU on one GPU or one node",
    "elasticity": "the step time at another batch size",
    "flops": "MFU: model FLOPs against this GPU's achievable peak",
    "tensor_active": "tensor, SM and DRAM activity (GPM)",
    "clock_loss": "the SM clock, power and throttle reasons (NVML)",
    "memory_used": "memory in use and in total",
    "loss": "the loss",
    "grad_norm": "the gradient norm",
    "noise_low": "the gradient noise scale",
    "drop_rate": "the dropped tokens",
    "hot_ratio": "the tokens per expert",
    "cpu_time": "the training thread's own CPU time",
    "drift": "the job's own earlier step time",
    "gc_explains": "the pauses against step time",
}
OF_A_GPU = frozenset(("gpu_busy", "gpu_idle", "flops", "tensor_active", "clock_loss"))
OF_SEVERAL_RANKS = frozenset(("communication", "lateness"))
OF_A_CPU = frozenset(("cpu_time",))


def unknown(features: Features, names: Iterable[str]) -> list[str]:
    """Those of these signals that are not known, and could be where this job runs."""
    beside = OF_A_GPU if features.on_cpu else OF_A_CPU
    if (features.world_size or 1) == 1:
        beside = beside | OF_SEVERAL_RANKS
    return [SIGNALS[name] for name in names if name not in beside and getattr(features, name) is None]
