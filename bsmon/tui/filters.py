"""The filter language: ``text``, ``host:``, ``verdict:``, ``>warn``; several words must all hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bsmon.draw.marks import Standing
from bsmon.model import Job

Test: TypeAlias = Callable[[Job, Standing], bool]

_AT_LEAST = {"crit": "X", "warn": "X!", "note": "X!~"}
"""The marks that are at least as bad."""


def _test(word: str) -> Test:
    if word.startswith(">"):
        marks = _AT_LEAST.get(word[1:], "X!~")
        return lambda job, state: state.mark in marks
    for field in ("host:", "verdict:", "state:"):
        if word.startswith(field):
            wanted = word.removeprefix(field)
            return lambda job, state: wanted in _field(field, job, state)
    return lambda job, state: word in job.name.lower()


def _field(field: str, job: Job, state: Standing) -> str:
    if field == "host:":
        return job.host.lower()
    return state.word.lower() if field == "verdict:" else job.state


def parse(text: str) -> Test:
    """A test that a job passes if it passes every word of ``text``."""
    tests = [_test(word) for word in text.lower().split()]
    return lambda job, state: all(test(job, state) for test in tests)
