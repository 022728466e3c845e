"""The publisher over real sockets: what is sent, what a late viewer gets, and that no peer can hold it up."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
import viewers
import zmq
from viewers import Viewer, entry, step, wait_for

from bsmon_agent import wire
from bsmon_agent.ledger import Ledger


@pytest.fixture
def place(monkeypatch):
    """A runtime directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as directory:
        monkeypatch.setenv("BSMON_DIR", f"{directory}/r")
        yield Path(directory) / "r"


@pytest.fixture
def context():
    with zmq.Context() as made:
        yield made
        made.destroy(linger=0)


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def publisher(place, ledger):
    made = viewers.publisher(ledger, lambda: {"overhead": {"us_per_step": 3.0}, "notes": ["theirs"]})
    made.start()
    assert made.problem is None
    yield made
    made.stop(0)


@pytest.fixture
def viewer(publisher, place, context):
    return Viewer(context, entry(place))


def feed(ledger, count, start=1, pause=0.0):
    for number in range(start, start + count):
        ledger.push(step(number, loss=1.0 / number))
        if pause:
            time.sleep(pause)


@contextmanager
def training(ledger, pause):
    """Steps in a thread, one after each pause."""
    done = threading.Event()

    def loop():
        while not done.wait(pause):
            ledger.push(step(ledger.seq + 1))

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def resident():
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_viewer_gets_a_hello_at_once_then_steps_and_beats(viewer, ledger, publisher):
    start = time.monotonic()
    said = viewer.until(wire.HELLO)
    assert time.monotonic() - start < 1.0
    assert (said["schema"], said["name"], said["pid"]) == (1, "test", os.getpid())
    feed(ledger, 5)
    viewer.until(wire.STEPS)
    assert [record["step"] for record in viewer.records.values()] == [1, 2, 3, 4, 5]
    viewer.heard.clear()
    wait_for(lambda: (viewer.until(wire.BEAT))["seq"] == 5)
    beat = viewer.last(wire.BEAT)
    assert beat["session"] == said["session"]
    assert (beat["state"], beat["dropped_records"]) == ("live", 0)
    assert beat["overhead"] == {"us_per_step": 3.0}
    assert "theirs" in beat["notes"]


def test_history_comes_as_hello_beat_steps_end(viewer, ledger):
    feed(ledger, 1000)
    time.sleep(0.3)
    viewer.ask(after=100)
    end = viewer.until(wire.END)
    assert end["seq"] == 1000
    viewer.dealer.send_multipart([wire.HISTORY, msgpack.packb({"after": 100})])
    answer = []
    while wire.END not in answer:
        topic, payload = viewer.dealer.recv_multipart()
        answer.append(topic)
        assert all(record["seq"] > 100 for record in msgpack.unpackb(payload).get("records", ()))
    assert answer == [wire.HELLO, wire.BEAT, wire.STEPS, wire.STEPS, wire.END]
    assert set(range(101, 1001)) <= viewer.records.keys()


def test_joins_at_random_moments_under_load_have_no_gap(publisher, place, context, ledger):
    """Forty viewers come at random moments while 2,000 steps a second are made."""
    chance = random.Random(1)
    joined: list[Viewer] = []
    with training(ledger, 0.0005):
        for _ in range(40):
            time.sleep(chance.uniform(0.06, 0.16))
            joined.append(Viewer(context, entry(place)))
            joined[-1].ask()
            joined[-1].listen(0.005)
    time.sleep(0.3)
    for late in joined:
        late.drain()
        if late.holes():  # asked before its subscription arrived: the first live record tells, and it asks again
            late.ask(after=late.holes()[0] - 1)
            late.until(wire.END)
            late.drain()
        assert late.holes() == []
        assert max(late.records) == ledger.seq
        assert min(late.records) == 1
    assert sum(len(late.records) for late in joined) == ledger.seq * len(joined)
    assert ledger.dropped == 0


def test_subscribing_and_hearing_a_hello_before_asking_needs_no_second_question(publisher, place, context, ledger):
    with training(ledger, 0.001):
        for _ in range(8):
            late = Viewer(context, entry(place))
            late.until(wire.HELLO)
            late.ask()
            late.until(wire.END)
            late.listen(0.3)
            assert late.holes() == []
            assert min(late.records) == 1
            late.close()


STOPPED = """
import sys, time, zmq
context = zmq.Context()
sub, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
for socket, address in zip((sub, dealer), sys.argv[1:]):
    socket.set(zmq.RCVHWM, 1)
    socket.connect(address)
for topic in (b"hello", b"steps", b"beat"):
    sub.subscribe(topic)
sub.recv_multipart()
print("hello", flush=True)
while True:
    dealer.send_multipart([b"history", b"\\x81\\xa5after\\x00"])
    time.sleep(0.5)
"""


