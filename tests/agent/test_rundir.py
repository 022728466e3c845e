"""The runtime directory: which one is taken, why others are not, what is cleared away."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bsmon_agent import rundir, wire

NOBODY = 54321  # an unprivileged user that no machine has


@pytest.fixture
def top(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as directory:
        monkeypatch.delenv("BSMON_DIR", raising=False)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield Path(directory)


def first():
    notes: list[str] = []
    return next(rundir.candidates(notes), None), notes


def test_bsmon_dir_comes_first_and_is_made_with_its_parents(top, monkeypatch):
    monkeypatch.setenv("BSMON_DIR", str(top / "a/b"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(top))
    assert first() == (top / "a/b", [])
    assert stat.S_IMODE((top / "a/b").stat().st_mode) == 0o700


def test_then_the_runtime_directory_of_the_login(top, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(top))
    assert first() == (top / "bsmon", [])


def test_a_login_that_ended_is_not_made_again_by_us(top, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(top / "gone"))
    directory, notes = first()
    assert directory != top / "gone/bsmon"
    assert not (top / "gone").exists()
    assert "cannot be made" in notes[0]


def test_where_nobody_logs_in_nothing_is_said_of_it(top, monkeypatch):
    monkeypatch.setattr(wire, "runtime_directories", lambda: [top / "run/user/0/bsmon", top / "d"])
    assert first() == (top / "d", [])


def test_the_umask_does_not_matter(top, monkeypatch):
    monkeypatch.setenv("BSMON_DIR", str(top / "d"))
    before = os.umask(0)
    try:
        assert first()[0] == top / "d"
        assert stat.S_IMODE((top / "d").stat().st_mode) == 0o700
    finally:
        os.umask(before)


def squat_file(path):
    path.write_text("")


def squat_link(path):
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.parent / "elsewhere")


def squat_open(path):
    path.mkdir(mode=0o755)


@pytest.mark.parametrize(
    ("squat", "reason"),
    [(squat_file, "not a directory"), (squat_link, "not a directory"), (squat_open, "chmod 700")],
)
def test_a_squatted_directory_is_passed_over_and_said(top, monkeypatch, squat, reason):
    monkeypatch.setenv("BSMON_DIR", str(top / "d"))
    squat(top / "d")
    directory, notes = first()
    assert directory != top / "d"
    assert str(top / "d") in notes[0]
    assert reason in notes[0]


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to somebody else")
def test_a_directory_of_somebody_else_is_passed_over(top, monkeypatch):
    monkeypatch.setenv("BSMON_DIR", str(top / "d"))
    (top / "d").mkdir(mode=0o700)
    os.chown(top / "d", NOBODY, NOBODY)
    directory, notes = first()
    assert directory != top / "d"
    assert f"belongs to uid {NOBODY}" in notes[0]


def test_a_path_too_long_for_a_socket_is_passed_over(top, monkeypatch):
    long = top / ("x" * 100)
    monkeypatch.setenv("BSMON_DIR", str(long))
    directory, notes = first()
    assert directory != long
    assert "107" in notes[0]
    fits = top / "y"
    fits = fits.with_name("y" * (wire.MAX_PATH - len(os.fsencode(top)) - 1 - len(f"/{os.getpid()}.history")))
    monkeypatch.setenv("BSMON_DIR", str(fits))
    assert first()[0] == fits
    rundir.listen(fits / f"{os.getpid()}.history").close()


def test_a_relative_directory_survives_a_change_of_directory(top, monkeypatch):
    monkeypatch.chdir(top)
    monkeypatch.setenv("BSMON_DIR", "here")
    directory, _ = first()
    assert directory == top / "here"


def test_an_entry_is_written_whole_or_not_at_all(top):
    path = top / "1.json"
    rundir.write_entry(path, {"a": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(TypeError):
        rundir.write_entry(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [*top.iterdir()] == [path]


def test_an_entry_stays_under_what_a_reader_takes(top):
    rundir.write_entry(top / "1.json", {"pid": 1, "last": {"record": {"moe": [10**15] * 100_000}}})
    assert json.loads((top / "1.json").read_text()) == {"pid": 1, "last": None}


def test_finite_leaves_out_what_json_cannot_say():
    value = {
        "a": float("nan"),
        "b": [1.0, float("inf")],
        "c": {"d": float("-inf"), "e": 1.5, "f": None},
        "g": [{"h": 2}],
    }
    assert rundir.finite(value) == {"c": {"e": 1.5, "f": None}, "g": [{"h": 2}]}


def leave(directory, pid, pid_start, age=0.0, host=None):
    """What a process leaves when it is killed."""
    entry = directory / f"{pid}.json"
    entry.write_text(json.dumps({"host": host or socket.gethostname(), "pid_start": pid_start}))
    for end in (".live", ".history"):
        rundir.listen(entry.with_suffix(end)).close()
    os.utime(entry, (time.time() - age,) * 2)


def names(directory):
    return {path.name for path in directory.iterdir()}


def test_what_dead_processes_left_is_cleared_away(top):
    dead = 2**22 + 1  # beyond the kernel's largest pid
    mine = os.getpid()
    leave(top, dead, 1)
    leave(top, dead + 1, 1, age=2 * rundir.KEEP_SECONDS)
    leave(top, dead + 2, 1, host="another host", age=2 * rundir.KEEP_SECONDS)
    leave(top, mine, wire.process_start(mine))
    leave(top, os.getppid(), 1)  # a pid that was given out again
    (top / "notes.txt").write_text("the user's own")
    rundir.clear(top)
    away = {f"{dead}.json", f"{os.getppid()}.json"}
    stay = {f"{pid}{end}" for pid in (dead + 2, mine) for end in (".json", ".live", ".history")}
    assert names(top) == away | stay | {"notes.txt"}


def test_only_so_many_entries_of_the_dead_stay(top):
    dead = 2**22 + 1
    for number in range(rundir.KEEP_ENTRIES + 10):
        leave(top, dead + number, 1, age=number)
    rundir.clear(top)
    assert names(top) == {f"{dead + number}.json" for number in range(rundir.KEEP_ENTRIES)}


def pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def huge(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


def nested(path):
    path.write_text("[" * 100_000)


def folder(path):
    path.mkdir()


@pytest.mark.parametrize("make", [pipe, endless, huge, nested, folder])
def test_whatever_bears_the_name_of_an_entry_neither_blocks_nor_stops_a_training(top, make):
    dead = 2**22 + 1
    for end in (".json", ".tmp", ".live"):
        make(top / f"{dead}{end}")
    make(top / f"{os.getpid()}.tmp")
    rundir.clear(top)
    if make is not folder:
        rundir.write_entry(top / f"{os.getpid()}.json", {"a": 1})
        assert names(top) - {f"{dead}.json"} == {f"{os.getpid()}.json"}
        assert (top / f"{os.getpid()}.json").read_text() == '{"a": 1}'


TRAINING = """
import os, sys, time
sys.path[:0] = [{tests!r}, {agent!r}]
import viewers, bsmon_agent.station
from bsmon_agent.ledger import Ledger
os.setgroups([]) if {user} else None
os.setresgid({user}, {user}, {user})
os.setresuid({user}, {user}, {user})
ledger = Ledger()
publisher = viewers.publisher(ledger)
publisher.start()
for number in range(1, 6):
    ledger.push(viewers.step(number, user=dict.fromkeys(map(str, range(60)), 1.0)))
    time.sleep(0.02)
