"""``snapshot``, ``watch`` and ``jobs`` on agents' real sockets: what they print, when they are done, how they exit."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import FakeAgent

from bsmon.cli import main
from bsmon.commands import observe
from bsmon.commands.base import standing
from bsmon.model import Alert
from bsmon.services.monitor import Monitor

MakeAgent = Callable[..., FakeAgent]
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_other_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests' trainings on this host are not this test's."""
    monkeypatch.setattr("bsmon.sources.processes.unwatched", lambda watched: [])


def training(agent: MakeAgent, count: int = 30, **fields: Any) -> FakeAgent:
    """An agent with some steps in its history, ten a second until now."""
    made = agent(**fields)
    for seq in range(1, count + 1):
        made.step(seq, tell=False, loss=3.0 - seq / 100, time=time.time() - (count - seq) / 10)
    return made


def in_json(capsys: Output, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_no_job_is_3_and_says_what_was_looked_at(runtime: Path, capsys: Output) -> None:
    assert main(["snapshot"]) == 3
    shown = capsys.readouterr()
    assert shown.out == "" and str(runtime) in shown.err and "bsmon run" in shown.err
    code, found = in_json(capsys, "snapshot")
    assert code == 3 and found["jobs"] == [] and found["schema"] == 1


def test_a_healthy_job_is_0(agent: MakeAgent, capsys: Output) -> None:
    training(agent, name="gpt2")
    code, found = in_json(capsys, "snapshot")
    (job,) = found["jobs"]
    assert (code, job["name"], job["step"], job["state"]) == (0, "gpt2", 30, "live")
    assert job["tokens_per_s"] == pytest.approx(640, rel=0.05)
    assert job["regime"]["headline"], "the history was replayed through the diagnosis"
    assert main(["snapshot"]) == 0
    shown = capsys.readouterr()
    assert "gpt2" in shown.out and shown.err == ""


def test_a_critical_alert_is_2(agent: MakeAgent, capsys: Output) -> None:
    training(agent).step(31, tell=False, loss=float("nan"))
    code, found = in_json(capsys, "snapshot")
    assert code == 2 and found["jobs"][0]["loss"] is None
    assert "NaN" in found["unavailable"]["jobs.0.loss"]
    assert [alert["rule"] for alert in found["alerts"]] == ["nan_loss"]


def alert(severity: str, state: str) -> Alert:
    return Alert("i", "j", "r", severity, "", 1.0, 0.5, 0.0, state, "m")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("alerts", "code"),
    [([], 0), ([("note", "raised")], 0), ([("warn", "raised")], 1), ([("warn", "acknowledged")], 1),
     ([("warn", "raised"), ("crit", "raised")], 2), ([("crit", "cleared")], 0)],
)  # fmt: skip
def test_the_worst_alert_that_stands_decides(alerts: list[tuple[str, str]], code: int) -> None:
    assert standing([alert(severity, state) for severity, state in alerts]) == code


def later(action: Callable[[], object], seconds: float) -> None:
    threading.Timer(seconds, action).start()


def test_wait_for_a_step(agent: MakeAgent, capsys: Output) -> None:
    training(agent, 5, name="first")
    second = agent(name="second", stem=999)
    begun = time.monotonic()
    later(lambda: second.step(1), 1.0)
    _, found = in_json(capsys, "snapshot", "--wait", "30")
    assert {job["name"]: job["step"] for job in found["jobs"]} == {"first": 5, "second": 1}
    assert time.monotonic() - begun < 10


def test_wait_for_a_job(runtime: Path, agent: MakeAgent, capsys: Output) -> None:
    later(lambda: training(agent, 3), 0.7)
    _, found = in_json(capsys, "snapshot", "--wait", "30")
    assert [job["step"] for job in found["jobs"]] == [3]


def test_wait_ends_in_time(agent: MakeAgent, capsys: Output) -> None:
    agent(name="never")
    begun = time.monotonic()
    code, found = in_json(capsys, "snapshot", "--wait", "0.6")
    assert 0.6 <= time.monotonic() - begun < 3
    assert code == 0 and found["jobs"][0]["step"] is None


def test_without_wait_an_agent_that_does_not_answer_holds_nobody(
    agent: MakeAgent, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Monitor, "patience", 1.0)
    agent(deaf=True, name="deaf")
    begun = time.monotonic()
    main(["snapshot"])
    assert time.monotonic() - begun < 4


def test_one_job(agent: MakeAgent, capsys: Output) -> None:
    training(agent, name="one")
    training(agent, name="two", stem=999)
    code, found = in_json(capsys, "snapshot", "--job", "two")
    assert code == 0 and [job["name"] for job in found["jobs"]] == ["two"]
    assert main(["snapshot", "--job", found["jobs"][0]["id"]]) == 0
    assert "step time" in capsys.readouterr().out
    assert main(["snapshot", "--job", "three"]) == 3
    assert "one" in capsys.readouterr().err


def test_jobs(agent: MakeAgent, capsys: Output) -> None:
    made = training(agent, name="gpt2")
    code, found = in_json(capsys, "jobs")
    (job,) = found["jobs"]
    assert code == 0 and (job["name"], job["step"], job["ranks"][0]["pid"]) == ("gpt2", 30, made.pid)
    assert main(["jobs"]) == 0
    assert str(made.pid) in capsys.readouterr().out


def watching_until(condition: Callable[[str], bool], capsys: Output, *arguments: str) -> list[str]:
    """What ``watch`` prints until it has printed enough; it is then interrupted as by ctrl+c."""
    printed = ""
    original = observe._wait

    def wait(monitor: Any, every: float, over: Callable[[], bool]) -> None:
        nonlocal printed
        printed += capsys.readouterr().out
        if condition(printed):
            raise KeyboardInterrupt
        original(monitor, every, over)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observe, "_wait", wait)
        assert main(["watch", "--every", "0.2", *arguments]) == 130
    return printed.splitlines()


def test_watch_tells_changes_and_nothing_else(agent: MakeAgent, capsys: Output) -> None:
    made = training(agent, name="gpt2")
    later(lambda: made.step(31, loss=float("nan")), 0.5)
    lines = watching_until(lambda text: "nan_loss" in text or "the loss is nan" in text, capsys)
    assert "gpt2  live" in lines[0] and sum("live" in line for line in lines) == 1
    assert "crit raised" in lines[-1]


def test_watch_ends_when_its_reader_leaves_though_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(observe, "STDOUT", writer)
    until = time.monotonic() + 10
    with pytest.raises(BrokenPipeError):
        observe.follow(Monitor([]), 60.0, over=lambda: time.monotonic() > until)
    os.close(writer)


def test_watch_json_is_a_snapshot_a_line(agent: MakeAgent, capsys: Output) -> None:
    training(agent, name="gpt2")
    lines = watching_until(lambda text: text.count("\n") >= 3, capsys, "--json")
    snapshots = [json.loads(line) for line in lines]
    assert [found["jobs"][0]["name"] for found in snapshots] == ["gpt2"] * 3
    assert snapshots[0]["time"] < snapshots[1]["time"] < snapshots[2]["time"]
