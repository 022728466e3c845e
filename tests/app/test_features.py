"""Signals from records: right numbers, unknown where nothing is known, and no crash on what is odd."""

from __future__ import annotations

import math

import pytest
from made_jobs import START, hello, job, records, window

from bsmon.diagnosis.features import features_of
from bsmon.model import Gpu, Mfu, Moe, MoeLayer, Noise, RankWindow, Record


def test_shares_of_a_healthy_run() -> None:
    run = records(200)
    features = features_of([window(run, run[-1].time)], job())
    assert features.step_s == pytest.approx(0.1, rel=0.02)
    assert features.data_wait == pytest.approx(0.02, rel=0.01)
    assert features.backward == pytest.approx(0.6, rel=0.01)
    assert features.step_cv == pytest.approx(0.01, rel=0.5)
    assert features.work == 8
    assert features.non_finite is False
    assert features.on_cpu


def test_nothing_is_known_of_nothing() -> None:
    for windows in ([], [RankWindow(hello=hello(), beat=None, records=[])]):
        features = features_of(windows, job())
        assert features.steps == 0
        assert (features.step_s, features.data_wait, features.loss, features.non_finite) == (None, None, None, None)


def test_the_warm_up_is_no_steady_step() -> None:
    run = records(12, lambda step: {"duration": 60.0} if step <= 10 else {})
    features = features_of([RankWindow(hello=hello(), beat=None, records=run)], job())
    assert features.steps == 2
    assert features.step_s == pytest.approx(0.1, rel=0.05)


def test_an_evaluation_is_no_data_wait_but_a_long_data_wait_is() -> None:
    def evaluates(step: int) -> dict[str, object]:
        return {"duration": 30.0} if step == 150 else {}

    def freezes(step: int) -> dict[str, object]:
        return {"duration": 1.7, "data_wait": 1.6} if step % 16 == 0 else {}

    calm = features_of([RankWindow(hello=hello(), beat=None, records=records(200, evaluates))], job())
    assert calm.data_wait == pytest.approx(0.02, rel=0.05)
    frozen = features_of([RankWindow(hello=hello(), beat=None, records=records(200, freezes))], job())
    assert frozen.data_wait == pytest.approx(0.5, abs=0.05)  # of the sums: a median would see nothing


def test_the_late_rank_is_found_by_its_time_before_the_collective() -> None:
    def late(step: int) -> dict[str, object]:
        return {"duration": 0.15, "backward": 0.06}

    def waiting(step: int) -> dict[str, object]:
        return {"duration": 0.15, "backward": 0.11}

    runs = [records(100, waiting), records(100, waiting), records(100, late), records(100, waiting)]
    windows = [RankWindow(hello=hello(rank, 4), beat=None, records=run) for rank, run in enumerate(runs)]
    features = features_of(windows, job(world_size=4))
    assert features.late_rank == 2
    assert features.lateness == pytest.approx(0.05 / 0.15, rel=0.02)


def test_nan_in_any_rank_is_seen_at_once_but_not_a_skipped_steps_gradient() -> None:
    good, bad = records(3), records(3, lambda step: {"loss": math.nan} if step == 3 else {})
    windows = [RankWindow(hello=hello(rank, 2), beat=None, records=run) for rank, run in enumerate((good, bad))]
    assert features_of(windows, job()).non_finite is True
    scaled = records(3, lambda step: {"grad_norm": math.inf, "skipped": True} if step == 3 else {})
    assert features_of([RankWindow(hello=hello(), beat=None, records=scaled)], job()).non_finite is False


def test_skipped_steps_count_only_at_the_end_and_past_the_start() -> None:
    run = records(60, lambda step: {"skipped": step <= 8 or step in (30, 31) or step > 54})
    assert features_of([RankWindow(hello=hello(), beat=None, records=run)], job()).skipped_streak == 6
    young = records(12, lambda step: {"skipped": True})
    assert features_of([RankWindow(hello=hello(), beat=None, records=young)], job()).skipped_streak == 0


def test_two_optimizers_losses_are_not_one_series() -> None:
    run = records(100, lambda step: {"optimizer": step % 2, "loss": 5.0 if step % 2 else 1.0})
    features = features_of([RankWindow(hello=hello(), beat=None, records=run)], job())
    assert features.loss == 1.0
    assert features.loss_noise == 0.0


def test_gpus_noise_and_flops_come_from_the_view() -> None:
    hot = Gpu(uuid="a", index=0, utilization=0.5, memory_used=90, memory_total=100, throttle=["hw_thermal_slowdown"])
    capped = Gpu(uuid="b", index=1, utilization=1.0, throttle=["sw_power_cap"], power_w=240, power_limit_w=400)
    noise = Noise(state="number", phi=6.0, phi_low=5.0, phi_high=7.0)
    features = features_of([], job(gpus=[hot, capped], noise=noise, mfu=Mfu(value=0.4, achievable=0.5)))
    assert features.gpu_busy == 0.75
    assert features.gpu_idle == 0.25
    assert features.hardware_throttle is True
    assert features.power_gap == pytest.approx(0.4)
    assert features.memory_used == 0.9
    assert (features.noise_low, features.noise_high, features.flops) == (5.0, 7.0, 0.5)
    unsure = features_of([], job(noise=Noise(state="measuring", phi=6.0, phi_low=5.0, phi_high=7.0)))
    assert unsure.noise_low is None


def layer(counts: list[int], top_k: int = 2, **fields: object) -> MoeLayer:
    return MoeLayer(
        name="layers.1", router="Gate", experts=len(counts), top_k=top_k, tokens_per_expert=counts, **fields
    )  # type: ignore[arg-type]


def test_experts() -> None:
    collapsed = features_of([], job(moe=Moe(layers=[layer([8000, 4000, 4000, 0])])))
    assert collapsed.hot_share == 1.0  # of 8000 tokens, each sent to two experts
    assert collapsed.hot_ratio == 2.0
    assert collapsed.hot_place == "layers.1 expert 0"
    assert collapsed.dead_experts == 1
    few = features_of([], job(moe=Moe(layers=[layer([8, 4, 4, 0])])))
    assert (few.dead_experts, few.hot_expert) == (0, 0)  # too few tokens to tell
    dropping = layer([900, 1100], dropped_rate=0.1, expected_drop=0.02)
    features = features_of([], job(moe=Moe(layers=[layer([1000, 1000], dropped_rate=0.0), dropping])))
    assert features.drop_excess == pytest.approx(0.06)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308])
def test_odd_numbers_never_crash(value: float) -> None:
    odd = Record(
        seq=50,
        step=50,
        time=START,
        duration=value,
        loss=value,
        grad_norm=value,
        data_wait=value,
        forward=value,
        backward=value,
        cpu_time=value,
    )
    run = [*records(40), odd, odd]
    features_of([RankWindow(hello=hello(rank, 2), beat=None, records=run) for rank in range(2)], job())
