"""``bsmon run``: the user's own training, unchanged, with the agent in it. This process becomes the training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from bsmon.commands.base import UNAVAILABLE, USAGE, WELL, CommandError

HELP = """\
usage: bsmon run [OPTIONS] SCRIPT [ARGS...]
       bsmon run [OPTIONS] -m MODULE [ARGS...]
       bsmon run [OPTIONS] -- COMMAND [ARGS...]

Runs a training unchanged, with the agent in it and in its children; exits with its exit code.

options:
  --name N         what to call the job (default: BSMON_NAME, else the script's name)
  --python PYTHON  the interpreter of the training (default: `python` on PATH)
"""
PROBE = "import importlib.util as u; print(int(bool(u.find_spec('bsmon_agent'))), int(bool(u.find_spec('torch'))))"


@dataclass
class Request:
    """The command line: our own options, and what is handed over untouched."""

    options: dict[str, str] = field(default_factory=dict)
    target: list[str] = field(default_factory=list)  # SCRIPT ARGS | -m MODULE ARGS | -- COMMAND ARGS


def parse(arguments: list[str]) -> Request:
    """Ours end at the first word that is no option of ours: everything after it is the training's own.

    argparse can't leave the rest alone (it drops a ``--`` and looks for options among the training's).
    """
    request, rest = Request(), list(arguments)
    while rest and rest[0].partition("=")[0] in ("--name", "--python"):
        option, given, value = rest.pop(0).partition("=")
        if not given:
            if not rest:
                raise CommandError(f"{option} needs a value", USAGE)
            value = rest.pop(0)
        request.options[option] = value
    request.target = rest
    _check(rest)
    return request


def _check(target: list[str]) -> None:
    head, *rest = target or [""]
    if not head or (head in ("-m", "--") and not rest):
        raise CommandError("nothing to run: give a SCRIPT, `-m MODULE` or `-- COMMAND` (see bsmon run --help)", USAGE)
    if head in ("-m", "--"):
        return
    if head.startswith("-"):
        raise CommandError(f"no option {head} (see bsmon run --help); a program goes after `--`", USAGE)
    if not Path(head).exists():
        raise CommandError(f"no script {head} in {Path.cwd()}; a program goes after `--`, a module after `-m`", USAGE)


def interpreter(request: Request) -> str:
    """The training's Python, with the agent in it; refuses with the cure where the agent is missing."""
    named = request.options.get("--python")
    if named:
        return _with_agent(_executable(named))
    if request.target[0] == "--":
        own = interpreter_of(request.target[1])
        if own:
            return _with_agent(own)
    first = shutil.which("python") or shutil.which("python3") or sys.executable
    if not has(first)[0] and all(has(sys.executable)):  # ours is the training's environment, only not activated
        print(f"bsmon: no agent in {first}; running in {sys.executable}", file=sys.stderr)
        return sys.executable
    return _with_agent(first)


def interpreter_of(command: str) -> str | None:
    """The Python that a command runs in: itself, or the one in its first line (torchrun, accelerate, …)."""
    path = shutil.which(command)
    if path is None:
        raise CommandError(f"no command {command} on PATH", USAGE)
    if Path(path).name.startswith("python"):
        return path
    with Path(path).open("rb") as file:
        first = file.readline(400).decode(errors="replace").split()
    words = [word.removeprefix("#!") for word in first if word not in ("#!", "#!/usr/bin/env", "-S")]
    if first[:1] and first[0].startswith("#!") and words and Path(words[0]).name.startswith("python"):
        return shutil.which(words[0])
    return None


def _executable(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise CommandError(f"no interpreter {name}", USAGE)
    return path


def has(python: str) -> tuple[bool, bool]:
    """Whether an interpreter finds the agent, and torch."""
    done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
    agent, _, torch = done.stdout.strip().partition(" ")
    return agent == "1", torch == "1"


def _with_agent(python: str) -> str:
    if not has(python)[0]:
        raise CommandError(
            f"no agent in {python}, where the training would run; put it there with\n"
            f"    {python} -m pip install bsmon-agent\n"
            "or name another interpreter: bsmon run --python PYTHON …",
            UNAVAILABLE,
        )
    return python


def command(python: str, target: list[str], name: str | None = None) -> list[str]:
    """The launcher's command line in the training's interpreter."""
    return [python, "-m", "bsmon_agent.launch", *(["--name", name] if name else []), *target]


def run(arguments: list[str]) -> int:
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP, end="")
        return WELL
    become(parse(arguments))


def become(request: Request) -> NoReturn:
    python = interpreter(request)
    sys.stderr.flush()
    os.execv(python, command(python, request.target, request.options.get("--name")))
