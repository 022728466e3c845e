"""Recordings on the disk: every complete block is read back, whatever happened to the writer or the file."""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agents import SESSION, START, beat, gone, hello, record, run_of, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmon.model import Event, Gpu, GpuSample, MoeCounts, NoiseSample
from bsmon.services import recorder as recorders
from bsmon.services.recorder import Recorder
from bsmon.services.recording_file import RecordingFile
from bsmon.sources import blocks
from bsmon.sources.decode import RefusedError
from bsmon.sources.recorded import Recording, older_part, survey

MOE = MoeCounts(layer=0, tokens=8, assignments=16, assigned=[4] * 4, dropped=1, entropy=0.5)
NOISE = NoiseSample(total=1.0, parts=[0.5, 0.25])
GPU = Gpu(uuid="GPU-1", index=0, utilization=0.5, throttle=["sw_power_cap"], unavailable={"sm_active": "no GPM"})
EVERY: list[Event] = [
    hello(),
    steps(record(1, loss=float("nan"), moe=[MOE], noise=NOISE, user={"reward": 0.5}), record(2)),
    beat(START + 1, notes=["a note"]),
    GpuSample(time=START + 1, host="node1", gpus=[GPU]),
    gone(START + 2, finished=True, exit_code=3),
]


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def blocks_in(path: Path, count: int, recording: int = 7) -> list[bytes]:
    """A file of ``count`` blocks with one step in each; returns them."""
    made = []
    for number in range(count):
        kept = blocks.entry(START + number, run_of(1, first=number + 1))
        assert kept is not None
        made.append(blocks.pack(recording, number, 0, (START + number, START + number), [kept]))
    path.write_bytes(b"".join(made))
    return made


def seqs(path: Path) -> tuple[list[int], Recording]:
    """The steps that can be read."""
    recording = Recording(path)
    return [arrived.event.records[0].seq for arrived in recording.events()], recording  # type: ignore[union-attr]


def test_every_kind_of_event_comes_back_as_it_was_with_its_arrival(tmp_path: Path) -> None:
    clock = Clock()
    recorder = Recorder(tmp_path / "a", [], clock=clock)
    recorder.start()
    for event in EVERY:
        clock.now += 0.5
        recorder.ingest(event)
    recorder.stop()
    recording = Recording(tmp_path / "a")
    found = list(recording.events())
    assert [arrived.time - START for arrived in found] == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert [repr(arrived.event) for arrived in found] == [repr(event) for event in EVERY]  # repr: NaN is not NaN
    assert recording.ended and recording.problem is None
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_file_cut_at_any_byte_gives_all_blocks_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made = blocks_in(path, 4)
    whole, ends = path.read_bytes(), [0]
    for block in made:
        ends.append(ends[-1] + len(block))
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends) - 1
        if not complete:
            with pytest.raises(RefusedError, match="holds no complete block yet"):
                Recording(path)
            continue
        found, recording = seqs(path)
        assert found == list(range(1, complete + 1))
        assert recording.damaged == cut - ends[complete]
        assert ("no complete block" in (recording.problem or "")) is (cut > ends[complete])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_costs_its_own_block_and_is_said(tmp_path_factory: Any, place: int, change: int) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped"
    made = blocks_in(path, 5)
    whole = bytearray(path.read_bytes())
    place %= len(whole)
    whole[place] ^= change
    path.write_bytes(whole)
    hit = next(number for number in range(5) if place < sum(map(len, made[: number + 1])))
    found, recording = seqs(path)
    assert found == [number + 1 for number in range(5) if number != hit]
    # The last block's header is the one damage that looks like a file which was cut off.
    assert recording.problem and (recording.missing == 1 or hit in (0, 4))