@pytest.fixture
def stopped(publisher, place):
    """A viewer in a process of its own that subscribed, asks for all again and again, and reads nothing."""
    addresses = entry(place)["live"], entry(place)["history"]
    viewer = subprocess.Popen([sys.executable, "-c", STOPPED, *addresses], stdout=subprocess.PIPE)
    with viewer:
        assert viewer.stdout is not None
        viewer.stdout.readline()
        yield viewer
        viewer.kill()


def test_a_viewer_that_stopped_reading_holds_nobody_up(stopped, place, context, ledger):
    reader = Viewer(context, entry(place))
    reader.until(wire.HELLO)
    slowest = 0.0
    for number in range(1, 401):
        began = time.perf_counter()
        ledger.push(step(number, moe=[{"layer": 0, "tokens": 1, "assigned": [70000] * 200}]))
        slowest = max(slowest, time.perf_counter() - began)
        reader.listen(0.005)
    reader.listen(0.5)
    assert reader.holes() == []
    assert max(reader.records) == 400
    assert slowest < 0.05


def test_a_viewer_that_stopped_reading_costs_bounded_memory(stopped, ledger):
    """120 MB go by: what stays is the history, and what waits for the viewer on our side of its sockets."""
    before = resident()
    for number in range(1, 801):
        ledger.push(step(number, moe=[{"layer": 0, "tokens": 1, "assigned": [70000] * 30_000}]))
        time.sleep(0.005)
    assert resident() - before < 64 << 20


def test_answers_are_limited_per_peer(viewer, ledger):
    feed(ledger, 10)
    viewer.until(wire.HELLO)
    for _ in range(100):
        viewer.ask()
    viewer.listen(1.0)
    ends = [topic for topic, _ in viewer.heard if topic == wire.END]
    assert 1 <= len(ends) <= 8


def test_answers_are_limited_over_all_peers(publisher, place, context, ledger):
    crowd = [Viewer(context, entry(place)) for _ in range(60)]
    for one in crowd:
        one.ask()
    time.sleep(0.3)
    for one in crowd:
        one.listen(0.01)
    answered = sum(one.last(wire.END) is not None for one in crowd)
    assert 10 <= answered <= 30


@pytest.mark.parametrize(
    "frames",
    [
        [b"history"],
        [b"history", b""],
        [b"history", b"\xc1"],
        [b"history", msgpack.packb({"after": -1})],
        [b"history", msgpack.packb({"after": "x"})],
        [b"history", msgpack.packb([1])],
        [b"history", b"\xdd\xff\xff\xff\xff"],
        [b"drop", msgpack.packb({"after": 0})],
        [b"history", msgpack.packb({"after": 0}), b"more"],
        [b"history", bytes(100_000)],
    ],
)
def test_a_foreign_request_is_passed_over(viewer, ledger, publisher, frames, context, place):
    stranger = context.socket(zmq.DEALER)
    stranger.connect(entry(place)["history"])
    stranger.send_multipart(frames)
    assert stranger.poll(300) == 0
    stranger.close(0)
    viewer.ask()
    assert viewer.until(wire.END)["seq"] == 0
    assert publisher.problem is None


HOSTILE = """
import sys, zmq
address, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
context = zmq.Context()
socket = context.socket(zmq.XSUB)
socket.set(zmq.SNDHWM, 0)
socket.connect(address)
for number in range(count):
    socket.send(b"\\x01" + b"%09d" % number + bytes(size - 10))
socket.close(linger=5000)  # what is not taken by then will not be
context.term()
"""


@pytest.mark.parametrize(("count", "size"), [(200_000, 100), (20, 1_000_000), (2_000_000, 10)])
def test_twenty_megabytes_of_subscriptions_cost_next_to_nothing(publisher, place, context, ledger, count, size):
    viewer = Viewer(context, entry(place))
    viewer.until(wire.HELLO)
    before, cpu = resident(), time.process_time()
    line = [sys.executable, "-c", HOSTILE, entry(place)["live"], str(count), str(size)]
    hostile = subprocess.Popen(line)
    while hostile.poll() is None:
        feed(ledger, 1, start=ledger.seq + 1)
        viewer.listen(0.02)
    assert resident() - before < 64 << 20  # kept, they would take up to ten times that
    assert time.process_time() - cpu < 2.0
    viewer.listen(1.0)
    viewer.ask()
    viewer.until(wire.END)
    assert viewer.holes() == []
    assert max(viewer.records) == ledger.seq
    assert publisher.problem is None


def test_only_known_topics_are_sent(publisher, place, context, ledger):
    everything = context.socket(zmq.SUB)
    everything.subscribe(b"")
    everything.connect(entry(place)["live"])
    feed(ledger, 3)
    assert everything.poll(1500) == 0
    everything.close(0)


def test_announce_sends_the_hello_again(place, ledger, context):
    said = viewers.hello()
    publisher = viewers.Publisher(ledger, lambda: said, dict)
    publisher.start()
    try:
        viewer = Viewer(context, entry(place))
        viewer.until(wire.HELLO)
        viewer.listen(0.3)
        said["total_steps"] = 500
        publisher.announce()
        wait_for(lambda: viewer.until(wire.HELLO).get("total_steps") == 500, 1.0)
    finally:
        publisher.stop(0)


