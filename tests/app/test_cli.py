"""The command line: what it understands, what it says otherwise, and the exit codes that scripts rely on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bsmon import __version__, cli
from bsmon.commands.base import CommandError
from bsmon.commands.run import interpreter, split


def bsmon(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bsmon", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_lists_every_command_and_exit_code(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, errors = outcome(capsys, word)
    assert (code, errors) == (0, "")
    assert all(command in shown for command in cli.COMMANDS)
    assert all(f"{number} " in shown for number in (0, 1, 2, 3, 64, 65, 69, 70, 77))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, "--version") == (0, f"bsmon {__version__}\n", "")


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, errors = outcome(capsys, command, "--help")
    assert (code, errors) == (0, "") and shown.startswith(f"usage: bsmon {command}")


@pytest.mark.parametrize(
    "arguments",
    [["snapshto"], ["--nonsense"], ["snapshot", "--wait"], ["snapshot", "--wait", "-1"], ["snapshot", "--wait", "nan"],
     ["watch", "--every", "x"], ["jobs", "--nonsense"], ["demo", "--steps", "1"], ["run"], ["run", "--name"]],
)  # fmt: skip
def test_a_wrong_command_line_is_64_and_nothing_on_stdout(arguments: list[str]) -> None:
    done = bsmon(*arguments)
    assert done.returncode == 64, done.stderr
    assert done.stdout == "" and done.stderr and "Traceback" not in done.stderr


def test_a_near_miss_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean `bsmon snapshot`?" in outcome(capsys, "snapshto")[2]


@pytest.mark.parametrize("command", cli.PLANNED)
def test_what_is_not_in_this_version_says_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, errors = outcome(capsys, command)
    assert code == 69 and shown == "" and f"not in version {__version__}" in errors


@pytest.mark.parametrize("command", [[], ["snapshot"], ["watch"]])
def test_other_hosts_are_not_in_this_version(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = outcome(capsys, *command, "ssh://node2")
    assert code == 69 and "ssh://node2" in errors


def test_our_own_fault_is_70_with_what_to_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "load", lambda command: lambda arguments: 1 // 0)
    code, _, errors = outcome(capsys, "jobs")
    assert code == 70 and "ZeroDivisionError" in errors and "please report" in errors


@pytest.mark.parametrize(("error", "code"), [(PermissionError("no"), 77), (KeyboardInterrupt(), 130)])
def test_other_ends(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "load", lambda _: command)
    assert cli.main(["jobs"]) == code


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    code = """if True:
        import sys
        from bsmon import cli
        cli.load = lambda command: lambda arguments: [print("x" * 1000) for _ in range(1000)] and 0
        sys.exit(cli.main(["jobs"]))
    """
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.read(10)
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(10), errors) == (141, b"")


# ---------------------------------------------------------------- run


def test_the_rest_of_the_line_is_the_trainings_own() -> None:
    assert split(["--name", "a", "t.py", "--name", "b", "--", "-x"]) == (
        {"--name": "a"},
        ["t.py", "--name", "b", "--", "-x"],
    )
    assert split(["--python=p", "-m", "mod"]) == ({"--python": "p"}, ["-m", "mod"])
    assert split(["--", "torchrun", "--name=x"]) == ({}, ["--", "torchrun", "--name=x"])


def test_run_becomes_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print(sys.argv[1:], os.environ['BSMON_NAME']); sys.exit(5)")
    done = bsmon("run", "--name", "n", "--python", sys.executable, str(script), "a", "--", "--json")
    assert (done.returncode, done.stdout) == (5, "['a', '--', '--json'] n\n"), done.stderr


def test_a_script_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = bsmon("run", "--python", sys.executable, str(tmp_path / "gone.py"))
    assert done.returncode == 64 and "gone.py" in done.stderr and done.stdout == ""


def fake_python(folder: Path, name: str, answer: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


def test_python_on_path_comes_first_if_the_agent_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = fake_python(tmp_path, "python", "1 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter(None, ["train.py"]) == python
    assert interpreter(sys.executable, ["train.py"]) == sys.executable


def test_without_an_agent_it_refuses_with_the_pip_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = fake_python(tmp_path, "python", "0 1")
    with pytest.raises(CommandError, match=f"{python} -m pip install bsmon-agent") as refused:
        interpreter(python, ["train.py"])
    assert refused.value.code == 69


def test_an_environment_that_is_not_activated_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = fake_python(tmp_path, "ours", "1 1")
    fake_python(tmp_path, "python", "0 1")
    monkeypatch.setattr(sys, "executable", ours)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter(None, ["train.py"]) == ours
    assert "running in" in capsys.readouterr().err


def test_a_commands_own_interpreter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = fake_python(tmp_path, "python3.99", "1 1")
    launcher = tmp_path / "torchrun"
    launcher.write_text("#!/usr/bin/env python3.99\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter(None, ["--", "torchrun", "x.py"]) == python
    assert interpreter(None, ["--", "python3.99", "x.py"]) == python
