"""A recording as a source: it shows what was shown live, at any speed and moment, and sums itself up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agents import START, FakeAgent, beat, gone, hello, record, run_of, steps

from bsmon.cli import main
from bsmon.commands.recordings import _age, _size
from bsmon.model import Event, MoeCounts, NoiseSample, RouterInfo, Snapshot
from bsmon.services.keeper import Keeper
from bsmon.services.monitor import Monitor
from bsmon.services.recorder import Recorder
from bsmon.services.replay import Replay
from bsmon.sources.live import LiveSource
from bsmon.sources.recorded import Recording
from bsmon.sources.recording import RecordingSource
from bsmon.store import Fleet
from bsmon.store.fleet import METRICS

Until = Callable[..., None]


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


ROUTERS = [RouterInfo(name="layers.0.gate", experts=4, top_k=2, tag="exact")]
FINE = MoeCounts(layer=0, tokens=100, assignments=200, assigned=[50] * 4, dropped=0, calls=1)
DROPPING = MoeCounts(layer=0, tokens=100, assignments=200, assigned=[80, 40, 40, 40], dropped=60, calls=1)


def told() -> Iterator[tuple[float, Event]]:
    """Five minutes of two jobs: one starts to drop tokens after two, and fails after four; the other waits for data."""
    moe, dense = "a" * 8, "b" * 8
    yield 0.0, hello(moe, job="moe", name="moe", routers=ROUTERS, token_source="input_ids")
    yield 0.0, hello(dense, job="dense", name="dense", pid=101, token_source="input_ids")
    for second in range(1, 301):
        now = START + second
        numbers = (2 * second - 1, 2 * second)
        if second <= 240:
            counts = [FINE if second < 120 else DROPPING]
            noise = NoiseSample(total=1.0 + second % 3, parts=[0.5, 0.6])
            yield second, steps(*(record(n, loss=3 - n / 500, moe=counts, noise=noise) for n in numbers), session=moe)
            yield second, beat(now, moe)
        waiting = {"duration": 0.5, "data_wait": 0.3, "forward": 0.1, "backward": 0.05, "optimizer_time": 0.05}
        yield second, steps(*(record(n, loss=2.0, **waiting) for n in numbers), session=dense)
        yield second, beat(now, dense, dropped_records=3)
        if second == 241:
            yield second, gone(now, moe, finished=True, exit_code=1)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """``told``, recorded with a block a second."""
    return keep(tmp_path / "night.bsm", told())


def keep(path: Path, events: Iterator[tuple[float, Event]]) -> Path:
    clock = Clock()
    recorder = Recorder(path, [], clock=clock)
    recorder.start()
    for second, event in events:
        if START + second > clock.now:
            flush(recorder)
        clock.now = START + second
        recorder.ingest(event)
    recorder.stop()
    return path


def flush(recorder: Recorder) -> None:
    with recorder._lock:
        recorder._flush()


class Feed:
    """A live source on the test's clock."""

    name, problem, looked_at, settled = "recording", None, ["the test"], True

    def start(self, ingest: Callable[[Event], None]) -> None:
        self.ingest = ingest

    def stop(self) -> None:
        pass


def watched_live(until: float) -> tuple[Monitor, Clock]:
    """A monitor that was there all the time, looked at each second."""
    clock, feed = Clock(), Feed()
    monitor = Monitor([feed], clock=clock)
    monitor.start()
    for second, event in told():
        if second > until:
            break
        if START + second > clock.now:
            monitor.tick()
        clock.now = START + second
        feed.ingest(event)
    clock.now += 0.5
    monitor.tick()
    return monitor, clock


def opened(path: Path, until: Until, at: float | None = None) -> Replay:
    """Settled, and standing still if it begins at a moment."""
    replay = Replay(path, speed=1.0 if at is not None else None)
    if at is not None:
        replay._source.rewind(START + at)
        replay._source.paused = True
    replay.start()
    until(lambda: replay.tick() or replay.settled)
    return replay


def without_since(snapshot: Snapshot) -> Any:
    """A snapshot less when verdicts and alerts were found: who comes later looks back in longer steps."""
    plain = json.loads(msgspec.json.encode(msgspec.structs.replace(snapshot, time=0.0)))
    for job in plain["jobs"]:
        job["regime"].pop("since")
    for alert in plain["alerts"]:
        del alert["since"], alert["id"]
    return plain


@pytest.mark.parametrize("moment", [60.5, 180.5, 250.5])
def test_a_replay_shows_what_was_shown_live(kept: Path, until: Until, moment: float) -> None:
    live, clock = watched_live(moment - 0.5)
    replay = opened(kept, until, at=moment)
    assert replay.snapshot().time == pytest.approx(clock.now, abs=0.01)
    assert without_since(replay.snapshot()) == without_since(live.snapshot())
    for job in live.snapshot().jobs:
        for metric in METRICS:
            if metric in ("phi", "load_cv"):
                continue  # noted at each look, not heard
            bounds = (START, START + moment, 40)
            assert replay.series(job.id, metric, *bounds) == live.series(job.id, metric, *bounds)
    replay.stop()


