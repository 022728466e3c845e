"""``bsmon diagnose`` on files and streams: one answer an observation, whatever else is among them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from bsmon.cli import main

CASES = Path(__file__).parents[1] / "data" / "regime_cases.jsonl"
KEYS = {"id", "label", "confidence", "evidence", "missing", "advice", "ignored"}
INPUT_BOUND = {"id": "mine", "observed": {"step_time_s": 10.4, "data_time_s": 10.2, "sparkle": 1}}


def test_every_case_gets_its_line_and_the_contracts_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(CASES), "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    asked = [json.loads(line) for line in CASES.read_text().splitlines()]
    assert [answer["id"] for answer in answers] == [case["id"] for case in asked]
    assert all(set(answer) == KEYS for answer in answers)
    assert all(answer["missing"] for answer in answers if answer["label"] is None)


def test_one_object_over_many_lines_from_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(INPUT_BOUND, indent=2).encode())))
    assert main(["diagnose", "-", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["id"], answer["label"], answer["ignored"]) == ("mine", "input_bound", ["sparkle"])


def test_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(INPUT_BOUND))
    assert main(["diagnose", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("mine: input_bound") and "why" in shown and "ignored  sparkle" in shown


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[1]",
        "7",
        '{"id": 1}',
        '{"observed": 3}',
        '{"observed": {}, "contrast": [1]}',
        "[" * 100000,
        '{"observed": {"\\ud800": 1}}',
    ],
)
def test_a_bad_line_is_named_and_the_others_are_answered(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(f"{json.dumps(INPUT_BOUND)}\n\n{bad}\n{json.dumps(INPUT_BOUND)}\n")
    assert main(["diagnose", str(path), "--json"]) == 65
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert "line 3" in shown.err and len(shown.err) < 500


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e400", '"nan"', "null", "[]", "{}", "true"])
def test_odd_values_break_nothing(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = ", ".join(f'"{name}": {value}' for name in ("step_time_s", "data_time_s", "loss_now", "gpu", "mfu"))
    path = tmp_path / "odd.json"
    path.write_text(f'{{"observed": {{{fields}}}}}')
    assert main(["diagnose", str(path), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))


def test_what_an_observation_says_does_nothing_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hostile.json"
    hostile = "\x1b]0;title\x07\x1b[31mred\x9b2J\u202e\r"
    observed = {**INPUT_BOUND["observed"], hostile: 1, "gpu": hostile, "loss_now": hostile}
    path.write_text(json.dumps({"id": hostile, "observed": observed}))
    assert main(["diagnose", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "input_bound" in shown and "red" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert main(["diagnose", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == hostile


def test_nothing_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("gone", "empty", "binary"):
        assert main(["diagnose", str(tmp_path / name)]) == 65
        assert name in capsys.readouterr().err
