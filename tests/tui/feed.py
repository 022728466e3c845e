"""A monitor of made-up jobs, one in each state and situation, on a clock that stands where it is put."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from bsmon.model import (
    Alert,
    Batch,
    Gpu,
    Job,
    MemoryView,
    ModelView,
    Moe,
    MoeLayer,
    Noise,
    Overhead,
    Phases,
    RankView,
    Regime,
    Snapshot,
    StepTime,
)

START = 1_764_500_000.0


class Point(NamedTuple):
    low: float
    high: float
    mean: float


def layer(number: int, experts: int = 16, hot: int | None = None, dead: tuple[int, ...] = ()) -> MoeLayer:
    counts = [0 if e in dead else 900 + 60 * ((e * 7 + number * 3) % 5) for e in range(experts)]
    if hot is not None:
        counts[hot] = 3400
    mean = sum(counts) / experts
    return MoeLayer(
        name=f"model.layers.{number}.mlp.gate",
        router="top2",
        experts=experts,
        top_k=2,
        capacity_factor=1.25,
        tag="exact",
        assignments=sum(counts),
        tokens_per_expert=counts,
        dropped_rate=0.03 + 0.001 * number,
        expected_drop=0.004,
        load_cv=math.sqrt(sum((c - mean) ** 2 for c in counts) / experts) / mean,
        max_over_mean=max(counts) / mean,
        dead_experts=list(dead),
        sampled_steps=50,
    )


def gpu(index: int, busy: float = 0.97) -> Gpu:
    return Gpu(
        uuid=f"GPU-{index}",
        index=index,
        name="NVIDIA H200",
        utilization=busy,
        memory_used=71 * 2**30,
        memory_total=141 * 2**30,
        temperature_c=64.0,
        power_w=612.0,
        power_limit_w=700.0,
        sm_clock_mhz=1980.0,
        throttle=[],
    )


def job(name: str, **changes: object) -> Job:
    base: dict[str, object] = {
        "id": f"id-{name}",
        "name": name,
        "state": "live",
        "source": "live",
        "host": "node1",
        "ranks": [RankView(0, 4711, "node1", "cuda:0", "live", 0.2)],
        "started": START - 3600,
        "step": 48_210,
        "loss": 2.317,
        "grad_norm": 0.83,
        "learning_rate": 3e-4,
        "optimizer": "AdamW",
        "step_time_s": StepTime(0.470, 0.512),
        "tokens_per_s": 139_000.0,
        "token_source": "input_ids",
        "phases_s": Phases(0.012, 0.14, 0.25, 0.03, None, 0.038),
        "batch": Batch(8, 4, 2, 64, 65_536, 1024),
        "model": ModelView("GPT", 1_560_000_000, 1_560_000_000, 1_560_000_000),
        "noise": Noise(
            state="number",
            phi=1.1,
            phi_low=0.9,
            phi_high=1.4,
            b_noise_sequences=70.0,
            verdict="efficient",
            steps_measured=400,
        ),
        "memory": MemoryView(allocated=60 * 2**30, peak=71 * 2**30, device_total=141 * 2**30),
        "overhead": Overhead(21.0, 0.0004, 4700.0),
        "regime": Regime(label="compute_bound", evidence=["the GPU never waits"], since=START - 3000),
        "age_s": 0.3,
    }
    return Job(**{**base, **changes})  # type: ignore[arg-type]


def fleet() -> list[Job]:
    moe = Moe([layer(n, hot=5 if n == 2 else None, dead=(3, 11) if n == 3 else ()) for n in range(6)], 0.031, 0.41, 3.2)
    waiting = Regime(
        label="input_bound",
        severity="crit",
        evidence=["data wait is 44% of a step (3% before 13:59)", "the GPU is idle 410 ms a step"],
        advice=["use more DataLoader workers"],
        gain="up to +71% tokens/s",
        check="replay one cached batch: the step should fall to 270 ms",
        missing=["NVML: whether the GPU is throttled"],
        since=START - 190,
    )
    return [
        job("gpt2-xl-ref", regime=Regime(label="overhead_bound", severity="warn", evidence=["many small kernels"])),
        job(
            "moe-30b-sw3",
            host="node2",
            world_size=8,
            regime=waiting,
            moe=moe,
            phases_s=Phases(0.41, 0.14, 0.25, 0.03, 0.06, 0.04),
            gpus=[gpu(n, 0.58) for n in range(2)],
        ),
        job("moe-7b-a1b", moe=moe, noise=Noise(state="measuring", steps_measured=12, steps_to_quarter=180)),
        job(
            "vit-l-ema",
            regime=Regime(label="noise_limited", severity="note"),
            noise=Noise(state="lower_bound", phi=11.0),
        ),
        job("llama3-8b-ft", gpus=[gpu(0, 0.98)]),
        job("slow-eval", state="stale", age_s=95.0),
        job("t5-base-ctl", state="lost", host="node2", age_s=252.0),
        job("moe-dbg-top1", state="finished", exit_code=0, age_s=720.0),
    ]


def drop_alert() -> Alert:
    return Alert(
        id="a1",
        job="id-moe-7b-a1b",
        rule="drop_rate",
        severity="warn",
        where="layers.2",
        value=0.031,
        limit=0.02,
        since=START - 70,
        state="raised",
        message="3.1% of the assignments are dropped (limit 2%)",
    )


@dataclass
class Feed:
    """Stands in for ``services.monitor.Monitor``."""

    jobs: list[Job]
    alerts: list[Alert]
    time: float = START
    revision: int = 0
    ticks: int = 0
    gap: tuple[float, float] | None = None
    settled: bool = True
    title: str = "LIVE"
    held: bool = False
    sought: float | None = None

    def hold(self) -> bool:
        self.held = not self.held
        return self.title != "LIVE"

    def seek(self, moment: float) -> bool:
        self.sought = moment
        return self.title != "LIVE"

    def record(self) -> str:
        return "recording into [a] file"

    def tick(self) -> None:
        self.ticks += 1

    def advance(self, seconds: float = 1.0) -> None:
        self.time += seconds
        self.revision += 1

    def snapshot(self) -> Snapshot:
        gpus = [gpu(0), gpu(1)]
        unavailable = (
            {}
            if any(job.gpus for job in self.jobs)
            else {"gpus": "no NVIDIA driver: libnvidia-ml.so.1 is not installed"}
        )
        return Snapshot(
            self.time, "node1", jobs=list(self.jobs), gpus=gpus, alerts=list(self.alerts), unavailable=unavailable
        )

    def series(self, job_id: str, metric: str, start: float, end: float, buckets: int) -> list[Point | None]:
        width = (end - start) / buckets
        return [self._at(metric, start + (index + 0.5) * width) for index in range(buckets)]

    def _at(self, metric: str, when: float) -> Point | None:
        if self.gap and self.gap[0] <= when < self.gap[1]:
            return None
        wave = math.sin(when / 40) + 0.3 * math.sin(when / 7)
        late = when > START - 190
        mean = {
            "tokens_per_s": (139e3 if late else 242e3) + 6e3 * wave,
            "loss": 2.3 + 0.02 * wave - (when - START) * 1e-4,
            "grad_norm": 0.83 + 0.1 * wave,
            "phi": 1.1 + 0.2 * wave,
            "drop_rate": 0.031 + 0.006 * wave if late else 0.006,
        }.get(metric)
        return None if mean is None else Point(mean * 0.99, mean * 1.01, mean)

    def acknowledge(self, alert_id: str) -> None:
        for alert in self.alerts:
            if alert.id == alert_id:
                alert.state = "acknowledged"
        self.revision += 1

    def looked_at(self) -> list[str]:
        return ["/run/user/1000/bsmon: empty", "/tmp/bsmon-1000: not there"]


def busy() -> Feed:
    return Feed(fleet(), [drop_alert()])


def empty() -> Feed:
    return Feed([], [])
