"""Verdicts over time: what is wrong is said within half a minute, a healthy run is left in peace."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from made_jobs import START, job, records, watch

from bsmon.diagnosis.engine import Engine
from bsmon.diagnosis.features import window_seconds
from bsmon.diagnosis.rules import RULES, judge
from bsmon.diagnosis.signals import SIGNALS, Features
from bsmon.diagnosis.verdict import regime
from bsmon.model import Gpu, MemoryView, Noise, Regime


def first(label: str, said: list[tuple[float, Regime]]) -> float:
    """Seconds from the start until a label was said."""
    return next((now - START for now, regime in said if regime.label == label), math.inf)


def test_a_healthy_run_is_quiet() -> None:
    said = list(watch([records(5000)]))
    assert {regime.label for _, regime in said} <= {None, "unknown"}
    last = said[-1][1]
    assert "nothing stands out" in (last.headline or "")
    assert last.missing
    assert (last.severity, last.time, last.memory, last.statistics, last.experts) == (None,) * 5


def test_a_restless_machine_is_no_drift() -> None:
    chance = random.Random(1)
    noise = [math.exp(chance.gauss(0, 0.25)) for _ in range(400)]  # a level for each 2 s, between 0.6 and 1.6

    def restless(step: int) -> dict[str, object]:
        span = 0.1 * noise[step // 20]
        return {"duration": span, "data_wait": 0.02 * span}

    assert {regime.time for _, regime in watch([records(5000, restless)])} == {None}


def test_too_few_steps_are_measured_on() -> None:
    _, regime = list(watch([records(15)]))[-1]
    assert regime.label is None
    assert "measuring" in (regime.headline or "")


def slow_loader(step: int) -> dict[str, object]:
    return {"duration": 0.2, "data_wait": 0.1} if 300 <= step < 700 else {}


def test_waiting_for_data_comes_and_goes() -> None:
    said = list(watch([records(1500, slow_loader)]))
    began, cured = 30.0, 30.0 + 80.0
    assert began < first("input_bound", said) < began + 30
    bound = [regime for now, regime in said if regime.label == "input_bound"]
    amid = bound[len(bound) // 2]
    assert amid.severity == "crit"
    assert "data wait 50% of the step" in amid.evidence
    assert amid.gain and "+100% throughput" in amid.gain
    assert amid.check and amid.advice
    assert bound[-1].since == pytest.approx(bound[0].since or 0)
    assert said[-1][1].label == "unknown"
    assert max(now - START for now, regime in said if regime.label == "input_bound") < cured + 40


def test_a_single_slow_window_is_no_verdict() -> None:
    said = list(watch([records(600, lambda step: {"duration": 0.5, "data_wait": 0.4} if 300 <= step < 304 else {})]))
    assert first("input_bound", said) == math.inf


def test_nan_is_said_at_once_and_stays_while_it_lasts() -> None:
    said = list(watch([records(400, lambda step: {"loss": math.nan} if step >= 200 else {})]))
    assert first("unstable", said) <= 22
    assert said[-1][1].label == "unstable"
    assert said[-1][1].severity == "crit"


def test_a_diverging_loss_is_unstable_and_a_loss_near_zero_is_not() -> None:
    said = list(watch([records(900, lambda step: {"loss": 2.0 + (step - 500) * 0.02} if step > 500 else {})]))
    assert first("unstable", said) < 80
    chance = random.Random(2)
    sinking = records(2000, lambda step: {"loss": abs(chance.gauss(0.0, 1.0)) * math.exp(-step / 300)})
    assert first("unstable", list(watch([sinking]))) == math.inf


def test_a_gradient_that_explodes_is_unstable() -> None:
    said = list(watch([records(700, lambda step: {"grad_norm": 30.0} if step > 400 else {})]))
    assert 40 < first("unstable", said) < 70


def test_drift_is_told_and_its_cause_is_not_made_up() -> None:
    said = list(watch([records(1000, lambda step: {"duration": 0.16} if step > 500 else {})], device="cuda"))
    last = said[-1][1]
    assert last.time == last.label == "unknown"
    assert last.headline and "1.60 times as long a step" in last.headline
    assert last.confidence is not None and last.confidence <= 0.5
    assert last.missing
    assert not any("collectives" in signal for signal in last.missing)  # there is but one rank


def test_more_work_a_step_is_no_drift() -> None:
    said = list(watch([records(1000, lambda step: {"duration": 0.2, "samples": 16} if step > 500 else {})]))
    assert {regime.time for _, regime in said} == {None}


def test_on_a_cpu_slower_without_more_work_is_contention() -> None:
    def crowded(step: int) -> dict[str, object]:
        return {"duration": 0.2 if step > 500 else 0.1, "cpu_time": 0.09}

    said = list(watch([records(1000, crowded)]))
    assert said[-1][1].headline is not None and "waits for a core" in said[-1][1].headline


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_a_symptom_is_told_once_whatever_comes_before_it(drop: float) -> None:
    slow = Features(steps=50, step_s=0.2, on_cpu=True, drift=1.0, drift_sigmas=9.0, cpu_drift=0.2)
    features = msgspec.structs.replace(slow, drop_rate=drop, drop_expected=0.0)
    findings = judge(RULES, features)
    assert {"drift", "contention"} <= {finding.rule.name for finding in findings}
    said = regime(findings, features)
    assert [line for line in said.evidence if "best window" in line] == [
        "step 2.00 times its best window's, the thread's CPU time 1.20 times"
    ]


def test_a_slow_rank_is_the_headline_and_named() -> None:
    late = records(600, lambda step: {"duration": 0.16, "backward": 0.06} if step > 200 else {})
    waits = [records(600, lambda step: {"duration": 0.16, "backward": 0.12} if step > 200 else {}) for _ in range(2)]
    said = list(watch([waits[0], late, waits[1]]))
    assert 25 < first("straggler", said) < 60
    assert any("rank 1 late by" in line for line in said[-1][1].evidence)
    assert not any("best window" in line for line in said[-1][1].evidence)  # a symptom of it


def test_a_leak_is_found_and_a_plateau_is_not() -> None:
    run = records(900)

    def leaking(now: float) -> object:
        return job(memory=MemoryView(process_rss=int(1e9 + (now - START) * 30e6)))

    said = list(watch([run], view=leaking))  # type: ignore[arg-type]
    assert first("memory_limited", said) < 75
    said = list(watch([run], view=lambda now: job(memory=MemoryView(process_rss=int(3e9)))))
    assert first("memory_limited", said) == math.inf


def test_heat_needs_no_second_window() -> None:
    hot = Gpu(uuid="a", index=0, utilization=1.0, throttle=["hw_thermal_slowdown"])
    cool = Gpu(uuid="a", index=0, utilization=1.0, throttle=[])
    said = list(watch([records(300)], view=lambda now: job(gpus=[hot if now > START + 20 else cool])))
    assert 20 <= first("throttled", said) <= 22


def test_two_faults_at_once_are_both_named() -> None:
    def both(step: int) -> dict[str, object]:
        wait = {"duration": 0.3, "data_wait": 0.1, "backward": 0.1}
        return wait if step > 100 else {}

    late = records(600, lambda step: both(step) | ({"backward": 0.02} if step > 100 else {}))
    said = list(watch([records(600, both), late, records(600, both)]))
    last = said[-1][1]
    assert last.time in ("input_bound", "straggler")
    assert any("data wait" in line for line in last.evidence)
    assert any("rank 1" in line for line in last.evidence)


def test_equal_causes_are_mixed_and_unequal_ones_are_not() -> None:
    for data_wait, label in ((0.30, "mixed"), (0.60, "input_bound")):
        features = Features(steps=50, data_wait=data_wait, bubble=0.28)
        said = regime(judge(RULES, features), features)
        assert (said.label, said.time) == (label, "input_bound")
        assert any("data wait" in line for line in said.evidence)
        assert any("bubble" in line for line in said.evidence)


def test_noise_is_a_note_and_yields_to_lost_time() -> None:
    noisy = Noise(state="number", phi=6.0, phi_low=5.0, phi_high=7.0)
    said = list(watch([records(600)], view=lambda now: job(noise=noisy)))
    assert (said[-1][1].label, said[-1][1].severity) == ("noise_limited", "note")
    said = list(watch([records(700, slow_loader)], view=lambda now: job(noise=noisy)))
    assert (said[-1][1].label, said[-1][1].statistics) == ("input_bound", "noise_limited")


def test_ranks_that_read_the_same_samples_are_told_so() -> None:
    same = Noise(state="number", phi=0.0, phi_low=0.0, phi_high=0.0)
    last = list(watch([records(600)], view=lambda now: job(noise=same)))[-1][1]
    assert last.headline is not None and "same samples" in last.headline
    assert last.label == last.statistics == "past_critical_batch"


def test_a_window_holds_twenty_steps_and_ten_seconds_past_the_warm_up() -> None:
    assert window_seconds(None) == window_seconds(0.01) == 10
    assert window_seconds(2.0) == 60


def test_no_news_no_change_and_forgetting() -> None:
    engine = Engine()
    features = Features(steps=50, last_step=50, window_s=10, data_wait=0.9)
    for second in range(30):
        said = engine.update("a", features, float(second))
    assert said.label == "unknown"  # one window, looked at thirty times
    engine.keep([])
    assert engine.update("a", Features(), 31.0).label is None


def test_every_row_of_the_table_is_whole() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert hasattr(Features(), rule.signal), rule.name
        assert rule.recovers is None or hasattr(Features(), rule.recovers), rule.name
        assert set(rule.deciding) <= set(SIGNALS), rule.name
        assert rule.leave <= rule.enter, rule.name
        assert rule.source and rule.advice and rule.check and rule.evidence, rule.name
        for _, fields in rule.templates:
            assert all(hasattr(Features(), field) for field in fields), rule.name
    assert all(hasattr(Features(), signal) for signal in SIGNALS)
