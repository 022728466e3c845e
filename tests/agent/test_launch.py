"""``python -m bsmon_agent.launch``: the program runs exactly as without it, and refusals say cause and cure."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bsmon_agent import launch

LAUNCH = [sys.executable, "-m", "bsmon_agent.launch"]
AGENT = str(Path(launch.__file__).parents[1])


def run(line, cwd=None, **environ):
    given = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "BSMON", "BSMON_NAME")}
    return subprocess.run(line, cwd=cwd, env={**given, **environ}, capture_output=True, text=True, timeout=60)


def both(arguments, cwd, options=(), **environ):
    """The same with and without us."""
    plain = run([sys.executable, *options, *arguments], cwd, **environ)
    ours = run([sys.executable, *options, *LAUNCH[1:], *arguments], cwd, **environ)
    return plain, ours


TELL = """
import os, signal, sys
main = sys.modules["__main__"]
print(__name__, __file__, sys.argv, sys.path, sys.flags, sys.executable, os.getcwd())
print(main.__spec__ and main.__spec__.name, main.__package__, sys.stdin.isatty(), sys.stdout.line_buffering)
print({name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "_", "SHLVL")})
print([signal.getsignal(number) for number in (2, 13, 15, 25)], "sitecustomize" in sys.modules)
print(sorted(sys.modules))
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__main__.py").write_text(TELL)
    return tmp_path


@pytest.mark.parametrize("options", [(), ("-X", "dev"), ("-O", "-u"), ("-W", "ignore", "-B")])
@pytest.mark.parametrize(
    "arguments",
    [["tell.py", "a", "--name", "b", "-m", "--"], ["./pack", "x"], ["-m", "tell", "--", "y"], ["-m", "pack"]],
)
def test_a_script_sees_what_it_always_saw(home, arguments, options):
    plain, ours = both(arguments, home, options)
    assert plain.returncode == 0
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr


@pytest.mark.parametrize(
    "end",
    ["", "import sys; sys.exit(3)", "raise SystemExit('so')", "def f(): 1 / 0\nf()", "this is no python", "exit(9)"],
)
def test_output_traceback_and_exit_code_pass(home, end):
    (home / "end.py").write_text(end)
    for arguments in (["end.py"], ["-m", "end"]):
        plain, ours = both(arguments, home)
        assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGABRT])
def test_a_death_by_signal_is_the_same_death(home, number):
    (home / "die.py").write_text(f"import os\nos.kill(os.getpid(), {int(number)})\nimport time\ntime.sleep(5)")
    plain, ours = both(["die.py"], home)
    assert ours.returncode == plain.returncode == -number
    assert ours.stderr == plain.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sent_to_us_reaches_the_training(home, number):
    (home / "wait.py").write_text(
        f"import signal, sys, time\nsignal.signal({int(number)}, lambda *a: sys.exit(42))\n"
        "print('ready', flush=True)\ntime.sleep(30)"
    )
    started = subprocess.Popen([*LAUNCH, "wait.py"], cwd=home, stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.readline()
    started.send_signal(number)
    assert started.wait(10) == 42
    started.stdout.close()


def test_a_broken_pipe_kills_a_command_as_in_a_shell():
    line = "yes | head -1; echo ${PIPESTATUS[0]}"
    assert run([*LAUNCH, "--", "bash", "-c", line]).stdout == run(["bash", "-c", line]).stdout == "y\n141\n"


def test_spawned_workers_run(home):
    (home / "job.py").write_text(
        "import multiprocessing as m\ndef f(x): return x * x\n"
        "if __name__ == '__main__':\n    m.set_start_method('spawn')\n    print(m.Pool(2).map(f, [1, 2, 3]))"
    )
    plain, ours = both(["job.py"], home)
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr) == ("[1, 4, 9]\n", "")


@pytest.mark.parametrize("content", ["import builtins; builtins.MINE = 7", "import nothing_of_that_name", "1 / 0"])
def test_the_users_own_sitecustomize_runs_as_ever(home, content):
    (home / "site").mkdir()
    (home / "site/sitecustomize.py").write_text(content)
    (home / "look.py").write_text(
        "import builtins, sys\n"
        "print(getattr(builtins, 'MINE', 0), getattr(sys.modules.get('sitecustomize'), '__file__', 0))"
    )
    plain, ours = both(["look.py"], home, PYTHONPATH=str(home / "site"))
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr * 2  # once in the launcher, which is a Python too


def test_children_get_the_agent_through_a_command(home):
    (home / "child.py").write_text("import sys; print([getattr(f, '__name__', 0) for f in sys.meta_path][0])")
    (home / "job.sh").write_text(f"{sys.executable} child.py\n{sys.executable} -c 'import child'\n")
    assert run([*LAUNCH, "--", "bash", "job.sh"], home).stdout == "Lookout\nLookout\n"


def test_the_name_reaches_every_process(home):
    (home / "say.py").write_text("from bsmon_agent.frameworks.ranks import identity; print(identity()['name'])")
    assert run([*LAUNCH, "--name", "a b", "say.py"], home).stdout == "a b\n"
    assert run([*LAUNCH, "--name=c", "-m", "say"], home).stdout == "c\n"
    assert run([*LAUNCH, "say.py"], home).stdout == "say\n"


