"""A process that has no file descriptor or thread left goes on without the agent: ZeroMQ would abort it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FORK = """
import os, resource, sys, threading, time
sys.path.insert(0, {tests!r})
import viewers, bsmon_agent.station
from bsmon_agent.ledger import Ledger

def descriptors(left):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.dup(2))
    except OSError:
        for descriptor in taken[:left]:
            os.close(descriptor)

def threads(left):
    os.setresgid({nobody}, {nobody}, {nobody})
    os.setresuid({nobody}, {nobody}, {nobody})
    resource.setrlimit(resource.RLIMIT_NPROC, (left + 1, left + 1))

def training(left):
    {limit}(left)
    publisher = viewers.publisher(Ledger())
    publisher.start()
    time.sleep(0.1)
    publisher.stop(0)
    assert "cannot show" in (publisher.problem or "cannot show")
    return 10 if publisher.problem is None else 0

for left in range({most}):
    child = os.fork()
    if child == 0:
        os.environ["BSMON_DIR"] += f"/{{left}}"
        os._exit(training(left))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def ends(limit: str, most: int, place: Path) -> list[str]:
    """How trainings ended that had 0, 1, 2, … of something left: 0 without an agent, 10 with one, -6 aborted."""
    place.chmod(0o777)
    code = FORK.format(tests=str(Path(__file__).parent), limit=limit, most=most, nobody=54321)
    environ = {**os.environ, "BSMON_DIR": str(place)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as directory:
        yield Path(directory)


@pytest.mark.real
def test_with_few_file_descriptors_left(place: Path) -> None:
    seen = ends("descriptors", 32, place)
    assert seen[:2] == ["0", "0"]
    assert seen[-1] == "10"
    assert set(seen) == {"0", "10"}


@pytest.mark.root
@pytest.mark.real
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_with_few_threads_left(place: Path) -> None:
    seen = ends("threads", 6, place)
    assert seen[0] == "0"
    assert seen[-1] == "10"
    assert set(seen) == {"0", "10"}