def test_blocks_after_a_stretch_of_rubbish_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made = blocks_in(path, 3)
    rubbish = random.Random(1).randbytes(3 << 20) + blocks.MAGIC * 1000
    path.write_bytes(made[0] + rubbish + made[1] + made[2][:-1])
    found, recording = seqs(path)
    assert found == [1, 2]
    assert recording.damaged == len(rubbish) + len(made[2]) - 1


@pytest.mark.parametrize("content", [b"", b"\x89BS", b"a text\n", os.urandom(100_000), b"\x89BSM" * 5000])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(RefusedError, match=r"not a recording|no complete block"):
        Recording(tmp_path / "a")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(RefusedError, match="not a file"):
            Recording(path)
    with pytest.raises(RefusedError, match="not a file"):
        RecordingFile(tmp_path / "pipe", 1e9, 1e9)


def sealed(payload: bytes, **fields: Any) -> bytes:
    """A block with right checksums around a payload that may be anything."""
    head = {"schema": 1, "flags": 0, "recording": 7, "number": 1, "first": START, "last": START}
    head |= {"length": len(payload), "size": len(payload), "crc": zlib.crc32(payload), **fields}
    packed = struct.pack("<4sHHQQddIII", blocks.MAGIC, *head.values())
    return packed + struct.pack("<I", zlib.crc32(packed)) + payload


def packed(value: Any, **fields: Any) -> bytes:
    whole = value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
    return sealed(zlib.compress(whole), size=fields.pop("size", len(whole)), **fields)


HOSTILE = {
    "a bomb": packed(b"\0" * (64 << 20), size=1000),
    "an honest bomb is over the size": packed(b"\0" * (64 << 20)),
    "not compressed": sealed(b"rubbish"),
    "not all there": sealed(zlib.compress(b"x" * 100)[:-4], size=100),
    "another checksum": packed([], crc=1),
    "no list": packed({"a": 1}),
    "a list of billions": packed(b"\xdd\xff\xff\xff\xff"),
    "deep": packed(b"\x91" * 100_000),
    "an unknown kind": packed([[START, "exec", {}]]),
    "a time that is none": packed([[float("nan"), "beat", {"schema": 1, "session": SESSION, "time": 1.0}]]),
    "moments the wrong way round": packed([], first=START + 1),
    "endless": packed([], last=float("inf")),
}


