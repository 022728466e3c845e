"""The live source against real sockets: late join, order, gaps, bad peers, ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import zmq
from agents import FakeAgent

from bsmon.model import Hello, Steps
from bsmon.sources.live import LiveSource
from bsmon_agent import wire


def seqs(fleet, job=0):
    """Sequence numbers that arrived, in the order of the store."""
    now = time.time()
    jobs = fleet.jobs(now)
    if len(jobs) <= job:
        return []
    return [record.seq for window in fleet.window(jobs[job].id, now, 1e6) for record in window.records]


def test_a_late_viewer_gets_the_history_and_then_what_comes(agent, heard, until):
    trainer = agent()
    for seq in range(1, 101):
        trainer.step(seq, tell=False)
    source, fleet = heard
    until(lambda: len(seqs(fleet)) == 100 and trainer.viewed())
    for seq in range(101, 121):
        trainer.step(seq)
    until(lambda: len(seqs(fleet)) == 120)
    assert seqs(fleet) == list(range(1, 121))
    assert fleet.jobs(time.time())[0].dropped_records == 0
    assert source.settled
    assert source.problem is None


def test_steps_broadcast_while_the_history_is_on_its_way_come_once_and_in_order(agent, runtime, until):
    trainer = agent(deaf=True)
    for seq in range(1, 51):
        trainer.step(seq, tell=False)
    events = []
    source = LiveSource()
    source.start(events.append)
    until(lambda: trainer.requests and trainer.viewed())
    for seq in range(51, 61):  # broadcast before the history is answered, and in it too
        trainer.step(seq)
        time.sleep(0.01)
    trainer.deaf = False
    until(lambda: any(isinstance(event, Steps) and event.records[-1].seq == 60 for event in events), 15)
    source.stop()
    assert isinstance(events[0], Hello)
    found = [record.seq for event in events if isinstance(event, Steps) for record in event.records]
    assert found == list(range(1, 61))


def test_a_gap_is_asked_for_and_filled(agent, heard, until):
    trainer = agent()
    trainer.step(1, tell=False)
    _, fleet = heard
    until(lambda: seqs(fleet) == [1] and trainer.viewed())
    for seq in range(2, 11):
        trainer.step(seq, tell=False)  # lost on the way
    trainer.step(11)
    until(lambda: seqs(fleet) == list(range(1, 12)))
    assert fleet.jobs(time.time())[0].dropped_records == 0
    assert 1 in trainer.requests


def test_a_loss_at_the_very_end_shows_in_the_heartbeat(agent, heard, until):
    trainer = agent()
    trainer.step(1, tell=False)
    source, fleet = heard
    until(lambda: seqs(fleet) == [1] and trainer.viewed() and source.settled)
    trainer.step(2, tell=False)
    trainer.beat()
    trainer.beat()
    until(lambda: seqs(fleet) == [1, 2], 3)  # sooner than a silence is noticed


def test_what_cannot_be_had_again_is_counted(agent, heard, until):
    trainer = agent()
    trainer.step(1, tell=False)
    _, fleet = heard
    until(lambda: seqs(fleet) == [1] and trainer.viewed())
    trainer.step(5, keep=False)
    until(lambda: seqs(fleet) == [1, 5])
    assert fleet.jobs(time.time())[0].dropped_records == 3


def test_foreign_bytes_are_counted_and_said_and_harm_nothing(agent, heard, until):
    trainer = agent()
    trainer.step(1, tell=False)
    source, fleet = heard
    until(lambda: seqs(fleet) == [1] and trainer.viewed())
    trainer.send(wire.STEPS, b"\xc1\xff not msgpack")
    trainer.send(wire.BEAT, {"schema": 2, "session": trainer.session, "time": "soon"})
    until(lambda: "update bsmon" in (source.problem or ""))
    foreign = {"seq": 2, "step": 666, "time": time.time()}
    trainer.send(wire.STEPS, {"schema": 1, "session": "fedcba98" * 4, "records": [foreign]})
    trainer.step(2)
    until(lambda: seqs(fleet) == [1, 2])
    assert fleet.jobs(time.time())[0].step == 2
    assert "3 messages" in source.problem
    assert "another process" in source.problem


def test_after_a_message_over_the_limit_the_line_is_made_anew(agent, heard, until):
    trainer = agent()
    trainer.step(1, tell=False)
    _, fleet = heard
    until(lambda: seqs(fleet) == [1] and trainer.viewed())
    trainer.send(wire.STEPS, b"x" * (wire.MAX_PAYLOAD + 1))  # ZeroMQ hangs up for good
    time.sleep(0.3)
    trainer.step(2)
    until(lambda: seqs(fleet) == [1, 2], 15)


def test_processes_come_and_go(agent, heard, until):
    _, fleet = heard
    trainer = agent()
    trainer.step(1, tell=False)
    until(lambda: seqs(fleet) == [1] and trainer.viewed())
    assert fleet.jobs(time.time())[0].state == "live"
    trainer.step(2)
    trainer.announce(state="finished", exit_code=3, ended=time.time())
    until(lambda: fleet.jobs(time.time())[0].state == "finished")
    assert fleet.jobs(time.time())[0].exit_code == 3


def test_a_run_that_ended_before_anybody_looked_is_shown_for_an_hour(agent, heard, until):
    _, fleet = heard
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        old, new = agent(pid=child.pid), agent(name="new")
        old.announce(state="finished", exit_code=0, ended=time.time() - 7200)
        last = {"hello": new.hello, "record": {"seq": 7, "step": 70, "time": time.time(), "loss": 1.5}}
        new.announce(state="finished", exit_code=1, ended=time.time() - 60, last=last)
        until(lambda: any(job.name == "new" and job.state == "finished" for job in fleet.jobs(time.time())))
        (job,) = fleet.jobs(time.time())
        assert (job.step, job.loss, job.exit_code, job.tokens_per_s) == (70, 1.5, 1, None)
        assert 59 < job.age_s < 70
    finally:
        child.communicate(b"\n")


def test_a_killed_process_is_lost_at_once_though_its_entry_says_live(agent, heard, until):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    trainer = agent(pid=child.pid)
    trainer.step(1, tell=False)
    _, fleet = heard
    until(lambda: seqs(fleet) == [1] and trainer.viewed())
    child.kill()  # not waited for: a zombie is as dead
    until(lambda: fleet.jobs(time.time())[0].state == "lost", 5)
    job = fleet.jobs(time.time())[0]
    assert (job.step, job.tokens_per_s) == (1, None)
    assert "lost" in job.unavailable["tokens_per_s"]
    child.wait()


def test_an_entry_whose_pid_another_process_has_now_is_lost(agent, heard, until):
    trainer = agent(pid_start=wire.process_start(os.getpid()) - 1)
    _, fleet = heard
    until(lambda: fleet.jobs(time.time()))
    assert fleet.jobs(time.time())[0].state == "lost"
    assert not trainer.requests


def test_entries_that_vanish_and_come_again_change_nothing(agent, heard, until):
    trainer = agent()
    trainer.step(1, tell=False)
    _, fleet = heard
    until(lambda: seqs(fleet) == [1] and trainer.viewed())
    trainer.path.unlink()
    time.sleep(0.7)
    trainer.step(2)
    until(lambda: seqs(fleet) == [1, 2])
    trainer.announce()
    time.sleep(0.7)
    trainer.step(3)
    until(lambda: seqs(fleet) == [1, 2, 3])
    assert len(trainer.requests) == 1


def test_hundreds_of_processes_on_one_thread(runtime, heard, until):
    """All are found, heard and told apart, with two sockets each, on a common limit of open files."""
    _, fleet = heard
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, 2000)
        crowd = [FakeAgent(runtime, alone=True, stem=10000 + index, context=context) for index in range(200)]
        for index, one in enumerate(crowd):
            one.step(1 + index, tell=False)

        def served():
            for one in crowd:
                one.serve()
            return [job.step for job in fleet.jobs(time.time())].count(None) == 0 and len(
                fleet.jobs(time.time())
            ) == 200

        until(served, 30)
        assert sorted(job.step for job in fleet.jobs(time.time())) == list(range(1, 201))
        for one in crowd:
            one.close()


@pytest.mark.parametrize("stop_first", [False, True])
def test_it_stops_within_a_moment(agent, runtime, stop_first):
    agent()
    source = LiveSource()
    if not stop_first:
        source.start(lambda event: None)
        time.sleep(0.2)
    begin = time.monotonic()
    source.stop()
    assert time.monotonic() - begin < 1.0
