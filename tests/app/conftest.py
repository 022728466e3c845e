"""What the tests of the app share: a private runtime directory with short paths, and listening to it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agents import FakeAgent

from bsmon.sources.live import LiveSource
from bsmon.store import Fleet


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of this test alone; a Unix socket's path must be short."""
    directory = Path(tempfile.mkdtemp(prefix="bs", dir="/tmp"))
    monkeypatch.setenv("BSMON_DIR", str(directory))
    monkeypatch.setattr("bsmon_agent.wire.runtime_directories", lambda: [directory])
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def agent(runtime: Path) -> Iterator[Callable[..., FakeAgent]]:
    """Makes agents without a training; closed at the end."""
    made: list[FakeAgent] = []

    def make(**fields: object) -> FakeAgent:
        made.append(FakeAgent(runtime, **fields))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def heard(runtime: Path) -> Iterator[tuple[LiveSource, Fleet]]:
    """A fleet fed by a live source that listens to ``runtime``."""
    source, fleet = LiveSource(), Fleet()
    source.start(fleet.ingest)
    yield source, fleet
    source.stop()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Waits for a condition, at most ten seconds; fails if it does not come."""

    def wait(condition: Callable[[], object], seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)

    return wait
