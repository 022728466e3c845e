"""What is loaded when: scripts don't pay for the screen, and a training pays for nothing until it trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("textual", "rich.console", "torch", "numpy", "asyncio", "bsmon.tui", "bsmon.demo")
CODE = """
import json, sys, threading, _thread
from bsmon.cli import main
threading.Timer(2.0, _thread.interrupt_main).start()  # `watch` runs until ctrl+c
code = main(json.loads(sys.argv[1]))
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
import os; sys.stderr.flush(); os._exit(0)
"""


def modules_after(arguments: list[str], directory: Path) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "BSMON_DIR": str(directory)},
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    "arguments",
    [["snapshot"], ["snapshot", "--json"], ["watch"], ["watch", "--json"], ["jobs"], ["diagnose"], ["doctor"], []],
)
def test_scripts_never_load_the_screen(arguments: list[str], tmp_path: Path) -> None:
    _, modules = modules_after(arguments, tmp_path)
    assert not modules.intersection(HEAVY)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"]])
def test_what_needs_no_jobs_loads_no_sockets(arguments: list[str], tmp_path: Path) -> None:
    _, modules = modules_after(arguments, tmp_path)
    assert not modules.intersection({"zmq", "msgspec", "pynvml", "psutil"})


def test_the_agent_loads_nothing_until_it_is_needed() -> None:
    code = "import sys, bsmon_agent; bsmon_agent.attach(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "zmq", "msgpack", "numpy", "asyncio", "bsmon"}.intersection(done.stdout.split())
