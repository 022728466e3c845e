"""``bsmon doctor``: what works here, what does not, why, and the cure. Looks only; changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from bsmon import __version__
from bsmon.commands.base import UNAVAILABLE, WARNING, WELL, CommandError, Parser
from bsmon.commands.run import has, interpreter
from bsmon_agent import wire

if TYPE_CHECKING:
    from bsmon.sources.discovery import Entry

MARKS = {"ok": "  ", "note": "~ ", "warn": "! ", "bad": "X "}
LONGEST_SOCKET = "4194304.history"  # of the greatest pid that Linux gives
SMALLEST = (60, 15)  # columns and lines below which the screen shows a table only


class Finding(msgspec.Struct, omit_defaults=True):
    """One thing looked at. ``note``: nothing is lost by it; ``warn``: a part does not work; ``bad``: nothing works."""

    area: str
    state: Literal["ok", "note", "warn", "bad"]
    found: str
    cure: str | None = None


def doctor(arguments: list[str]) -> int:
    parser = Parser("bsmon doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(arguments)
    findings = examine()
    code = exit_code(findings)
    if options.json:
        shown = {"schema": 1, "version": __version__, "exit_code": code, "findings": msgspec.to_builtins(findings)}
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(lines(findings)))
    return code


def examine() -> list[Finding]:
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python, _packages, _training_python, _environment, _directories, _agents, _gpus, _terminal, _ptrace,
    )  # fmt: skip
    return [finding for check in checks for finding in check()]


def exit_code(findings: list[Finding]) -> int:
    states = {finding.state for finding in findings}
    return UNAVAILABLE if "bad" in states else WARNING if "warn" in states else WELL


def lines(findings: list[Finding]) -> Iterator[str]:
    yield f"bsmon {__version__}"
    for finding in findings:
        yield f"{MARKS[finding.state]}{finding.area:12}{finding.found}"
        if finding.cure:
            yield f"{'':14}-> {finding.cure}"


def _python() -> Iterator[Finding]:
    version = sys.version.split()[0]
    yield Finding("python", "ok", f"{version}, {sys.executable}, {sys.platform}")
    if not sys.platform.startswith("linux"):
        yield Finding("system", "warn", f"{sys.platform} is not tried", "watch from a Linux machine")


def _packages() -> Iterator[Finding]:
    names = ("bsmon-agent", "pyzmq", "msgspec", "psutil", "textual", "nvidia-ml-py")
    versions = {name: _version(name) for name in names}
    missing = [name for name, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    cure = f"{sys.executable} -m pip install {' '.join(missing)}" if missing else None
    yield Finding("packages", "bad" if missing else "ok", found, cure)
    agent = versions["bsmon-agent"]
    if agent and agent != __version__:
        cure = f"{sys.executable} -m pip install bsmon-agent=={__version__}"
        yield Finding("packages", "warn", f"bsmon {__version__} and bsmon-agent {agent} do not belong together", cure)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _training_python() -> Iterator[Finding]:
    """What ``bsmon run SCRIPT`` would run in."""
    try:
        python = interpreter(None, [])
    except CommandError as error:
        cause, _, rest = str(error).partition("; ")
        yield Finding("bsmon run", "warn", cause, " ".join(rest.split()))
        return
    torch = has(python)[1]
    cure = None if torch else f"{python} -m pip install torch, or `bsmon run --python PYTHON` with one that has it"
    yield Finding("bsmon run", "ok" if torch else "note", f"{python}{'' if torch else ' has no torch'}", cure)


def _environment() -> Iterator[Finding]:
    found = {name: value for name, value in os.environ.items() if name in ("BSMON", "BSMON_DIR", "BSMON_BUDGET")}
    if found.get("BSMON") == "0":
        yield Finding("environment", "warn", "BSMON=0 keeps the agent out of every training", "unset BSMON")
    elif found:
        yield Finding("environment", "note", " ".join(f"{name}={value}" for name, value in found.items()))


def _directories() -> Iterator[Finding]:
    """Every place an agent may use, in its order; it takes the first that serves."""
    usable = 0
    for directory in wire.runtime_directories():
        reason = _unusable(directory)
        if reason is None:
            usable += 1
            yield Finding("runtime dir", "ok", f"{directory}{' (agents here use this one)' * (usable == 1)}")
        elif os.path.lexists(directory) or str(directory) == os.environ.get("BSMON_DIR"):
            cure = f"remove or repair {directory}, or set BSMON_DIR to another, for bsmon and the training alike"
            yield Finding("runtime dir", "warn", f"{directory}: {reason}", cure)
        else:
            yield Finding("runtime dir", "ok" if usable else "note", f"{directory}: {reason}")
    if not usable:
        cure = "set BSMON_DIR to a short path that you may write to, for bsmon and the training alike"
        yield Finding("runtime dir", "bad", "no directory for the agent's sockets", cure)


def _unusable(directory: Path) -> str | None:
    """Why an agent could not put its sockets here; None if it could, making the directory if need be."""
    longest = len(os.fsencode(directory / LONGEST_SOCKET))
    if longest > wire.MAX_PATH:
        return f"too long for a socket's path ({longest} bytes, {wire.MAX_PATH} fit)"
    if os.path.lexists(directory):
        return wire.private(directory) or (None if _writable(directory) else "it cannot be written to")
    parent = directory.parent
    if str(directory) == os.environ.get("BSMON_DIR"):  # only there are parents made too
        parent = next(above for above in directory.parents if above.exists())
    if not parent.is_dir():
        return f"{parent} is not there"
    return None if _writable(parent) else f"it can't be made: {parent} cannot be written to"


def _writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK)


def _agents() -> Iterator[Finding]:
    from bsmon.sources.discovery import Scanner

    scan = Scanner().scan(wire.runtime_directories())
    states = [_state(found.entry) for found in scan.found]
    known = ("live", "starting", "finished", "gone without a word")
    counts = ", ".join(f"{states.count(state)} {state}" for state in known if state in states)
    cure = None if states else "bsmon run SCRIPT, or `import bsmon_agent; bsmon_agent.attach()` in it; or bsmon demo"
    yield Finding("agents", "ok" if states else "note", counts or "none has been here", cure)
    for path, reason in scan.refused.items():
        yield Finding("agents", "warn", f"{path}: {reason}")


def _state(entry: Entry) -> str:
    if entry.state == "finished" or entry.host != socket.gethostname():
        return entry.state
    started = wire.process_start(entry.pid)
    return entry.state if started is not None and started == entry.pid_start else "gone without a word"


def _gpus() -> Iterator[Finding]:
    from bsmon.sources.nvml import Nvml, driver
    from bsmon.sources.nvml_gpm import FIRST

    nvml = Nvml()
    sample = nvml.sample()
    if sample.reason is not None:
        broken = any(Path("/dev").glob("nvidia[0-9]*"))  # a GPU that is there should answer
        yield Finding("gpus", "warn" if broken else "note", *_split(sample.reason))
        return
    version = driver()
    for gpu in sample.gpus:
        missing = sorted(field for field, why in gpu.unavailable.items() if why != FIRST)
        without = f"; not given: {', '.join(missing)}" if missing else ""
        yield Finding("gpus", "ok", f"{gpu.index} {gpu.name} {gpu.uuid} (driver {version}){without}")
    for closed in nvml.closed:
        yield Finding("gpus", "warn", *_split(closed))
    nvml.close()


def _split(reason: str) -> tuple[str, str | None]:
    """A reason is cause; cure."""
    cause, _, cure = reason.partition("; ")
    return cause, cure or None


def _terminal() -> Iterator[Finding]:
    term, colour = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "")
    size = _size()
    inside = [
        name for name, variable in (("tmux", "TMUX"), ("screen", "STY"), ("ssh", "SSH_TTY")) if os.environ.get(variable)
    ]
    found = f"TERM={term} COLORTERM={colour} {size.columns}x{size.lines} {sys.stdout.encoding}"
    yield Finding("terminal", "ok", " in ".join([found, *inside]))
    if term in ("", "dumb"):
        yield Finding(
            "terminal", "note", f"TERM={term} has no screen: bsmon prints plain text", "export TERM=xterm-256color"
        )
    if size.columns < SMALLEST[0] or size.lines < SMALLEST[1]:
        yield Finding("terminal", "note", "small: the screen shows a table only", "80x24 shows charts too")
    if "utf" not in (sys.stdout.encoding or "").lower():
        yield Finding("terminal", "note", "not UTF-8: charts of braille can't be shown", "export LANG=C.UTF-8")
    if os.environ.get("NO_COLOR"):
        yield Finding("terminal", "note", "NO_COLOR is set: no colour", "unset NO_COLOR")


def _size() -> os.terminal_size:
    """Of the terminal, though standard output goes elsewhere."""
    for stream in (1, 2, 0):
        try:
            return os.get_terminal_size(stream)
        except OSError:
            continue
    return shutil.get_terminal_size()


def _ptrace() -> Iterator[Finding]:
    """Whether one process of ours may look into another: what attaching to a running training needs."""
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        yield Finding("ptrace", "ok", "no Yama: processes of the same user may be attached to")
        return
    if scope == "0" or (os.geteuid() == 0 and scope != "3"):
        yield Finding("ptrace", "ok", f"ptrace_scope {scope}")
    else:
        cure = "sudo sysctl kernel.yama.ptrace_scope=0" if scope != "3" else "it can't be changed until a reboot"
        yield Finding("ptrace", "note", f"ptrace_scope {scope}: no attaching to a process already running", cure)
