"""Ranks and jobs from what launchers put in the environment; nonsense there counts as absence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmon_agent.frameworks import ranks
from bsmon_agent.frameworks.ranks import identity

TORCHRUN = {
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
TWO_NODES = {**TORCHRUN, "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "TORCHELASTIC_RUN_ID": "r1"}
SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "1234.5"}


def who(environ, name="train"):
    return identity(name, environ)


def place(environ):
    found = who(environ)
    return found["launcher"], found["rank"], found["local_rank"], found["world_size"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("single", 0, 0, 1)),
        ({**TWO_NODES, "RANK": "3", "LOCAL_RANK": "1"}, ("torchrun", 3, 1, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "CROSS_SIZE": "1"}, ("deepspeed", 1, 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ("env", 1, 1, 2)),
        ({**SLURM, "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, ("slurm", 5, 1, 8)),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_PROCID": "2"}, ("slurm", 2, 2, 4)),
        # in a batch script there is one process, however many tasks were asked for
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, ("single", 0, 0, 1)),
        ({"SLURM_STEP_ID": "4294967291", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, ("single", 0, 0, 1)),
        # torchrun under srun: torchrun's ranks are the training's
        ({**SLURM, "SLURM_PROCID": "1", **TWO_NODES, "RANK": "3", "LOCAL_RANK": "1"}, ("torchrun", 3, 1, 4)),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, ("mpi", 2, 0, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, ("mpi", 1, 1, 2)),
    ],
)
def test_the_rank_is_the_launchers(environ, expected):
    assert place(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "", "WORLD_SIZE": ""},
        {"RANK": "one", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "0"},
        {"RANK": "0"},
        {"RANK": "٣", "WORLD_SIZE": "4"},
        {"RANK": "1", "WORLD_SIZE": "9" * 5000},
        {"RANK": "1.0", "WORLD_SIZE": "2"},
        {"SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "2"},
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "1"},
    ],
)
def test_nonsense_counts_as_absence(environ):
    assert place(environ) == ("single", 0, 0, 1)


NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"]


@given(st.dictionaries(st.sampled_from(NAMES), st.text(st.characters(exclude_characters="\0"))), st.text())
def test_nothing_raises_and_everything_can_be_shown(environ, name):
    found = identity(name, environ)
    assert 0 <= found["rank"] < found["world_size"]
    assert found["name"].isprintable()
    assert 1 <= len(found["name"]) <= 200
    assert found["job"].isascii()
    assert found["job"].isprintable()
    assert len(found["job"]) <= 60


@pytest.mark.parametrize("environ", [TWO_NODES, SLURM, OPEN_MPI], ids=["torchrun", "slurm", "mpi"])
def test_all_ranks_share_a_key(environ):
    rank = {TWO_NODES["MASTER_ADDR"]: "RANK"}.get(environ.get("MASTER_ADDR", ""))
    rank = rank or ("SLURM_PROCID" if environ is SLURM else "OMPI_COMM_WORLD_RANK")
    keys = {who({**environ, rank: str(number)})["job"] for number in range(4)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("environ", "other"),
    [
        ({**SLURM, "SLURM_PROCID": "0"}, {"SLURM_JOB_ID": "78"}),
        ({**SLURM, "SLURM_PROCID": "0"}, {"SLURM_STEP_ID": "1"}),
        ({**TWO_NODES, "RANK": "0"}, {"TORCHELASTIC_RUN_ID": "r2"}),
        ({**TWO_NODES, "RANK": "0"}, {"MASTER_PORT": "29501"}),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"}, {"PMIX_NAMESPACE": "1234.6"}),
    ],
)
def test_two_jobs_have_two_keys(environ, other):
    assert who(environ)["job"] != who({**environ, **other})["job"]


LAUNCHER = """
import os, subprocess, sys
code = "import sys; from bsmon_agent.frameworks.ranks import identity; print(identity('train')['job'])"
for rank in "01":
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "RANK": rank, "LOCAL_RANK": rank}, check=True)
"""


def keys_of_a_local_job(environ):
    """What two ranks started by one launcher process say."""
    done = subprocess.run([sys.executable, "-c", LAUNCHER], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_two_local_jobs_on_the_same_port_are_told_apart_by_their_launchers():
    first, second = keys_of_a_local_job(TORCHRUN), keys_of_a_local_job(TORCHRUN)
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert first[0] != second[0]


def test_two_single_processes_with_one_name_have_two_keys():
    code = "from bsmon_agent.frameworks.ranks import identity; print(identity('train')['job'])"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert runs[0].stdout != runs[1].stdout
    assert all(run.stdout.startswith("train-") for run in runs)


def test_the_key_stays_when_the_launcher_dies(monkeypatch):
    environ = {**TORCHRUN, "RANK": "0"}
    before = who(environ)["job"]
    monkeypatch.setattr(ranks.os, "getppid", lambda: 1)
    assert who(environ)["job"] == before


def test_bsmon_name_goes_before_the_scripts_word_and_that_before_the_file():
    assert identity("given", {"BSMON_NAME": "chosen"})["name"] == "chosen"
    assert identity("given", {})["name"] == "given"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["pack/train.py"], "train"),
        (["-m", "pack.train"], "pack.train"),
        (["-m", "pack"], "pack"),
        (["-c", ""], "python"),
    ],
)
def test_the_name_is_the_scripts(tmp_path, command, expected):
    (tmp_path / "pack").mkdir()
    says = "from bsmon_agent.frameworks.ranks import identity; print(identity()['name'])"
    for name in ("train.py", "__main__.py"):
        (tmp_path / "pack" / name).write_text(says)
    line = [sys.executable, *(says if word == "" else word for word in command)]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_a_name_that_a_terminal_would_act_on_is_made_harmless():
    found = identity("\x1b[2Jrun\n\u202e1", {})
    assert found["name"] == "[2Jrun  1"
    assert found["job"].startswith("2Jrun-1-")


def test_the_process_group_knows_better(monkeypatch):
    """A spawned rank has nothing in its environment; its group tells, also that ranks belong together."""

    class Distributed:
        @staticmethod
        def is_available():
            return True

        is_initialized = is_available

        @staticmethod
        def get_rank():
            return 2

        @staticmethod
        def get_world_size():
            return 4

    alone = who({})
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed)
    found = who({"MASTER_ADDR": "localhost", "MASTER_PORT": "1234"})
    assert (found["launcher"], found["rank"], found["world_size"]) == ("spawn", 2, 4)
    assert found["job"] != alone["job"]
    agreed = who({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"})
    assert (agreed["launcher"], agreed["local_rank"]) == ("torchrun", 0)
