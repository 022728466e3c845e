"""``bsmon run``: the user's own training, unchanged, with the agent in it. This process becomes the training.

What is run, and how, is the launcher's business (``bsmon_agent.launch``); here its interpreter is found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
PROBE = "import importlib.util as u; print(*(int(bool(u.find_spec(name))) for name in ('bsmon_agent', 'torch')))"


def run(arguments: list[str]) -> int:
    if arguments[:1] not in (["-h"], ["--help"]):
        _become(*split(arguments))
    print(HELP, end="")
    return WELL


def split(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Our options, and what is handed over: they end at the first word that is none of them.

    argparse can't leave the rest alone (it drops a ``--`` and looks for options among the training's).
    """
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].partition("=")[0] in ("--name", "--python"):
        option, given, value = rest.pop(0).partition("=")
        if not given and not rest:
            raise CommandError(f"{option} needs a value", USAGE)
        options[option] = value if given else rest.pop(0)
    if not rest:
        raise CommandError("nothing to run: give a SCRIPT, `-m MODULE` or `-- COMMAND` (bsmon run --help)", USAGE)
    return options, rest


def _become(options: dict[str, str], target: list[str]) -> NoReturn:
    python = interpreter(options.get("--python"), target)
    name = ["--name", options["--name"]] if "--name" in options else []
    sys.stderr.flush()
    os.execv(python, [python, "-m", "bsmon_agent.launch", *name, *target])


def interpreter(named: str | None, target: list[str]) -> str:
    """The training's Python, with the agent in it; refuses with the cure where the agent is missing."""
    own = _of_command(target[1]) if target[:1] == ["--"] and len(target) > 1 else None
    first = _executable(named) if named else own or shutil.which("python") or shutil.which("python3") or sys.executable
    if has(first)[0]:
        return first
    if not named and not own and all(has(sys.executable)):  # bsmon lives in the training's environment, not activated
        print(f"bsmon: no agent in {first}; running in {sys.executable}", file=sys.stderr)
        return sys.executable
    raise CommandError(
        f"no agent in {first}, where the training would run; put it there with\n"
        f"    {first} -m pip install bsmon-agent\n"
        "or name another interpreter: bsmon run --python PYTHON ...",
        UNAVAILABLE,
    )


def _executable(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise CommandError(f"no interpreter {name}", USAGE)
    return path


def _of_command(command: str) -> str | None:
    """The Python that a command is or names in its first line (torchrun, accelerate, ...); None if it can't be told."""
    path = shutil.which(command)
    if path is None or Path(path).name.startswith("python"):
        return path
    try:
        with Path(path).open("rb") as file:
            first = file.readline(400).decode(errors="replace").strip()
    except OSError:
        return None
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    named = next((word for word in words if Path(word).name.startswith("python")), None)
    return shutil.which(named) if named else None


def has(python: str) -> tuple[bool, bool]:
    """Whether an interpreter finds the agent, and torch."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
    except OSError:
        return False, False
    agent, _, torch = done.stdout.strip().partition(" ")
    return agent == "1", torch == "1"
