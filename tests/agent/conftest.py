"""A session in this process: real torch, a ledger that is read at once, and no publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


class Watched:
    """A session with its records."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self._records: list[dict[str, Any]] = []

    @property
    def records(self) -> list[dict[str, Any]]:
        self.session.loop.read()
        self._records += self.session.ledger.drain()
        return self._records

    def all(self, field: str) -> list[Any]:
        """One field of every record, None where it is absent."""
        return [record.get(field) for record in self.records]

    @property
    def notes(self) -> list[str]:
        return list(self.session.dispatch.notes)

    @property
    def hello(self) -> dict[str, Any]:
        return dict(self.session.describe())


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """Starts a session; every one is closed again, and torch is then as it was."""
    torch = pytest.importorskip("torch")
    from bsmon_agent.session import Session

    torch.set_num_threads(1)
    sessions = []

    def start(**options: Any) -> Watched:
        session = Session(publish=False, **options)
        sessions.append(session)
        session.install()
        return Watched(session)

    yield start
    for session in reversed(sessions):
        session.close()