time.sleep({pause})
print(publisher.problem, *publisher.notes, sep="|")
"""


def training(environ, user=None, pause=0.0, before=""):
    """A process that publishes five steps, as somebody else if wanted; what it has to say about it.

    It becomes somebody else when all is imported: the interpreter may lie where others may not read.
    """
    import bsmon_agent

    places = {"tests": str(Path(__file__).parent), "agent": str(Path(bsmon_agent.__file__).parents[1])}
    code = before + TRAINING.format(**places, pause=pause, user=os.getuid() if user is None else user)
    environ = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)


@pytest.fixture
def commons():
    """The directory in /tmp that is left to nobody when all others fail."""
    directory = Path(f"/tmp/bsmon-{NOBODY}")
    shutil.rmtree(directory, ignore_errors=True)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


as_nobody = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


@pytest.mark.root
@as_nobody
@pytest.mark.real
def test_an_unwritable_directory_as_an_unprivileged_user(top, commons):
    top.chmod(0o755)
    (top / "d").mkdir(mode=0o500)
    os.chown(top / "d", NOBODY, NOBODY)
    done = training({"BSMON_DIR": str(top / "d")}, user=NOBODY)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("None|")
    assert f"{top}/d passed over: it cannot be written to" in done.stdout
    assert commons.stat().st_uid == NOBODY
    assert [path.suffix for path in commons.iterdir()] == [".json"]


@pytest.mark.root
@as_nobody
@pytest.mark.real
def test_nowhere_to_write_as_an_unprivileged_user(top, commons):
    commons.mkdir(mode=0o700)  # by root: to nobody it is squatted
    done = training({"BSMON_DIR": "/proc/nowhere"}, user=NOBODY)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "no runtime directory can be used; set BSMON_DIR" in done.stdout
    assert "belongs to uid 0" in done.stdout


@pytest.mark.root
@as_nobody
@pytest.mark.real
def test_a_disk_that_is_full_from_the_start_is_passed_over(top, commons):
    """A file system with room for sockets, and none for an entry."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size=4k,mode=0700,uid={NOBODY}", "tmpfs", str(top)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no tmpfs may be mounted here")
    try:
        (top / "ballast").write_bytes(bytes(4096))
        done = training({"BSMON_DIR": str(top / "d")}, user=NOBODY)
        assert f"{top}/d passed over: No space left on device" in done.stdout
        assert done.stdout.startswith("None|")  # it is seen elsewhere
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        subprocess.run(["umount", str(top)], check=True)


LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"


@pytest.mark.real
def test_a_disk_that_takes_nothing_leaves_the_training_alone(top):
    environ = {"BSMON_DIR": str(top / "d"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = training(environ, before=LIMIT.format(size=0))
    assert (done.returncode, done.stderr) == (0, "")
    assert "File too large" in done.stdout


@pytest.mark.real
def test_a_disk_that_fills_up_during_the_training_is_a_note(top):
    """The first entry fits, the next one, which holds a record, does not."""
    environ = {"BSMON_DIR": str(top / "d"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = training(environ, before=LIMIT.format(size=700), pause=1.5)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("None|")
    assert "cannot be written: File too large" in done.stdout
    assert json.loads(next((top / "d").glob("*.json")).read_text())["state"] == "starting"
