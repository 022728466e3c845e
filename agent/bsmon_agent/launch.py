"""``python -m bsmon_agent.launch [--name N] SCRIPT [ARGS…] | -m MODULE [ARGS…] | -- COMMAND [ARGS…]``

What ``bsmon run`` hands over to, in the interpreter of the training. This process becomes the training by ``exec``:
same pid, same terminal, its own signals and exit code. The agent comes along by a directory in front of PYTHONPATH
(see ``shim/sitecustomize.py``), so that children and ranks get it too.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

SHIM = str(Path(__file__).resolve().parent / "shim")
WRONG_COMMAND_LINE = 64
UNAVAILABLE = 69
USAGE = "give a SCRIPT [ARGS…], -m MODULE [ARGS…] or -- COMMAND [ARGS…]"


def main(arguments: list[str]) -> NoReturn:
    name, target = _split(arguments)
    command = _command(target)
    missing = [module for module in ("zmq", "msgpack") if importlib.util.find_spec(module) is None]
    if missing:
        cure = f"{sys.executable} -m pip install bsmon-agent"
        _refuse(f"{sys.executable} has no {' and no '.join(missing)}, which the agent needs; {cure}", UNAVAILABLE)
    _become(command, environment(dict(os.environ), name))


def environment(given: dict[str, str], name: str | None = None) -> dict[str, str]:
    """The environment of the training: the given one, and the shim's directory first on PYTHONPATH."""
    if given.get("BSMON") == "0":
        return given
    present = given.get("PYTHONPATH")
    if present is None:
        given["PYTHONPATH"] = SHIM
    elif SHIM not in present.split(os.pathsep):
        given["PYTHONPATH"] = SHIM + os.pathsep + present
    if name is not None:
        given["BSMON_NAME"] = name
    return given


def _split(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Our own option, and what is to be run."""
    name, rest = None, list(arguments)
    while rest and rest[0].partition("=")[0] == "--name":
        _, given, value = rest.pop(0).partition("=")
        if not given and not rest:
            _refuse("--name needs a value")
        name = value if given else rest.pop(0)
    return name, rest


def _command(target: list[str]) -> list[str]:
    """The command line to become. A script and a module run in this very interpreter, with its own options."""
    head, *rest = target or [""]
    if not head or (head in ("-m", "--") and not rest):
        _refuse(f"nothing to run; {USAGE}")
    if head == "--":
        return rest
    if head != "-m":
        if head.startswith("-"):
            _refuse(f"no option {head}; {USAGE}")
        if not Path(head).exists():
            _refuse(f"no such file: {head}")
    return [sys.executable, *_interpreter_options(), *target]


def _interpreter_options() -> list[str]:
    """What stood between the interpreter and ``-m bsmon_agent.launch``."""
    given = sys.orig_argv[1:]
    place = next((i for i in range(len(given) - 1) if given[i : i + 2] == ["-m", "bsmon_agent.launch"]), 0)
    return given[:place]


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would hand that on
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        _refuse(f"no such command: {command[0]}; is it installed, and on PATH?")
    except PermissionError:
        _refuse(f"{command[0]} may not be executed; make it executable (chmod +x), or name its interpreter")
    except OSError as error:
        _refuse(f"{command[0]} cannot be executed ({error.strerror}); name its interpreter, as in: -- sh {command[0]}")


def _refuse(message: str, code: int = WRONG_COMMAND_LINE) -> NoReturn:
    print(f"bsmon run: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
