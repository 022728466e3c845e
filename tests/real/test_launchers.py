"""Real trainings through real launchers: each rank is seen once, workers and launchers are not, nothing is changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bsmon_agent import wire

pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.torch]

LAUNCH = [sys.executable, "-m", "bsmon_agent.launch"]
TRAIN = """
import sys, time, torch
torch.set_num_threads(1)

def train(steps, pause=0.0):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        time.sleep(pause)
    print(model.weight.detach().sum().item())
"""


@pytest.fixture
def place():
    """A short directory: ``home`` for scripts, ``run`` for the agents."""
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as directory:
        yield Path(directory)


def environ(place):
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "BSMON", "BSMON_NAME")}
    return {**kept, "BSMON_DIR": str(place / "run"), "OMP_NUM_THREADS": "1"}


def script(place, code, name="train.py"):
    (place / name).write_text(TRAIN + code)
    return name


def run(place, line, **more):
    given = environ(place) | more
    return subprocess.run(line, cwd=place, env=given, capture_output=True, text=True, timeout=120)


def start(place, line):
    return subprocess.Popen(line, cwd=place, env=environ(place), stdout=subprocess.PIPE, text=True)


def entries(place):
    return [json.loads(path.read_text()) for path in (place / "run").glob("*.json")]


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
    return value


def test_a_script_is_seen_and_unchanged(place):
    script(place, "train(30)")
    plain = run(place, [sys.executable, "train.py"])
    ours = run(place, [*LAUNCH, "train.py"])
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    [entry] = entries(place)
    assert (entry["name"], entry["state"], entry["exit_code"]) == ("train", "finished", 0)
    assert entry["last"]["record"]["step"] == 30


def test_the_exit_code_of_a_failed_training_is_kept(place):
    script(place, "train(3)\nsys.exit(7)")
    assert run(place, [*LAUNCH, "train.py"]).returncode == 7
    [entry] = entries(place)
    assert (entry["state"], entry["exit_code"]) == ("finished", 7)


def test_a_training_that_dies_at_once_leaves_its_traceback_and_no_entry(place):
    script(place, "raise RuntimeError('no data')")
    done = run(place, [*LAUNCH, "train.py"])
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: no data\n")
    assert "bsmon" not in done.stderr
    assert not (place / "run").exists() or entries(place) == []


def test_after_a_sigkill_the_entry_stays_and_tells_by_the_start_time(place):
    script(place, "train(10000, 0.01)")
    training = start(place, [*LAUNCH, "train.py"])
    [entry] = wait_for(lambda: (place / "run").exists() and [e for e in entries(place) if e["state"] == "live"])
    assert wire.process_start(entry["pid"]) == entry["pid_start"]
    training.kill()
    training.communicate()
    [left] = entries(place)
    assert left["state"] == "live"
    assert wire.process_start(left["pid"]) != left["pid_start"]
    script(place, "train(2)", "next.py")
    run(place, [*LAUNCH, "next.py"])
    assert sorted(path.suffix for path in (place / "run").iterdir()) == [".json", ".json"]  # its sockets are gone


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_training_as_ever(place, number):
    script(place, "print('ready', flush=True)\ntrain(10000, 0.01)")
    training = start(place, [*LAUNCH, "train.py"])
    assert training.stdout is not None
    training.stdout.readline()
    wait_for(lambda: (place / "run").exists() and entries(place))
    training.send_signal(number)
    training.communicate(timeout=10)
    assert training.returncode == -number


RANK = """
import torch.distributed as dist
dist.init_process_group("gloo")
train(20)
assert dist.get_world_size() == 2
dist.destroy_process_group()
"""


def test_torchrun_two_ranks_one_job(place):
    script(place, RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = run(place, [*LAUNCH, "--", *torchrun])
    assert done.returncode == 0, done.stderr
    found = sorted(entries(place), key=lambda entry: entry["rank"])
    assert [(entry["rank"], entry["world_size"]) for entry in found] == [(0, 2), (1, 2)]
    assert len({entry["job"] for entry in found}) == 1
    assert [entry["exit_code"] for entry in found] == [0, 0]
    assert {entry["last"]["hello"]["launcher"] for entry in found} == {"torchrun"}
    assert {entry["last"]["record"]["step"] for entry in found} == {20}


SPAWN = """
import os
def rank(number):
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
    dist.init_process_group("gloo", rank=number, world_size=2)
    train(20)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.spawn(rank, nprocs=2)
"""


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_spawned_ranks_one_job(place):
    script(place, SPAWN.replace("{port}", str(free_port())))
    done = run(place, [*LAUNCH, "train.py"])
    assert done.returncode == 0, done.stderr
    found = sorted((entry["last"]["hello"] for entry in entries(place)), key=lambda hello: hello["rank"])
    assert [(hello["rank"], hello["world_size"], hello["launcher"]) for hello in found] == [
        (0, 2, "spawn"),
        (1, 2, "spawn"),
    ]
    assert len({hello["job"] for hello in found}) == 1


LOADER = """
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        import threading
        names = [thread.name for thread in threading.enumerate()]
        assert "bsmon" not in names, names
        return torch.full((4,), float(index))

if __name__ == "__main__":
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context="{method}")
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    print(model.weight.detach().sum().item())
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader_stay_untouched(place, method):
    script(place, "torch.manual_seed(0)\n" + LOADER.replace("{method}", method))
    plain = run(place, [sys.executable, "train.py"])
    ours = run(place, [*LAUNCH, "train.py"])
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    [entry] = entries(place)
    assert entry["exit_code"] == 0
    assert entry["last"]["record"]["step"] == 10


def test_two_trainings_with_one_name_are_two_jobs(place):
    script(place, "train(50, 0.02)")
    both = [start(place, [*LAUNCH, "--name", "same", "train.py"]) for _ in range(2)]
    for training in both:
        training.communicate(timeout=60)
    found = entries(place)
    assert [entry["name"] for entry in found] == ["same", "same"]
    assert len({entry["job"] for entry in found}) == 2
    assert all(entry["job"].startswith("same-") for entry in found)


def test_off_means_off(place):
    script(place, "import bsmon_agent\nbsmon_agent.attach()\ntrain(5)")
    assert run(place, [*LAUNCH, "train.py"], BSMON="0").returncode == 0
    assert not (place / "run").exists()


def test_one_line_in_the_script_is_enough(place):
    script(place, "import bsmon_agent\nbsmon_agent.attach(name='by hand')\ntrain(5)\nraise SystemExit(3)")
    assert run(place, [sys.executable, "train.py"]).returncode == 3
    [entry] = entries(place)
    assert (entry["name"], entry["state"], entry["exit_code"]) == ("by hand", "finished", None)
