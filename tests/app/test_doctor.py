"""The doctor: each place, package and device with its state, and a cure wherever there is one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from agents import FakeAgent

from bsmon import doctor
from bsmon.cli import main
from bsmon.doctor import Finding, examine, exit_code


def found(area: str) -> list[Finding]:
    return [finding for finding in examine() if finding.area == area]


def test_json_and_text_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code and {"python", "packages", "runtime dir"} <= {f["area"] for f in told["findings"]}
    assert main(["doctor"]) == code
    text = capsys.readouterr().out
    assert all(finding["found"] in text for finding in told["findings"])


def test_exit_codes() -> None:
    assert exit_code([Finding("a", "ok", ""), Finding("b", "note", "")]) == 0
    assert exit_code([Finding("a", "warn", "")]) == 1
    assert exit_code([Finding("a", "warn", ""), Finding("b", "bad", "")]) == 69


def test_the_first_directory_that_serves_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BSMON_DIR", str(tmp_path / "not" / "yet"))
    first = found("runtime dir")[0]
    assert first.state == "ok" and "agents here use this one" in first.found
    assert not (tmp_path / "not").exists()


def test_a_directory_open_to_others_is_said_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("BSMON_DIR", str(tmp_path))
    first = found("runtime dir")[0]
    assert first.state == "warn" and f"chmod 700 {tmp_path}" in first.found and "BSMON_DIR" in str(first.cure)


def test_a_path_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BSMON_DIR", str(tmp_path / ("x" * 100)))
    assert "too long" in found("runtime dir")[0].found


def test_no_directory_at_all_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(doctor.wire, "runtime_directories", lambda: [blocked])
    findings = found("runtime dir")
    assert [finding.state for finding in findings] == ["warn", "bad"]
    assert exit_code(findings) == 69


def test_a_foreign_entry_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("BSMON_DIR", str(tmp_path))
    (tmp_path / "1234.json").write_text("{}")
    warned = [finding for finding in found("agents") if finding.state == "warn"]
    assert len(warned) == 1 and "1234.json" in warned[0].found


def test_agents_are_counted_by_what_became_of_them(agent: Callable[..., FakeAgent]) -> None:
    agent()
    agent(pid=2**22 - 1)  # an entry of a process that is gone
    (told,) = found("agents")
    assert told.found == "1 live, 1 gone without a word"


def test_a_missing_package_is_bad_and_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "pyzmq" else "1")
    packages = found("packages")[0]
    assert packages.state == "bad" and str(packages.cure).endswith("pip install pyzmq")


def test_versions_that_do_not_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "9.9")
    assert any("do not belong together" in finding.found for finding in found("packages"))


@pytest.mark.parametrize(
    ("variable", "value", "said"), [("TERM", "dumb", "plain text"), ("NO_COLOR", "1", "no colour")]
)
def test_the_terminal(variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    assert any(said in finding.found for finding in found("terminal"))


def test_agent_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BSMON", "0")
    assert found("environment")[0].cure == "unset BSMON"


def test_nothing_is_changed_by_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BSMON_DIR", str(tmp_path / "new"))
    examine()
    assert os.listdir(tmp_path) == []  # noqa: PTH208
