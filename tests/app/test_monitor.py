"""The monitor: sources in, snapshots out, diagnosed; on a clock that the test moves."""

from __future__ import annotations

import math

import pytest
from agents import START, beat, gone, hello, record, run_of, steps

from bsmon.model import GpuSample, MoeCounts, RouterInfo
from bsmon.services.alert_log import AlertLog
from bsmon.services.monitor import Monitor


class Clock:
    def __init__(self, now=START):
        self.now = now

    def __call__(self):
        return self.now


class Feed:
    """A source that hands on what the test gives it."""

    name = "feed"
    problem = None
    looked_at = ("the test",)
    settled = True

    def __init__(self, *events):
        self._events = events
        self.running = None

    def start(self, ingest):
        self.running = True
        self.ingest = ingest
        for event in self._events:
            ingest(event)

    def stop(self):
        self.running = False


@pytest.fixture
def clock():
    return Clock()


def started(clock, *events, **options):
    feed = Feed(*events)
    monitor = Monitor([feed], clock=clock, **options)
    monitor.start()
    return monitor, feed


WAITING = {"duration": 0.5, "data_wait": 0.3, "forward": 0.1, "backward": 0.05, "optimizer_time": 0.05}


def test_a_first_look_has_the_verdict_of_the_history(clock):
    clock.now = START + 60
    monitor, _ = started(clock, hello(), *(run_of(1, first=n, **WAITING) for n in range(1, 121)))
    monitor.tick()
    job = monitor.snapshot().jobs[0]
    assert job.source == "feed"
    assert job.regime.label == "input_bound"
    assert job.regime.since < START + 40
    assert monitor.settled


def spike():
    """A history: no drops for half a minute, then three in ten assignments."""
    fine = MoeCounts(layer=0, tokens=100, assignments=200, assigned=[50] * 4, dropped=0, calls=1)
    dropping = MoeCounts(layer=0, tokens=100, assignments=200, assigned=[50] * 4, dropped=60, calls=1)
    routers = [RouterInfo(name="layers.0.gate", experts=4, top_k=2, tag="exact")]
    return hello(routers=routers), run_of(60, moe=[fine]), run_of(60, first=61, moe=[dropping])


def test_a_first_look_raises_the_alerts_of_the_history_with_their_time(clock):
    clock.now = START + 60
    monitor, _ = started(clock, *spike())
    monitor.tick()
    (alert,) = [alert for alert in monitor.snapshot().alerts if alert.where == "layers.0.gate"]
    assert (alert.state, alert.rule) == ("raised", "drop_rate")
    assert START + 30 < alert.since < START + 40
    half = monitor.series("job1", "drop_rate", START, START + 60, 2)
    assert [bucket.mean for bucket in half] == pytest.approx([0.0, 0.3], abs=0.01)


def test_the_first_diagnosis_waits_for_the_histories_but_not_for_ever(clock):
    monitor, feed = started(clock, hello())
    feed.settled = False
    clock.now += 1
    monitor.tick()
    assert [job.id for job in monitor.snapshot().jobs] == ["job1"]
    assert not monitor.settled
    clock.now += 3
    monitor.tick()
    assert monitor.snapshot().jobs[0].regime.headline is not None
    assert not monitor.settled
    feed.settled = True
    clock.now += 1
    monitor.tick()
    assert monitor.settled


def test_a_snapshot_never_changes_once_it_was_handed_out(clock):
    monitor, feed = started(clock, hello(), run_of(20, loss=2.0))
    clock.now = START + 10
    monitor.tick()
    before = monitor.snapshot()
    revision = monitor.revision
    feed.ingest(steps(record(21, loss=3.0)))
    clock.now = START + 10.6
    monitor.tick()
    assert (before.jobs[0].loss, before.jobs[0].step) == (2.0, 20)
    assert (monitor.snapshot().jobs[0].loss, monitor.snapshot().jobs[0].step) == (3.0, 21)
    assert monitor.revision > revision


