"""Forks and execs: the parent keeps its agent, the child has none, nobody waits for anybody."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import viewers
import zmq
from viewers import Viewer, entry, step

from bsmon_agent import wire
from bsmon_agent.ledger import Ledger

pytestmark = pytest.mark.real


@pytest.fixture
def place(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as directory:
        monkeypatch.setenv("BSMON_DIR", f"{directory}/r")
        yield Path(directory) / "r"


@pytest.fixture
def running(place):
    """A publisher at work, its ledger and a viewer of it."""
    ledger = Ledger()
    publisher = viewers.publisher(ledger)
    publisher.start()
    context = zmq.Context()
    viewer = Viewer(context, entry(place))
    viewer.until(wire.HELLO)
    yield publisher, ledger, viewer
    publisher.stop(0)
    context.destroy(linger=0)


def wait(child):
    """The exit code of a child that must not hang."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def in_child(action):
    """The exit code of a forked child that does this."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(action() or 0)
        except BaseException:
            os._exit(99)
    return wait(child)


def test_forks_at_any_moment_leave_parent_and_children_well(running, place):
    publisher, ledger, viewer = running

    def child():
        for number in range(100):
            ledger.push(step(number))
        publisher.announce()
        publisher.stop(5)
        return 0 if publisher.problem and not ledger.drain() else 1

    for number in range(40):
        ledger.push(step(number))
        time.sleep(0.003 * (number % 5))
        assert in_child(child) == 0
    time.sleep(0.3)
    viewer.drain()
    viewer.ask()
    viewer.until(wire.END)
    assert sorted(viewer.records) == list(range(1, 41))
    assert publisher.problem is None
    assert entry(place)["state"] in ("starting", "live")
    assert len(list(place.iterdir())) == 3


def test_a_child_may_publish_itself(running, place):
    def child():
        ledger = Ledger()
        own = viewers.publisher(ledger, name="child")
        own.start()
        ledger.push(step(1))
        seen = entry(place)["name"] == "child"
        own.stop(0)
        return 0 if seen and entry(place)["exit_code"] == 0 else 1

    assert in_child(child) == 0
    assert entry(place)["name"] == "test"
    assert (place / f"{os.getpid()}.live").exists()


def test_a_child_that_leaves_by_the_front_door_touches_nothing(place):
    program = """
import os, sys, time
import viewers
from bsmon_agent.ledger import Ledger
publisher = viewers.publisher(Ledger())
publisher.start()
child = os.fork()
if child == 0:
    sys.exit(3)  # runs every atexit function of the parent
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
from pathlib import Path
print(viewers.entry(Path(os.environ["BSMON_DIR"]))["state"], len(os.listdir(os.environ["BSMON_DIR"])))
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], env=environ, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("starting 3\n", "")
    [left] = place.iterdir()
    assert left.suffix == ".json"


def test_an_execed_child_inherits_no_socket(running):
    listing = ["ls", "-l", "/proc/self/fd"]
    done = subprocess.run(listing, close_fds=False, capture_output=True, text=True, check=True)
    assert "socket:" not in done.stdout
    assert "eventpoll" not in done.stdout


def test_a_viewer_that_is_killed_or_stopped_changes_nothing(running, place):
    """SIGSTOP, then SIGKILL of a real viewer process while steps are made."""
    publisher, ledger, viewer = running
    program = """
import sys, zmq
sub = zmq.Context().socket(zmq.SUB)
sub.subscribe(b"")
for topic in (b"hello", b"steps", b"beat"):
    sub.subscribe(topic)
sub.connect(sys.argv[1])
print(sub.recv_multipart()[0], flush=True)
while True:
    sub.recv_multipart()
"""
    other = subprocess.Popen([sys.executable, "-c", program, entry(place)["live"]], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    slowest = 0.0
    for number in range(300):
        if number == 100:
            other.send_signal(19)
        if number == 200:
            other.kill()
        began = time.perf_counter()
        ledger.push(step(number))
        slowest = max(slowest, time.perf_counter() - began)
        viewer.listen(0.005)
    other.wait()
    other.stdout.close()
    viewer.listen(0.5)
    assert sorted(viewer.records) == list(range(1, 301))
    assert slowest < 0.05
    assert publisher.problem is None
