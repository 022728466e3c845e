"""The demo: two real trainings that learn, drop tokens, take a share of a core, and never outlive who started them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.torch]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A runtime directory of our own: the host's other jobs are not ours."""
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as folder:
        yield {**os.environ, "BSMON_DIR": folder, "OMP_NUM_THREADS": "1"}


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bsmon", "demo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def bsmon(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bsmon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def snapshot(environment: dict[str, str], wait: float = 0.0) -> dict[str, Any]:
    done = bsmon(environment, "snapshot", "--json", "--wait", str(wait))
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def until(condition: Callable[[], Any], seconds: float) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)
    return found


def entries(environment: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in Path(environment["BSMON_DIR"]).glob("*.json")]


def running(environment: dict[str, str]) -> list[psutil.Process]:
    """The trainings that live, by their runtime directory: no other test's."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("BSMON_DIR") == environment["BSMON_DIR"]
            if ours and any(word.startswith("bsmon.demo.") for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_both_learn_drop_tokens_and_end_by_themselves(environment: dict[str, str]) -> None:
    demo = start(environment, "--steps", "60")
    output, errors = demo.communicate(timeout=120)
    assert demo.returncode == 0, errors
    assert "demo-dense" in output and "demo-moe" in output and "finished" in output
    assert running(environment) == []
    ended = {entry["name"]: entry for entry in entries(environment)}
    assert {name: (one["state"], one["exit_code"]) for name, one in ended.items()} == {
        "demo-dense": ("finished", 0),
        "demo-moe": ("finished", 0),
    }
    for one in ended.values():
        assert one["last"]["record"]["step"] == 60
        assert 1.5 < one["last"]["record"]["loss"] < 3.2  # from ln 103 = 4.6; both roots counted, the balance loss too


def test_what_a_viewer_sees_of_them(environment: dict[str, str]) -> None:
    demo = start(environment)
    try:
        dense, moe = until(lambda: measured(environment), 90)
        assert dense["state"] == moe["state"] == "live"
        assert (dense["batch"]["micro"], dense["batch"]["accumulation"], dense["batch"]["global_samples"]) == (8, 4, 32)
        assert (dense["batch"]["sequence_length"], dense["batch"]["global_tokens"]) == (64, 2048)
        assert dense["tokens_per_s"] > 0 and dense["grad_norm"] > 0 and dense["optimizer"] == "AdamW"
        assert dense["moe"] is None
        layers = moe["moe"]["layers"]
        assert [(layer["experts"], layer["top_k"]) for layer in layers] == [(8, 2), (8, 2)]
        for layer in layers:
            assigned, kept = layer["tokens_per_expert"], layer["kept_per_expert"]
            assert sum(assigned) == layer["assignments"] == 2048 * layer["sampled_steps"]
            assert layer["dropped_assignments"] == sum(assigned) - sum(kept) > 0
        assert 0.002 < moe["moe"]["dropped_rate"] < 0.3
        assert max(share(process) for process in running(environment)) < 0.5
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=30)
    assert running(environment) == []


def measured(environment: dict[str, str]) -> list[dict[str, Any]] | None:
    """Our two jobs (others may run on this host), the dense one first, once both have been counted for a while."""
    ours = {entry["pid"] for entry in entries(environment)}
    jobs = [job for job in snapshot(environment)["jobs"] if job["ranks"][0]["pid"] in ours]
    ready = len(jobs) == 2 and all((job["step"] or 0) > 20 for job in jobs)
    return sorted(jobs, key=lambda job: str(job["name"])) if ready else None


def share(process: psutil.Process, seconds: float = 3.0) -> float:
    """Of one core."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_nothing_outlives_the_one_who_started_it(
    number: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    demo = start({**environment, "TMPDIR": str(tmp_path)})
    until(lambda: len(running(environment)) == 2, 30)
    demo.send_signal(number)
    demo.communicate(timeout=30)
    until(lambda: not running(environment), 10)
    if number != signal.SIGKILL:
        assert demo.returncode == 128 + number
        assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_it_ends_with_the_screen(environment: dict[str, str]) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "bsmon", "demo"], {**environment, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
    seen = b""

    def shows(text: bytes) -> bool:
        nonlocal seen
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536)
        return text in seen

    until(lambda: shows(b"starting demo-dense, demo-moe"), 30)
    until(lambda: shows(b"\x1b[?1049h") and shows(b"demo-moe") and shows(b"LIVE"), 90)
    until(lambda: len(running(environment)) == 2, 5)
    os.write(terminal, b"q")
    until(lambda: shows(b"\x1b[?1049l"), 20)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert running(environment) == []


def test_a_training_that_dies_at_once_is_shown(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.99: cannot open shared object file')\n")
    demo = start({**environment, "PYTHONPATH": str(tmp_path)})
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 69 and re.search(r"demo-\w+ ended with 1", errors) and "libcudart.so.99" in errors
    assert running(environment) == []


def test_with_the_agent_switched_off_there_is_nothing_to_show(environment: dict[str, str]) -> None:
    done = bsmon({**environment, "BSMON": "0"}, "demo")
    assert done.returncode == 69 and "BSMON=0" in done.stderr


def test_without_torch_the_command_to_get_it_is_printed(environment: dict[str, str]) -> None:
    code = "import sys; sys.modules['torch'] = None; from bsmon.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 69 and "pip install 'bsmon[demo]'" in done.stderr and done.stdout == ""
