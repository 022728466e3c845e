"""Alerts rise, stand, are acknowledged and clear; the log outlives the monitor."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from made_jobs import START, job

from bsmon.diagnosis.alerts import AlertEngine
from bsmon.model import Alert, Job, Moe, MoeLayer, Regime, StepTime
from bsmon.services.alert_log import AlertLog


def moe_job(rate: float, step: int, expected: float = 0.001, **fields: object) -> Job:
    layers = [
        MoeLayer(name="layers.0", router="Gate", dropped_rate=0.0, expected_drop=expected),
        MoeLayer(
            name="layers.1",
            router="Gate",
            dropped_rate=2 * rate,
            expected_drop=expected,
            tokens_per_expert=[100, 700, 100, 100],
        ),
    ]
    return job(step=step, loss=2.0, moe=Moe(layers=layers, dropped_rate=rate), **fields)


def play(engine: AlertEngine, seconds: range, view: Callable[[int], Job | None]) -> list[list[Alert]]:
    """The alert list of each second."""
    played = []
    for second in seconds:
        seen = view(second)
        played.append(engine.update(START + second, [seen] if seen else []))
    return played


def spike(second: int) -> Job:
    return moe_job(0.05 if 100 <= second < 200 else 0.002, second)


def test_a_drop_spike_is_raised_in_its_place_and_clears() -> None:
    played = play(AlertEngine(), range(300), spike)
    assert played[109] == []  # not yet ten seconds
    raised = played[111]
    assert {(alert.where, alert.state, alert.rule) for alert in raised} == {
        ("all layers", "raised", "drop_rate"),
        ("layers.1", "raised", "drop_rate"),
    }
    layer = next(alert for alert in raised if alert.where == "layers.1")
    assert (layer.value, layer.limit) == (pytest.approx(0.1), pytest.approx(0.012))
    assert "layers.1 (busiest: expert 1, 70% of its load)" in layer.message
    assert layer.since == START + 100
    assert all(alert.state == "raised" for alert in played[228])
    assert all(alert.state == "cleared" for alert in played[231])
    assert len({alert.id for each in played for alert in each}) == 2


def test_just_below_the_limit_does_not_clear() -> None:
    def lingers(second: int) -> Job:
        return moe_job(0.05 if 100 <= second < 200 else 0.011 if second >= 200 else 0.002, second)

    last = play(AlertEngine(), range(400), lingers)[-1]
    assert [alert.state for alert in last if alert.where == "all layers"] == ["raised"]


def test_a_run_that_always_drops_much_does_not_alert() -> None:
    assert play(AlertEngine(), range(400), lambda second: moe_job(0.2, second))[-1] == []


def test_what_balanced_routing_drops_is_no_alert() -> None:
    def grows(second: int) -> Job:
        return moe_job(0.01 if second < 100 else 0.14, second, expected=0.14)

    assert play(AlertEngine(), range(200), grows)[-1] == []


def test_a_spike_stands_as_long_as_it_lasts() -> None:
    lasting = play(AlertEngine(), range(2000), lambda second: moe_job(0.05 if second >= 100 else 0.002, second))
    assert {alert.state for alert in lasting[-1]} == {"raised"}


def test_acknowledged_stays_listed_and_clears() -> None:
    engine = AlertEngine()
    raised = play(engine, range(150), spike)[-1]
    assert engine.acknowledge(raised[0].id)
    assert not engine.acknowledge(raised[0].id)
    assert not engine.acknowledge("no such alert")
    assert [alert.state for alert in engine.alerts()] == ["raised", "acknowledged"]
    assert {alert.state for alert in play(engine, range(150, 300), spike)[-1]} == {"cleared"}


def test_nan_is_raised_at_once() -> None:
    played = play(AlertEngine(), range(10), lambda second: job(step=second, loss=math.nan if second >= 5 else 2.0))
    assert played[4] == []
    assert [(alert.rule, alert.severity) for alert in played[5]] == [("nan_loss", "crit")]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"state": "finished", "exit_code": 1}, "failed"),
        ({"state": "finished", "exit_code": -9}, "failed"),
        ({"state": "lost"}, "lost"),
        ({"state": "finished", "exit_code": 0}, None),
        ({"state": "finished", "exit_code": 130}, None),
        ({"state": "finished", "exit_code": None}, None),
    ],
)
def test_how_a_run_ended(fields: dict[str, object], rule: str | None) -> None:
    alerts = AlertEngine().update(START, [job(step=7, age_s=40.0, **fields)])
    assert [alert.rule for alert in alerts] == ([rule] if rule else [])
    assert all(alert.since == START - 40 for alert in alerts)


@pytest.mark.parametrize(("step", "when"), [(7, "at step 7"), (None, "before any step")])
def test_a_failure_says_how_far_the_run_came(step: int | None, when: str) -> None:
    (alert,) = AlertEngine().update(START, [job(state="finished", exit_code=1, step=step)])
    assert alert.message == f"ended with exit code 1 {when}"


def test_a_stall_is_ten_long_steps_or_a_minute() -> None:
    def stalls(second: int, step_s: float) -> Job:
        stale = second > 10
        return job(state="stale" if stale else "live", step=3, age_s=float(second), step_time_s=StepTime(step_s))

    quick = play(AlertEngine(), range(100), lambda second: stalls(second, 0.1))
    assert quick[60] == []
    assert [alert.rule for alert in quick[61]] == ["stall"]
    assert play(AlertEngine(), range(100), lambda second: stalls(second, 20.0))[-1] == []


def test_throughput_is_compared_with_the_runs_own_noise() -> None:
    def falls(second: int) -> Job:
        blame = Regime(label="input_bound", time="input_bound")
        return job(step=second, tokens_per_s=1000.0 if second < 100 else 500.0, regime=blame)

    alert = play(AlertEngine(), range(200), falls)[-1][0]
    assert (alert.rule, alert.value) == ("throughput", 0.5)
    assert "(input-bound)" in alert.message
    restless = play(
        AlertEngine(), range(600), lambda second: job(step=second, tokens_per_s=1000.0 * (0.6 + second // 15 % 5 * 0.2))
    )
    assert restless[-1] == []


def test_only_verdicts_worth_waking_for_are_alerts() -> None:
    def verdict(label: str) -> list[Alert]:
        regime = Regime(label=label, severity="crit", headline="something")
        return play(AlertEngine(), range(20), lambda second: job(step=second, regime=regime))[-1]

    assert [alert.rule for alert in verdict("moe_imbalance")] == ["verdict"]
    assert verdict("input_bound") == []


def test_a_job_that_is_gone_or_over_has_no_standing_alert() -> None:
    engine = AlertEngine()
    play(engine, range(150), spike)
    over = engine.update(START + 150, [job(state="finished", exit_code=0, step=150)])
    assert {alert.state for alert in over} == {"cleared"}
    engine = AlertEngine()
    play(engine, range(150), spike)
    assert {alert.state for alert in engine.update(START + 150, [])} == {"cleared"}


def test_one_rule_does_not_flood() -> None:
    def wide(second: int) -> Job:
        rate = 0.5 if second > 50 else 0.001
        layers = [MoeLayer(name=f"layers.{index}", router="Gate", dropped_rate=rate) for index in range(60)]
        return job(step=second, moe=Moe(layers=layers, dropped_rate=rate))

    assert len(play(AlertEngine(), range(100), wide)[-1]) == 8


def lines(log: AlertLog) -> list[tuple[str, str]]:
    return [(entry.state, entry.where) for entry in log.entries()]


def keep(log: AlertLog, seconds: range, engine: AlertEngine) -> None:
    for offset, alerts in zip(seconds, play(engine, seconds, spike), strict=True):
        log.note(START + offset, alerts, {"made": "my run"})


def test_the_log_survives_a_restart_and_a_replay(tmp_path: Path) -> None:
    engine = AlertEngine()
    keep(AlertLog(tmp_path), range(150), engine)
    assert sorted(lines(AlertLog(tmp_path))) == [("raised", "all layers"), ("raised", "layers.1")]
    keep(AlertLog(tmp_path), range(300), AlertEngine())  # a new monitor, given the history again
    assert sorted(lines(AlertLog(tmp_path))) == [
        ("cleared", "all layers"),
        ("cleared", "layers.1"),
        ("raised", "all layers"),
        ("raised", "layers.1"),
    ]
    keep(AlertLog(tmp_path), range(300), AlertEngine())
    assert len(AlertLog(tmp_path).entries()) == 4
    entry = json.loads((tmp_path / "alerts.jsonl").read_text().splitlines()[0])
    assert (entry["job"], entry["name"], entry["rule"], entry["time"]) == ("made", "my run", "drop_rate", START + 110)
    assert AlertLog(tmp_path).entries(since=START + 200)[0].state == "cleared"


def test_two_monitors_share_one_log(tmp_path: Path) -> None:
    logs, engines = [AlertLog(tmp_path), AlertLog(tmp_path)], [AlertEngine(), AlertEngine()]
    for second in range(300):
        for log, engine in zip(logs, engines, strict=True):
            log.note(START + second, engine.update(START + second, [spike(second)]))
    assert len(logs[0].entries()) == 4


def test_the_log_is_bounded_private_and_bears_foreign_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bsmon.services.alert_log.MAX_BYTES", 4000)
    log = AlertLog(tmp_path)
    log.path.write_bytes(b"\xff not json\n{}\n[1]\n")
    for number in range(100):
        log.note(START, [Alert(f"{number}", "job", "rule", "note", f"{number}", 1, 1, START, "raised", "text")])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 8200
    assert log.entries()[-1].where == "99"
    assert log.problem is None
    log.path.unlink()
    log.note(START, [Alert("x", "job", "rule", "note", "x", 1, 1, START, "raised", "text")])
    assert log.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_are_logged_as_null(tmp_path: Path, value: float) -> None:
    log = AlertLog(tmp_path)
    log.note(START, [Alert("x", "job", "rule", "note", "", value, 1.0, START, "raised", "text")])
    assert log.entries()[0].value is None


def test_a_log_that_cannot_be_kept_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = AlertLog(tmp_path / "file" / "below")
    log.note(START, [Alert("x", "job", "rule", "note", "", 1.0, 1.0, START, "raised", "text")])
    assert log.problem is not None and os.fspath(tmp_path) in log.problem
    assert log.entries() == []
