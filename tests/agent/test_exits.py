"""Exit codes, as seen from inside, against what the process really returned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AGENT = str(Path(__file__).resolve().parents[2] / "agent")
WATCH = f"""
import sys
sys.path.insert(0, {AGENT!r})
from bsmon_agent import exits
exits.watch(lambda code: print("code", code))
"""

THREAD = "import threading\nt = threading.Thread(target=sys.exit, args=(9,))\nt.start()\nt.join()\n"  # ends only itself

ENDS = {
    "": 0,
    "pass": 0,
    "def main(): return 0\nmain()": 0,
    "sys.exit()": 0,
    "sys.exit(0)": 0,
    "sys.exit(3)": 3,
    "sys.exit(True)": 1,
    "sys.exit(256)": 0,
    "sys.exit(-1)": 255,
    "sys.exit('a message')": 1,
    "def main(): sys.exit(4)\nmain()": 4,
    "1 / 0": 1,
    "import warnings\nraise RuntimeError": 1,
    "try:\n    sys.exit(5)\nexcept SystemExit:\n    pass": 0,
    "try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(6)": 6,
    "sys.excepthook = lambda *error: None\n1 / 0": 1,
    THREAD: 0,
}
UNKNOWN = {"raise SystemExit(3)": 3, "raise SystemExit": 0, "exit(2)": 2, THREAD + "raise SystemExit(3)": 3}


def run(program, *options):
    line = [sys.executable, *options, "-c", program] if not options else [sys.executable, *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("end", "code"), ENDS.items(), ids=range(len(ENDS)))
def test_the_code_is_the_real_one(end, code):
    done = run(WATCH + end)
    assert done.returncode == code
    assert done.stdout == f"code {code}\n"


@pytest.mark.parametrize(("end", "code"), UNKNOWN.items())
def test_where_it_leaves_no_trace_it_is_unknown_and_no_guess(end, code):
    done = run(WATCH + end)
    assert done.returncode == code
    assert done.stdout == "code None\n"


def test_a_keyboard_interrupt_that_nobody_caught_is_what_the_shell_says():
    done = run(WATCH + "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(5)")
    assert done.returncode == -2
    assert done.stdout == "code 130\n"
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(7)", 7), ("1 / 0", 1)])
def test_a_module_run_with_m(tmp_path, end, code):
    (tmp_path / "job.py").write_text(WATCH + end)
    line = [sys.executable, "-m", "job"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, f"code {code}\n")


def test_watched_from_deep_inside_a_call():
    """As it happens in a training: the first optimizer is made somewhere below main()."""
    done = run(
        WATCH.replace("exits.watch", "late = lambda: exits.watch") + "def main():\n    late()\n    sys.exit(5)\nmain()"
    )
    assert done.stdout == "code 5\n"


def test_callbacks_run_newest_first_and_one_that_fails_stops_none():
    done = run(
        WATCH
        + "exits.watch(lambda code: 1 / 0)\nexits.watch(lambda code: print('first'))\n"
        + "gone = lambda code: print('gone')\nexits.watch(gone)\nexits.forget(gone)"
    )
    assert done.stdout == "first\ncode 0\n"
    assert done.stderr == ""


def test_the_default_of_a_termination_stays():
    done = run(WATCH + "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)")
    assert (done.returncode, done.stdout) == (-15, "")


def test_a_forked_child_calls_nobody():
    done = run(WATCH + "import os\npid = os.fork()\nif pid == 0: sys.exit(3)\nos.waitpid(pid, 0)")
    assert done.stdout == "code 0\n"


WORKER = """
import multiprocessing, sys
def work(end):
    sys.path.insert(0, {agent!r})
    from bsmon_agent import exits
    exits.watch(lambda code: print("code", code, flush=True))
    if end == "raise":
        raise RuntimeError
    if end:
        sys.exit(int(end))
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    process = context.Process(target=work, args=("{end}",))
    process.start()
    process.join()
    print("really", process.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize(("end", "code"), [("", 0), ("3", 3), ("raise", 1)])
def test_a_worker_of_multiprocessing(tmp_path, method, end, code):
    (tmp_path / "job.py").write_text(WORKER.format(agent=AGENT, method=method, end=end))
    done = run("", str(tmp_path / "job.py"))
    told, really = done.stdout.split("\n")[:2]
    assert really == f"really {code}"
    unknown = method == "fork" and sys.version_info >= (3, 13)
    assert told == ("code None" if unknown else f"code {code}")