@pytest.mark.parametrize("block", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_block_is_left_out_and_costs_little(tmp_path: Path, block: bytes) -> None:
    path = tmp_path / "a"
    made = blocks_in(path, 3)
    path.write_bytes(made[0] + block + made[2])
    began = time.process_time()
    found, recording = seqs(path)
    assert found == [1, 3]
    assert recording.missing == 1
    assert time.process_time() - began < 1.0


def test_hostile_events_are_refused_as_from_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made = blocks_in(path, 1)
    name = "\x1b]0;owned\x07[bold]run"
    events = [
        [START, "hello", {**msgspec.to_builtins(hello()), "name": name}],
        [START, "hello", {**msgspec.to_builtins(hello()), "schema": 99}],
        [START, "gone", {"session": "../../etc", "time": START, "finished": True}],
        [START, "gpus", {"time": START, "host": "h", "gpus": [{}] * 5000}],
        [START + 1e6, "gone", {"session": SESSION, "time": START, "finished": True}],
    ]
    path.write_bytes(made[0] + packed(events, last=START + 5))
    recording = Recording(path)
    found = list(recording.events())[1:]
    assert [type(arrived.event).__name__ for arrived in found] == ["Hello", "Gone"]
    assert found[0].event.name == "(bold)run"  # type: ignore[union-attr]
    assert found[1].time == START + 5, "no event is later than its block says"
    assert recording.problem and "3 events" in recording.problem


def test_a_newer_schema_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(packed([], schema=2))
    with pytest.raises(RefusedError, match=r"schema 2.*update bsmon"):
        Recording(tmp_path / "a")


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made = blocks_in(path, 3)
    path.write_bytes(made[0])
    recording = Recording(path)
    assert len(list(recording.events())) == 1
    with path.open("ab") as file:
        for block in made[1:]:
            for half in (block[:70], block[70:]):
                assert list(recording.events()) == [], "half a block is none yet"
                file.write(half)
                file.flush()
            assert len(list(recording.events())) == 1
    assert recording.problem is None


def test_a_recorder_goes_on_where_another_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made = blocks_in(path, 3)
    path.write_bytes(made[0] + made[1] + made[2][:-5])
    recorder = Recorder(path, [])
    recorder.start()
    recorder.ingest(run_of(1, first=9))
    recorder.stop()
    found, recording = seqs(path)
    assert found == [1, 2, 9]
    assert recording.problem is None and recording.ended


def test_no_other_file_is_written_over(tmp_path: Path) -> None:
    for name in ("thesis.tex", "a.1"):
        (tmp_path / name).write_text("\\documentclass")
    for path in (tmp_path / "thesis.tex", tmp_path / "a"):
        with pytest.raises(RefusedError, match="is not a recording"):
            Recorder(path, [])
    assert (tmp_path / "thesis.tex").read_text() == (tmp_path / "a.1").read_text() == "\\documentclass"


def test_only_one_recorder_at_a_time(tmp_path: Path) -> None:
    first = Recorder(tmp_path / "a", [])
    first.start()
    with pytest.raises(BlockingIOError):
        Recorder(tmp_path / "a", [])
    assert Recording(tmp_path / "a").written_now()
    first.stop()
    assert not Recording(tmp_path / "a").written_now()


def spoken(recorder: Recorder, clock: Clock, first: int, count: int, width: int = 200) -> None:
    """So many steps, one a second, each in a block of its own, hard to compress."""
    chance = random.Random(first)
    for seq in range(first, first + count):
        clock.now = START + seq
        counts = [chance.randrange(10**6) for _ in range(width)]
        recorder.ingest(run_of(1, first=seq, time=clock.now, moe=[MoeCounts(layer=0, assigned=counts)]))
        with recorder._lock:
            recorder._flush()


@pytest.mark.parametrize("bounds", [{"max_size": 40_000.0}, {"max_age": 100.0}], ids=["size", "age"])
def test_it_keeps_to_its_bounds_and_what_is_left_can_be_understood(tmp_path: Path, bounds: dict[str, float]) -> None:
    path, clock = tmp_path / "a", Clock()
    recorder = Recorder(path, [], clock=clock, **bounds)
    recorder.start()
    recorder.ingest(hello())
    follower: list[int] = []
    reading = Recording(path)
    for first in range(1, 301, 10):
        spoken(recorder, clock, first, 10)
        follower += [one.event.records[0].seq for one in reading.events() if hasattr(one.event, "records")]
        if "max_size" in bounds:
            assert sum(part.stat().st_size for part in tmp_path.iterdir()) < 42_000
    recorder.stop()
    assert sorted(set(follower)) == list(range(1, 301)), "who reads along misses nothing when it turns"
    recording = Recording(path)
    events = [arrived.event for arrived in recording.events()]
    assert type(events[0]).__name__ == "Hello", "the newest parts say who speaks"
    kept = [event.records[0].seq for event in events if hasattr(event, "records")]
    assert kept[-1] == 300 and kept == sorted(kept)
    assert 10 < len(kept) < 110
    assert recording.problem is None
    assert older_part(path).stat().st_mode & 0o777 == path.stat().st_mode & 0o777 == 0o600


def test_the_newest_can_be_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "KEY_EVERY", 50.0)
    path, clock = tmp_path / "a", Clock()
    recorder = Recorder(path, [], clock=clock)
    recorder.start()
    recorder.ingest(hello())
    spoken(recorder, clock, 1, 300, width=2)
    recorder.stop()
    known = survey(path)
    assert (known.first, known.last) == (START, START + 300)
    recording = Recording(path)
    recording.skip_to(known.key_before(START + 200))
    events = [arrived.event for arrived in recording.events()]
    seen = [event.records[0].seq for event in events if hasattr(event, "records")]
    assert type(events[0]).__name__ == "Hello"
    assert 150 <= seen[0] <= 200 and seen[-1] == 300
    assert recording.missing == 0


