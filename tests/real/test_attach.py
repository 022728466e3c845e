"""attach() in processes of their own: when it wakes, what it leaves, what it does not touch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.real

TRAIN = """
    import torch
    torch.set_num_threads(1)

    def train(steps):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16))
        opt = torch.optim.AdamW(model.parameters())
        for _ in range(steps):
            ids = torch.randint(0, 16, (4, 5))
            torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            opt.step()
            opt.zero_grad()
        return float(sum(p.detach().double().sum() for p in model.parameters()))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as directory:
        yield Path(directory) / "r"


def run(place: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "BSMON_DIR": str(place), **environment}
    script = textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=120)


def entries(place: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(place.glob("*.json"))] if place.exists() else []


def test_importing_loads_nothing_heavy(place: Path) -> None:
    done = run(place, "import sys, bsmon_agent; print([m for m in ('torch', 'zmq', 'msgpack') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_attach_waits_for_torch_and_leaves_an_entry(place: Path) -> None:
    code = (
        "import sys, bsmon_agent\n"
        "bsmon_agent.attach(name='early'); bsmon_agent.attach(total_steps=9)\n"
        "assert 'torch' not in sys.modules\n" + textwrap.dedent(TRAIN) + "bsmon_agent.log(mine=2)\ntrain(9)"
    )
    done, without = run(place, code), run(place, code, BSMON="0")
    assert done.returncode == 0, done.stderr
    assert done.stderr == without.stderr  # torch itself may have something to say
    (entry,) = entries(place)
    assert entry["state"] == "finished"
    assert entry["name"] == "early"
    last = entry["last"]
    assert last["record"]["step"] == 9
    assert last["record"]["samples"] == 4
    assert last["hello"]["total_steps"] == 9


def test_a_process_that_does_not_train_is_not_seen(place: Path) -> None:
    done = run(place, "import bsmon_agent, torch; bsmon_agent.attach(); torch.nn.Linear(2, 2)(torch.ones(2))")
    assert done.returncode == 0, done.stderr
    assert entries(place) == []


def test_off_means_off(place: Path) -> None:
    code = textwrap.dedent(TRAIN) + (
        "import bsmon_agent\n"
        "before = torch.autograd.backward, torch.optim.Optimizer.__init__\n"
        "bsmon_agent.attach(); train(3); bsmon_agent.tokens(3); bsmon_agent.log(a=1); bsmon_agent.detach()\n"
        "assert before == (torch.autograd.backward, torch.optim.Optimizer.__init__)\n"
    )
    done = run(place, code, BSMON="0")
    assert done.returncode == 0, done.stderr
    assert entries(place) == []


def test_no_directory_to_be_seen_in(place: Path) -> None:
    plain = run(place, textwrap.dedent(TRAIN) + "print(train(5))")
    place.write_text("in the way")
    code = "import bsmon_agent; bsmon_agent.attach()\n" + textwrap.dedent(TRAIN) + "print(train(5))"
    done = run(place, code, XDG_RUNTIME_DIR="/proc/none")
    assert done.returncode == 0
    assert done.stdout == plain.stdout
    assert "Traceback" not in done.stderr


def test_forked_workers_that_train_are_seen_and_loaders_are_not(place: Path) -> None:
    code = textwrap.dedent(TRAIN) + textwrap.dedent(
        """
        import multiprocessing, bsmon_agent
        bsmon_agent.attach(name="forked")
        context = multiprocessing.get_context("fork")

        def worker():
            data = torch.utils.data.DataLoader(torch.arange(40).reshape(10, 4), batch_size=2, num_workers=2)
            assert len(list(data)) == 5
            train(6)

        children = [context.Process(target=worker) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0]
        """
    )
    done = run(place, code)
    assert done.returncode == 0, done.stderr
    found = entries(place)
    assert len(found) == 2
    assert [entry["last"]["record"]["step"] for entry in found] == [6, 6]
    assert {entry["name"] for entry in found} == {"forked"}
    assert len({entry["session"] for entry in found}) == 2


def test_detach_ends_it_for_those_who_watch(place: Path) -> None:
    code = textwrap.dedent(TRAIN) + (
        "import bsmon_agent\nbsmon_agent.attach(); train(4); bsmon_agent.detach(); train(4)\n"
        "bsmon_agent.attach(); train(5); bsmon_agent.detach(); bsmon_agent.detach()\n"
    )
    done = run(place, code)
    assert done.returncode == 0, done.stderr
    (entry,) = entries(place)
    assert entry["last"]["record"]["step"] == 5
    assert entry["state"] == "finished"
