"""The live source and the store against the real publisher of the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

from bsmon.sources.live import LiveSource
from bsmon.store import Fleet
from bsmon_agent import wire
from bsmon_agent.ledger import Ledger
from bsmon_agent.publisher import Publisher

HELLO = """
import os, socket, sys, time, uuid
from bsmon_agent import wire
from bsmon_agent.ledger import Ledger
from bsmon_agent.publisher import Publisher
hello = {"schema": 1, "session": uuid.uuid4().hex, "pid": os.getpid(), "pid_start": wire.process_start(os.getpid()),
         "host": socket.gethostname(), "name": "child", "job": "child-1", "started": time.time()}
ledger = Ledger()
publisher = Publisher(ledger, lambda: hello, lambda: {})
publisher.start()
for step in range(1, 31):
    ledger.push({"step": step, "time": time.time(), "duration": 0.01, "loss": 1.0 / step})
    time.sleep(0.01)
"""


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def publisher(runtime, ledger):
    known = {"schema": 1, "session": uuid.uuid4().hex, "pid": os.getpid(), "host": os.uname().nodename}
    hello = known | {"name": "run", "job": "run-1", "started": time.time()}
    made = Publisher(ledger, lambda: hello, lambda: {"overhead": {"us_per_step": 7.0}})
    made.start()
    assert made.problem is None
    yield made
    made.stop(0)


@pytest.fixture
def child(runtime):
    """A process with a publisher in it; its program ends with the lines given."""
    started = []

    def start(end):
        program = HELLO + textwrap.dedent(end)
        environment = {**os.environ, "BSMON_DIR": str(runtime)}
        started.append(subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def push(ledger, first, count):
    for step in range(first, first + count):
        ledger.push({"step": step, "time": time.time(), "duration": 0.001, "loss": 1.0 / step, "tokens": 64})


def seqs(fleet, job_id):
    now = time.time()
    return [record.seq for window in fleet.window(job_id, now, 1e6) for record in window.records]


def test_a_late_viewer_misses_nothing_of_a_training_that_goes_on(publisher, ledger, heard, until):
    push(ledger, 1, 1000)
    time.sleep(0.3)  # sent to nobody: only the history has them
    push(ledger, 1001, 1000)
    _, fleet = heard
    for first in range(2001, 2301, 10):
        push(ledger, first, 10)
        time.sleep(0.01)
    until(lambda: seqs(fleet, "run-1")[-1:] == [2300])
    assert seqs(fleet, "run-1") == list(range(1, 2301))
    (job,) = fleet.jobs(time.time())
    assert (job.state, job.step, job.loss, job.dropped_records) == ("live", 2300, 1 / 2300, 0)
    until(lambda: fleet.jobs(time.time())[0].overhead.us_per_step == 7.0)


def test_what_the_agent_could_not_keep_is_counted(publisher, ledger, heard, until):
    push(ledger, 1, 50_000)
    _, fleet = heard
    until(lambda: seqs(fleet, "run-1")[-1:] == [50_000])
    until(lambda: fleet.jobs(time.time())[0].dropped_records > 10_000)


def test_several_viewers_at_once_all_get_everything(publisher, ledger, runtime, until):
    viewers = [(LiveSource(), Fleet()) for _ in range(4)]
    push(ledger, 1, 100)
    for source, fleet in viewers:
        source.start(fleet.ingest)
    push(ledger, 101, 100)
    for source, fleet in viewers:
        until(lambda fleet=fleet: seqs(fleet, "run-1") == list(range(1, 201)))
        source.stop()


def test_a_step_is_seen_within_a_moment(publisher, ledger, heard, until):
    """Three send intervals at most, in the median of ten."""
    _, fleet = heard
    push(ledger, 1, 1)
    until(lambda: seqs(fleet, "run-1") == [1])
    delays = []
    for step in range(2, 12):
        begin = time.monotonic()
        push(ledger, step, 1)
        until(lambda step=step: seqs(fleet, "run-1")[-1:] == [step])
        delays.append(time.monotonic() - begin)
    assert sorted(delays)[5] < 3 * wire.SEND_INTERVAL


def test_how_it_ended_is_seen(child, heard, until):
    _, fleet = heard
    process = child("input(); publisher.stop(7); sys.exit(7)")
    until(lambda: [job.step for job in fleet.jobs(time.time())] == [30])
    process.stdin.write(b"\n")
    process.stdin.flush()
    until(lambda: fleet.jobs(time.time())[0].state == "finished")
    (job,) = fleet.jobs(time.time())
    assert (job.exit_code, job.step, job.loss) == (7, 30, 1 / 30)


def test_how_it_ended_is_seen_by_who_comes_afterwards(child, runtime, until):
    child("publisher.stop(3); sys.exit(3)").wait()
    source, fleet = LiveSource(), Fleet()
    source.start(fleet.ingest)
    until(lambda: fleet.jobs(time.time()))
    source.stop()
    (job,) = fleet.jobs(time.time())
    assert (job.state, job.exit_code, job.step, job.loss) == ("finished", 3, 30, 1 / 30)


def test_a_killed_process_is_lost_and_a_new_one_beside_it_live(child, heard, until):
    _, fleet = heard
    first = child("input()")
    until(lambda: [job.step for job in fleet.jobs(time.time())] == [30])
    first.send_signal(signal.SIGKILL)
    until(lambda: [job.state for job in fleet.jobs(time.time())] == ["lost"], 5)
    child("input()")
    until(lambda: [job.step for job in fleet.jobs(time.time())] == [30, 30])
    jobs = {job.id: job for job in fleet.jobs(time.time())}
    assert jobs["child-1"].state == "lost"
    assert jobs["child-1~2"].state != "lost"


def test_a_stopped_process_is_heard_again_when_it_goes_on(child, heard, until):
    _, fleet = heard
    process = child("""
        for step in range(31, 10000):
            ledger.push({"step": step, "time": time.time(), "duration": 0.01})
            time.sleep(0.01)
    """)
    until(lambda: any((job.step or 0) > 30 for job in fleet.jobs(time.time())))
    process.send_signal(signal.SIGSTOP)
    until(lambda: fleet.jobs(time.time())[0].state == "stale", 6)
    time.sleep(4)  # long enough for the line to be made anew
    process.send_signal(signal.SIGCONT)
    until(lambda: fleet.jobs(time.time())[0].state == "live", 6)
    assert fleet.jobs(time.time())[0].dropped_records == 0