def test_what_the_session_raises_is_a_note(place, ledger, context):
    calls = iter([viewers.hello()])

    def broken():
        raise RuntimeError("planted")

    publisher = viewers.Publisher(ledger, lambda: next(calls), broken)
    publisher.start()
    try:
        viewer = Viewer(context, entry(place))
        feed(ledger, 3)
        notes = viewer.until(wire.BEAT)["notes"]
        assert any("planted" in note for note in notes)
        assert any("could not be renewed (StopIteration)" in note for note in publisher.notes)
        assert publisher.problem is None
        viewer.ask()
        viewer.until(wire.END)
        assert len(viewer.records) == 3
    finally:
        publisher.stop(0)


def test_a_record_without_its_essentials_is_a_counted_loss(viewer, ledger, publisher):
    viewer.until(wire.HELLO)
    ledger.push({"step": object(), "time": 0.0})
    ledger.push(step(2, loss=object()))
    viewer.until(wire.STEPS)
    assert [(record["seq"], record.get("loss")) for record in viewer.records.values()] == [(2, None)]
    viewer.heard.clear()
    wait_for(lambda: viewer.until(wire.BEAT)["dropped_records"] == 1)
    assert any(note.startswith("loss:") for note in viewer.last(wire.BEAT)["notes"])


def test_the_entry_tells_how_it_went(place, ledger, context):
    publisher = viewers.publisher(ledger, rank=1, world_size=2, agent="0.1.0")
    publisher.start()
    first = entry(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((place / f"{os.getpid()}.json").stat().st_mode) == 0o600
    assert (first["state"], first["exit_code"], first["last"]) == ("starting", None, None)
    assert (first["rank"], first["world_size"], first["agent"]) == (1, 2, "0.1.0")
    assert first["pid_start"] == wire.process_start(os.getpid())
    feed(ledger, 3)
    wait_for(lambda: entry(place)["state"] == "live")
    viewer = Viewer(context, first)
    viewer.until(wire.HELLO)
    ledger.push(step(4, loss=float("nan"), user={"a": float("inf"), "b": 1.0}))
    publisher.stop(3)
    over = entry(place)
    assert (over["state"], over["exit_code"]) == ("finished", 3)
    assert over["ended"] >= over["started"]
    assert over["last"]["hello"]["name"] == "test"
    assert over["last"]["record"]["step"] == 4
    assert over["last"]["record"]["user"] == {"b": 1.0}
    assert sorted(path.name for path in place.iterdir()) == [f"{os.getpid()}.json"]
    viewer.listen(0.2)
    assert 4 in viewer.records  # sent on the way out
    assert (viewer.last(wire.BEAT)["state"], viewer.last(wire.BEAT)["exit_code"]) == ("finished", 3)


def test_stop_is_quick_and_may_be_called_twice(place, ledger):
    publisher = viewers.publisher(ledger)
    publisher.start()
    start = time.monotonic()
    publisher.stop(0)
    publisher.stop(7)
    assert time.monotonic() - start < 0.5
    assert entry(place)["exit_code"] == 0


def test_detach_and_attach_again_in_one_process(place, ledger, context):
    for number in range(3):
        publisher = viewers.publisher(Ledger(), name=f"run {number}")
        publisher.start()
        assert publisher.problem is None
        viewer = Viewer(context, entry(place))
        assert viewer.until(wire.HELLO)["name"] == f"run {number}"
        viewer.close()
        publisher.stop(None)


def test_a_vanished_directory_is_made_again(publisher, place, context, ledger):
    feed(ledger, 3)
    shutil.rmtree(place.rename(place.with_name("away")))
    wait_for(lambda: (place / f"{os.getpid()}.json").exists() and (place / f"{os.getpid()}.live").exists())
    viewer = Viewer(context, entry(place))
    viewer.until(wire.HELLO)
    viewer.ask()
    assert viewer.until(wire.END)["seq"] == 3
    assert any("made again" in note for note in publisher.notes)


def test_no_pyzmq_is_a_problem_told_and_no_exception(place, ledger, monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    publisher = viewers.publisher(ledger)
    publisher.start()
    assert "zmq" in publisher.problem
    feed(ledger, 10)
    assert ledger.drain() == []


def test_a_clock_that_jumps_changes_nothing(publisher, viewer, ledger, monkeypatch):
    viewer.until(wire.HELLO)
    honest = time.time
    for shift in (-1e9, 1e9):
        monkeypatch.setattr(time, "time", lambda shift=shift: honest() + shift)
        before = len(viewer.heard)
        viewer.listen(1.3)
        beats = [message for topic, message in viewer.heard[before:] if topic == wire.BEAT]
        assert 1 <= len(beats) <= 2
        assert abs(beats[-1]["time"] - honest() - shift) < 5
    feed(ledger, 2)
    viewer.until(wire.STEPS)
    assert publisher.problem is None
