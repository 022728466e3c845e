"""The command line: finds the command, loads only what it needs, and turns what happened into an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable

from bsmon import __version__
from bsmon.commands.base import (
    FORBIDDEN,
    INTERNAL,
    INTERRUPTED,
    PIPE_CLOSED,
    UNAVAILABLE,
    USAGE,
    WELL,
    CommandError,
)

# command -> (module, function, what the overview says of it)
COMMANDS = {
    "demo": ("bsmon.commands.screen", "demo", "two small real trainings, and the screen on them"),
    "run": ("bsmon.commands.run", "run", "run a training with the agent in it"),
    "jobs": ("bsmon.commands.observe", "jobs", "the jobs found, and trainings that have no agent"),
    "snapshot": ("bsmon.commands.observe", "snapshot", "the present state once, as a table or JSON"),
    "watch": ("bsmon.commands.observe", "watch", "a line per change, or JSON lines"),
    "record": ("bsmon.commands.recordings", "record", "keep what the jobs say in a file"),
    "replay": ("bsmon.commands.recordings", "replay", "the screen on a recording, from its beginning"),
    "report": ("bsmon.commands.recordings", "report", "a recording in one text screen"),
    "diagnose": ("bsmon.commands.diagnose", "diagnose", "the diagnosis of recorded observations"),
    "doctor": ("bsmon.doctor", "doctor", "what works here, what does not, and the cure"),
}
SCREEN = ("bsmon.commands.screen", "screen", "")
PLANNED = ["advise", "alerts", "attach", "branch", "compare", "detach", "export", "install-hook", "keys"]
PLANNED += ["relay", "serve", "sweep"]


def usage() -> str:
    lines = "\n".join(f"  {name:10}{what}" for name, (_, _, what) in COMMANDS.items())
    return f"""\
usage: bsmon                     the screen, on every job found on this host
       bsmon FILE                the same on a recording
       bsmon COMMAND [OPTIONS]   (bsmon COMMAND --help tells more)

What limits a training run, and what to change.

commands:
{lines}

options:
  --version   the version
  --help      this text

exit codes: 0 well; 1 a warning stands; 2 a critical alert stands; 3 no job; 64 wrong command line; 65 wrong input;
69 can't be done here; 70 our own fault; 77 not permitted. `run` exits as its training did.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        code = dispatch(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except CommandError as error:
        print(f"bsmon: {error}", file=sys.stderr)
        return error.code
    except SystemExit as error:  # from an argument parser
        return error.code if isinstance(error.code, int) else WELL
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush has somewhere to go
        return PIPE_CLOSED
    except PermissionError as error:
        print(f"bsmon: not permitted: {error}", file=sys.stderr)
        return FORBIDDEN
    except Exception:
        traceback.print_exc()
        print("bsmon: this is a fault of bsmon's own; please report the lines above", file=sys.stderr)
        return INTERNAL


def dispatch(arguments: list[str]) -> int:
    first, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if first in ("-h", "--help", "help"):
        print(usage(), end="")
        return WELL
    if first in ("-V", "--version"):
        print(f"bsmon {__version__}")
        return WELL
    if first in COMMANDS:
        return load(COMMANDS[first])(rest)
    if first and not first.startswith("-") and not is_source(first):
        raise unknown(first)
    return load(SCREEN)(arguments)


def load(command: tuple[str, str, str]) -> Callable[[list[str]], int]:
    module, function, _ = command
    found: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
    return found


def is_source(word: str) -> bool:
    return "://" in word or os.path.exists(word)  # noqa: PTH110 - pathlib is not needed for the rest


def unknown(word: str) -> CommandError:
    if word in PLANNED:
        return CommandError(
            f"`bsmon {word}` is not in version {__version__}; see bsmon --help for what is", UNAVAILABLE
        )
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean `bsmon {near[0]}`?" if near else "see bsmon --help"
    return CommandError(f"no command {word}; {hint}", USAGE)


if __name__ == "__main__":
    sys.exit(main())