def test_bsmon_0_means_off_whatever_else_says_on(home):
    (home / "see.py").write_text(
        "import os, sys\n"
        "there = any(getattr(finder, '__name__', '') == 'Lookout' for finder in sys.meta_path)\n"
        "print(os.environ.get('PYTHONPATH'), there)"
    )
    assert run([*LAUNCH, "see.py"], home).stdout == f"{launch.SHIM} True\n"
    assert run([*LAUNCH, "see.py"], home, BSMON="0").stdout == "None False\n"
    by_hand = run([sys.executable, "see.py"], home, BSMON="0", PYTHONPATH=launch.SHIM)
    assert by_hand.stdout == f"{launch.SHIM} False\n"


def test_the_shim_is_put_first_once_and_no_entry_is_lost():
    assert launch.environment({})["PYTHONPATH"] == launch.SHIM
    once = launch.environment({"PYTHONPATH": "/a::/b"})
    assert once["PYTHONPATH"] == f"{launch.SHIM}:/a::/b"
    assert launch.environment(dict(once)) == once


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x.py"], "no such file: x.py"),
        ([], "nothing to run"),
        (["-m"], "nothing to run"),
        (["--"], "nothing to run"),
        (["--name"], "--name needs a value"),
        (["--nope", "x.py"], "no option --nope"),
        (["--", "no-such-command-here"], "no such command: no-such-command-here; is it installed, and on PATH?"),
        (["--", "./tell.py"], "chmod +x"),
        (["--", "./plain"], "-- sh ./plain"),
    ],
)
def test_a_wrong_command_line_is_refused_with_64(home, arguments, says):
    (home / "plain").write_text("\x00\x01")
    (home / "plain").chmod(0o755)
    done = run([*LAUNCH, *arguments], home)
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.startswith("bsmon run: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interpreter_without_pyzmq_is_refused_with_69_and_the_cure(home):
    (home / "bare").mkdir()
    (home / "bare/bsmon_agent").symlink_to(Path(AGENT) / "bsmon_agent")
    done = run([sys.executable, "-S", *LAUNCH[1:], "tell.py"], home, PYTHONPATH=str(home / "bare"))
    assert done.returncode == 69
    assert "has no zmq" in done.stderr
    assert "pip install bsmon-agent" in done.stderr


def test_every_python_nearby_starts_silently_with_the_shim(tmp_path):
    """PYTHONPATH reaches interpreters of any age that know nothing of the agent."""
    places = [*map(Path, os.get_exec_path()), *(Path.home() / ".pyenv/versions").glob("*/bin")]
    pythons = {path.resolve() for place in places for path in place.glob("python[23]*") if os.access(path, os.X_OK)}
    pythons = {path for path in pythons if re.fullmatch(r"python[\d.]+", path.name)}
    assert pythons
    program = "import sys; print(sys.path[0], 'sitecustomize' in sys.modules)"
    for python in pythons:
        plain = run([str(python), "-c", program], PYTHONDONTWRITEBYTECODE="1")
        ours = run([str(python), "-c", program], PYTHONPATH=launch.SHIM, PYTHONDONTWRITEBYTECODE="1")
        assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr), python


def test_the_shim_costs_a_process_that_never_trains_next_to_nothing():
    def seconds(**environ):
        start = time.perf_counter()
        run([sys.executable, "-c", ""], **environ)
        return time.perf_counter() - start

    pairs = [(seconds(PYTHONPATH=launch.SHIM), seconds()) for _ in range(15)]
    assert statistics.median(ours - plain for ours, plain in pairs) < 0.012


def test_nothing_of_the_agent_is_imported_until_torch_is(home):
    (home / "light.py").write_text(
        "import sys; print([name for name in sys.modules if 'bsmon' in name or name == 'zmq'])"
    )
    assert run([*LAUNCH, "light.py"], home).stdout == "[]\n"


ATTACHED = """
import sys, types
session = types.ModuleType("bsmon_agent.session")
session.attach = lambda **given: print("attached", end=" ")
sys.modules["bsmon_agent.session"] = session
"""


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import torch", "torch attached "),
        (
            "import importlib.util as u; u.find_spec('torch'); print('asked', end=' '); import torch",
            "asked torch attached ",
        ),
        ("from importlib.util import find_spec as f; f('torch')", ""),
        ("import torchvision", ""),
        ("import torch; import importlib; importlib.reload(torch)", "torch attached torch "),
    ],
)
def test_the_agent_comes_when_torch_is_imported_and_not_before(home, program, says):
    """With stand-ins for torch and the session, which tell the order."""
    (home / "torch.py").write_text("print('torch', end=' ')")
    (home / "torchvision.py").write_text("")
    (home / "job.py").write_text(ATTACHED + program)
    done = run([*LAUNCH, "job.py"], home)
    assert (done.stdout, done.stderr) == (says, "")


def test_a_torch_that_fails_to_import_fails_as_ever(home):
    (home / "torch.py").write_text("raise ImportError('broken wheel')")
    (home / "job.py").write_text("import torch")
    plain, ours = both(["job.py"], home)
    assert ours.returncode == plain.returncode == 1
    assert ours.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1] == "ImportError: broken wheel"