WRITE = """
import sys, resource, time
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from agents import hello, run_of
from bsmon.services import recorder
from bsmon.services.recorder import Recorder
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
recorder.FLUSH_EVERY = 0.001
kept = Recorder(Path(sys.argv[1]), [])
kept.start()
kept.ingest(hello())
for seq in range(1, 20001 if not limit else 3001):
    kept.ingest(run_of(1, first=seq, loss=seq / 7))
    if not seq % 10:
        with kept._lock:
            kept._flush()
        print(seq, flush=True)
kept._stop.set()
print("problem", kept.problem)
"""


def writer(path: Path, limit: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITE, str(path), str(limit), str(Path(__file__).parent)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.real
def test_sigkill_costs_no_block_that_was_complete(tmp_path: Path) -> None:
    chance = random.Random(2)
    for attempt in range(8):
        path = tmp_path / str(attempt)
        process = writer(path)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 60)):
            told = int(process.stdout.readline())
        time.sleep(chance.random() / 100)
        process.send_signal(signal.SIGKILL)
        told = max([told, *(int(line) for line in process.communicate()[0].split("\n") if line)])
        recording = Recording(path)
        found = [arrived.event for arrived in recording.events()]
        read = [one.seq for event in found if hasattr(event, "records") for one in event.records]
        assert read == list(range(1, len(read) + 1)) and len(read) >= told
        assert recording.missing == 0 and not recording.ended


@pytest.mark.real
def test_a_full_disk_leaves_whole_blocks_and_says_so(tmp_path: Path) -> None:
    path, limit = tmp_path / "a", 30_000
    told = writer(path, limit).communicate(timeout=60)[0]
    assert f"problem {path}: File too large" in told and "events lost, still trying" in told
    recording = Recording(path)
    found = [arrived.event for arrived in recording.events()]
    read = [one.seq for event in found if hasattr(event, "records") for one in event.records]
    assert read[:100] == list(range(1, 101))
    assert read == sorted(set(read)), "a smaller block may still fit where a larger one did not"
    whole = read == list(range(1, len(read) + 1))
    assert (recording.problem is None) == whole, "what did not fit was taken back; a gap is told"
    assert whole or "never written" in str(recording.problem)
    assert path.stat().st_size <= limit


def test_when_there_is_room_again_it_goes_on(tmp_path: Path) -> None:
    """In this process, so the limit must be put back at once."""
    path, clock = tmp_path / "a", Clock()
    recorder = Recorder(path, [], clock=clock)
    recorder.start()
    recorder.ingest(hello())
    spoken(recorder, clock, 1, 5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (recorder.size + 100, before[1]))
    try:
        spoken(recorder, clock, 6, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert recorder.lost == 3 and "File too large" in (recorder.problem or "")
    spoken(recorder, clock, 9, 2)
    assert recorder.problem is None
    recorder.stop()
    recording = Recording(path)
    events = [arrived.event for arrived in recording.events()]
    read = [event.records[0].seq for event in events if hasattr(event, "records")]
    assert sorted(set(read)) == [1, 2, 3, 4, 5, 8, 9, 10], "8 was newest when it became possible to write again"
    assert recording.missing and "never written" in (recording.problem or "")


Until = Callable[[Callable[[], object]], None]


def test_quiet_is_recorded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Until) -> None:
    monkeypatch.setattr(recorders, "FLUSH_EVERY", 0.02)
    path, clock = tmp_path / "a", Clock()
    recorder = Recorder(path, [], clock=clock)
    recorder.start()
    clock.now += 11
    until(lambda: survey(path).last == START + 11)
    recorder.stop()
