"""Waiting for an import that the program makes itself."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from bsmon_agent.waiting import when_imported


@pytest.fixture
def late_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "bsmon_late_module"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_calls_once_after_the_import_and_leaves_no_trace(late_module: str) -> None:
    before, seen = list(sys.meta_path), []
    when_imported(late_module, lambda: seen.append(sys.modules[late_module].value))
    assert seen == []
    module = importlib.import_module(late_module)
    assert seen == [1]
    assert sys.meta_path == before
    assert "exec_module" not in vars(module.__spec__.loader)
    importlib.reload(module)
    assert seen == [1]


def test_looking_for_a_spec_is_not_an_import(late_module: str) -> None:
    seen: list[int] = []
    when_imported(late_module, lambda: seen.append(1))
    assert importlib.util.find_spec(late_module) is not None
    assert importlib.util.find_spec(late_module) is not None
    assert seen == []
    importlib.import_module(late_module)
    assert seen == [1]


def test_calls_at_once_for_what_is_imported() -> None:
    seen: list[int] = []
    when_imported("json", lambda: seen.append(1))
    assert seen == [1]


def test_a_missing_module_stays_missing() -> None:
    before = list(sys.meta_path)
    when_imported("bsmon_no_such_module", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("bsmon_no_such_module")
    sys.meta_path[:] = before
