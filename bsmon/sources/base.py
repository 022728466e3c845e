"""What a source is: a thing that hears of training processes or devices and hands typed events on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bsmon.model import Event

Ingest = Callable[[Event], None]


class Source(Protocol):
    """One thread between ``start`` and ``stop``; it calls ``ingest`` with events in order per process."""

    name: str

    @property
    def problem(self) -> str | None:
        """What is wrong at the moment, with its cause and cure; None when all is well."""

    @property
    def looked_at(self) -> list[str]:
        """Where the source looked and what it found there, one line a place."""

    @property
    def settled(self) -> bool:
        """It has looked once, and everything found then has told its history or been given up on."""

    def start(self, ingest: Ingest) -> None: ...

    def stop(self) -> None: ...