def test_nothing_new_costs_nothing_until_a_second_has_gone_by(clock):
    monitor, _ = started(clock, hello(), run_of(20))
    clock.now = START + 10
    monitor.tick()
    revision = monitor.revision
    for _ in range(3):
        clock.now += 0.25
        monitor.tick()
    assert monitor.revision == revision
    clock.now += 0.3
    monitor.tick()
    assert monitor.revision == revision + 1  # ages count


def test_a_clock_that_is_put_back_does_not_stop_it(clock):
    monitor, feed = started(clock, hello(), run_of(20))
    clock.now = START + 10_000
    monitor.tick()
    clock.now = START + 10
    feed.ingest(steps(record(21)))
    monitor.tick()
    assert monitor.snapshot().time == START + 10


def test_a_nan_is_diagnosed_and_told_at_once(clock):
    monitor, feed = started(clock, hello(), run_of(60, loss=2.0))
    clock.now = START + 30
    monitor.tick()
    feed.ingest(steps(record(61, loss=math.nan)))
    clock.now = START + 31.5
    monitor.tick()
    job = monitor.snapshot().jobs[0]
    assert job.regime.label == "unstable"
    assert [alert.rule for alert in monitor.snapshot().alerts] == ["nan_loss"]
    assert job.unavailable["loss"] == "NaN at step 61"


def test_derived_series_are_kept_while_it_watches(clock):
    routers = [RouterInfo(name="gate", experts=2, top_k=1, tag="exact")]
    monitor, feed = started(clock, hello(routers=routers))
    for second in range(1, 21):
        clock.now = START + second
        moe = [MoeCounts(layer=0, tokens=40, assignments=40, assigned=[30, 10], calls=1)]
        feed.ingest(steps(*(record(2 * second + n, time=clock.now, moe=moe) for n in (0, 1))))
        monitor.tick()
    found = monitor.series("job1", "load_cv", START + 5, START + 20, 15)
    assert [bucket.mean for bucket in found] == pytest.approx([0.5] * 15)


def test_acknowledging_shows_at_once_and_is_logged(clock, tmp_path):
    log = AlertLog(tmp_path)
    clock.now = START + 60
    monitor, _ = started(clock, *spike(), alert_log=log)
    monitor.tick()
    first = monitor.snapshot().alerts[0]
    monitor.acknowledge(first.id)
    assert {alert.id: alert.state for alert in monitor.snapshot().alerts}[first.id] == "acknowledged"
    logged = [(entry.id, entry.state) for entry in log.entries() if entry.id == first.id]
    assert logged == [(first.id, "raised"), (first.id, "acknowledged")]
    monitor.acknowledge("nothing of that name")


def test_what_is_wrong_with_a_source_is_said(clock):
    monitor, feed = started(clock, GpuSample(time=START, host="h", gpus=[], reason="no driver here"))
    feed.problem = "/tmp/x: it belongs to uid 7"
    monitor.tick()
    assert monitor.snapshot().unavailable == {"gpus": "no driver here", "sources.feed": "/tmp/x: it belongs to uid 7"}
    assert monitor.looked_at() == ["the test"]
    monitor.stop()
    assert feed.running is False


def test_jobs_that_come_and_go(clock):
    monitor, feed = started(clock)
    monitor.tick()
    assert monitor.snapshot().jobs == []
    for number in range(3):
        session = f"{number}" * 16
        feed.ingest(hello(session=session, job=f"job{number}"))
        feed.ingest(run_of(20, session=session))
    feed.ingest(gone(START + 11, "1" * 16, finished=True, exit_code=0))
    feed.ingest(beat(START + 12, session="2" * 16))
    clock.now = START + 12
    monitor.tick()
    assert {job.id: job.state for job in monitor.snapshot().jobs} == {
        "job0": "live",
        "job1": "finished",
        "job2": "live",
    }
    assert monitor.snapshot().agent_versions == []