def test_the_store_is_the_same_to_the_last_field(kept: Path, until: Until) -> None:
    live, found = Fleet(), Fleet()
    for _, event in told():
        live.ingest(event)
    source = RecordingSource(kept)
    source.start(found.ingest)
    until(lambda: source.settled)
    source.stop()
    assert source.clock() == START + 300 and source.over and source.problem is None
    for moment in (START + 30, START + 130, START + 300):
        assert found.jobs(moment) == live.jobs(moment)


def test_the_newest_is_the_same_without_the_rest(tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    def long() -> Iterator[tuple[float, Event]]:
        yield 0.0, hello()
        for second in range(1, 1501):
            yield second, run_of(2, first=2 * second - 1)

    path = keep(tmp_path / "long", long())
    part = opened(path, until)
    monkeypatch.setattr("bsmon.sources.recorded.Survey.key_before", lambda known, moment: 0)
    whole = opened(path, until)
    assert (part.fleet.oldest() or 0.0) <= START + 1500 - 600
    assert part.snapshot() == whole.snapshot()
    assert part.snapshot().jobs[0].step == 3000
    early = ("job1", "step_time", START, START + 300, 1)
    assert part.series(*early) == [None] and whole.series(*early) != [None], "and the rest was not read"


def test_it_plays_at_its_speed_stops_and_goes_where_it_is_told(kept: Path, until: Until) -> None:
    replay = Replay(kept, speed=100.0)
    began = time.monotonic()
    replay.start()
    assert replay.title == "REPLAY 100x"
    until(lambda: replay.tick() or replay.snapshot().time > START + 100)
    assert 0.7 < time.monotonic() - began < 3
    assert replay.snapshot().jobs[0].step == pytest.approx(2 * (replay.snapshot().time - START), abs=2)
    replay.hold()
    stood = replay._source.clock()
    time.sleep(0.2)
    assert replay._source.clock() == stood and "paused" in replay.title
    for moment in (250.0, 30.0):
        replay.seek(START + moment)
        until(lambda: replay.tick() or replay.settled)
        assert replay.snapshot().time == START + moment
        states = {job.name: job.state for job in replay.snapshot().jobs}
        assert states == {"moe": "finished" if moment == 250 else "live", "dense": "live"}
        assert {job.step for job in replay.snapshot().jobs} <= {2 * moment, 480}
    replay.seek(START - 1e6)
    until(lambda: replay.tick() or replay.settled)
    assert replay.snapshot().time == START
    replay.hold()
    until(lambda: replay.tick() or replay.over)
    assert replay.title == "REPLAY over" and replay.snapshot().time == START + 300
    replay.stop()


def test_alerts_are_raised_at_any_speed_when_they_were(kept: Path, until: Until) -> None:
    live, _ = watched_live(238)
    drops = {alert.where: alert for alert in live.snapshot().alerts if alert.rule == "drop_rate"}
    assert drops
    replay = Replay(kept, speed=200.0)  # most of a minute goes by between two looks of the screen
    replay.start()
    until(lambda: replay.tick() or time.sleep(0.23) or replay.snapshot().time > START + 180)
    found = {alert.where: alert for alert in replay.snapshot().alerts if alert.rule == "drop_rate"}
    replay.stop()
    assert found.keys() == drops.keys()
    assert all(found[where].since == pytest.approx(drops[where].since, abs=6) for where in drops)


def test_it_is_followed_while_it_is_written(tmp_path: Path, until: Until) -> None:
    path, clock = tmp_path / "a", Clock()
    recorder = Recorder(path, [], clock=clock)
    recorder.start()
    recorder.ingest(hello())
    flush(recorder)
    replay = opened(path, until)
    for seq in range(1, 4):
        clock.now = START + seq / 2
        recorder.ingest(run_of(1, first=seq))
        flush(recorder)
        until(lambda seq=seq: replay.tick() or replay.snapshot().jobs[0].step == seq)
        assert replay.snapshot().time == clock.now and not replay.over
    recorder.stop()
    until(lambda: replay.over)
    replay.stop()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_commands_take_a_recording_for_a_source(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "snapshot", "--json", str(kept))
    jobs = {job["name"]: job for job in json.loads(out)["jobs"]}
    assert code == 2 and jobs["moe"]["exit_code"] == 1 and jobs["dense"]["step"] == 600
    assert {job["source"] for job in jobs.values()} == {"recording"}
    assert run(capsys, str(kept))[1] == run(capsys, "snapshot", str(kept))[1] != ""
    code, out, _ = run(capsys, "watch", str(kept))
    assert code == 0 and "moe  finished  step 480" in out, "and it ends, as nobody writes it"


def test_without_a_terminal_a_replay_prints_what_changes(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "replay", "--speed", "200", str(kept))
    lines = out.splitlines()
    assert code == 0
    order = ["moe  live", "raised: 30.0%", "moe  live -> finished with exit code 1"]
    places = [next(n for n, line in enumerate(lines) if text in line) for text in order]
    assert places == sorted(places)


def test_the_morning_after(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "report", str(kept))
    assert (code, err) == (2, "")
    assert len(out.splitlines()) <= 40 and max(map(len, out.splitlines())) <= 100 and "\x1b" not in out
    text = " ".join(out.split())
    assert "X moe ended with exit code 1 at" in text and "after 4m01" in text, "did it run"
    assert "128 tok/s in the median" in text and "500ms a step" in text, "how fast"
    assert "input-bound 9" in text, "what was it limited by"
    assert "data wait 60% of the step" in text and "change more" in text, "what to change"
    when = time.strftime("%m-%d %H:%M", time.localtime(START + 240))
    assert f"{when}" in text and "ended with exit code 1 at step 480, still so at the end" in text, "what happened when"
    assert "assignments dropped" in text
    assert "cut off" not in out and "damage" not in out


def test_a_report_says_what_is_not_there(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) * 2 // 3])
    out = run(capsys, "report", str(kept))[1]
    assert "cut off" in out and "no complete block" in out
    assert "live at the end of the recording" in out


def test_an_old_job_is_only_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def events() -> Iterator[tuple[float, Event]]:
        yield 0.0, hello("c" * 8, job="old", name="old", started=START - 900, time=START - 900)
        yield 0.0, gone(START - 600, "c" * 8, finished=True, exit_code=1)
        yield 0.0, hello()
        for second in range(1, 30):
            yield second, run_of(2, first=2 * second - 1)

    code, out, _ = run(capsys, "report", str(keep(tmp_path / "a", events())))
    assert code == 0 and "1 job had ended before" in out and "old" not in out


def test_wrong_input_is_65_and_names_cause_and_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("my notes\n")
    for command in (["report"], ["replay"], ["snapshot"], ["watch"], []):
        code, out, err = run(capsys, *command, str(text))
        assert (code, out) == (65, "") and "is not a recording" in err and "bsmon record" in err
    for command in ("report", "replay", "snapshot"):
        code, _, err = run(capsys, command, str(tmp_path / "nowhere"))
        assert code == 65 and "No such file" in err
    assert run(capsys, "record", str(text))[0] == 65 and text.read_text() == "my notes\n"
    assert run(capsys, "report", str(tmp_path))[0] == 65
    assert run(capsys, "snapshot", str(text), str(text))[0] == 64
    assert run(capsys, "replay")[0] == run(capsys, "replay", "--speed", "0", str(text))[0] == 64
    assert run(capsys, "record", "--max-size", "12", "x")[0] == run(capsys, "record", "--max-age", "soon", "x")[0] == 64


def test_sizes_and_ages_as_people_write_them() -> None:
    assert (_size("2G"), _size("1.5m"), _size("2000000")) == (2 << 30, 1.5 * 2**20, 2e6)
    assert (_age("12h"), _age("90"), _age("7d")) == (43200, 90, 604800)


def recorder_process(path: Path, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bsmon", "record", str(path)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BSMON_DIR": str(directory)},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_record_hears_an_agent_until_it_is_told_to_end(
    runtime: Path, tmp_path: Path, agent: Callable[..., FakeAgent], until: Until, number: signal.Signals
) -> None:
    path = tmp_path / "a"
    training = agent(name="gpt2")
    for seq in range(1, 11):
        training.step(seq, tell=False, time=time.time() - 1 + seq / 10)
    process = recorder_process(path, runtime)
    until(training.viewed, 20)
    for seq in range(11, 14):
        training.step(seq)
    time.sleep(0.5)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert len(err.splitlines()) <= 3 and f"bsmon report {path}" in err
    recording = Recording(path)
    records = [
        one.seq
        for arrived in recording.events()
        if getattr(arrived.event, "session", "") == training.session and hasattr(arrived.event, "records")
        for one in arrived.event.records
    ]
    assert records == list(range(1, 14)), "the history, what came after, and nothing twice"
    assert recording.ended


def test_the_screen_keeps_a_recording_of_its_own(
    runtime: Path, tmp_path: Path, agent: Callable[..., FakeAgent], until: Until
) -> None:
    training = agent(name="gpt2")
    training.step(1, tell=False)
    monitor = Monitor([], keeper=Keeper(lambda: [LiveSource()], tmp_path / "state" / "kept"))
    assert monitor.record().startswith("recording into ") and monitor.title == "LIVE, recording"
    until(training.viewed)
    training.step(2)
    time.sleep(0.3)
    assert monitor.record().startswith("recorded ") and monitor.title == "LIVE"
    (path,) = (tmp_path / "state" / "kept").iterdir()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    replay = opened(path, until)
    assert [job.step for job in replay.snapshot().jobs if job.name == "gpt2"] == [2]
    assert "already" in replay.record()
    replay.stop()
    (tmp_path / "file").touch()
    nowhere = Monitor([], keeper=Keeper(lambda: [], tmp_path / "file"))
    assert "nothing is recorded" in nowhere.record() and nowhere.title == "LIVE"


def test_a_disk_that_is_full_from_the_start_is_69(runtime: Path) -> None:
    code = subprocess.run(
        ["bash", "-c", f"ulimit -f 0; exec {sys.executable} -m bsmon record {runtime}/a"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert code.returncode == 69 and "File too large; nothing was recorded" in code.stderr
