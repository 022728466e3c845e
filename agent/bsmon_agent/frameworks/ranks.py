"""Which rank of which job this process is, from what its launcher put in the environment.

========= ======================================= ==============================================================
launcher  rank                                    what all ranks of one job, and no other job, have in common
========= ======================================= ==============================================================
torchrun  RANK, WORLD_SIZE, LOCAL_RANK            on one host their parent process; else run id and master's port
deepspeed the same                                the same
slurm     SLURM_PROCID, SLURM_STEP_NUM_TASKS      job and step id
mpi       OMPI_COMM_WORLD_RANK, PMI_RANK          the launcher's job id; on one host their parent process
spawn     torch.distributed, once it is set up    their parent process, and the master's port
single    0 of 1                                  this process
========= ======================================= ==============================================================

Values that make no sense count as absent: nothing here raises.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bsmon_agent import wire

MAX_WORLD = 1 << 24
MAX_LABEL = 40  # characters of the name that go into a job's id
NO_STEP = 0xFFFFFFF0  # SLURM's step ids from here on are no real steps (batch script, external)

Place = tuple[str, int, int, int]  # launcher, rank, local rank, world size


def identity(name: str | None = None, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """``name``, ``job``, ``rank``, ``local_rank``, ``world_size`` and ``launcher``, as in a hello.

    ``name`` is what the user said in the script; BSMON_NAME goes before it. ``job`` may change once: when a process
    that was spawned without a word in its environment joins a process group.
    """
    called = readable(environ.get("BSMON_NAME") or name or script_name())
    launcher, rank, local_rank, world = place(environ)
    seed = "\0".join([launcher, *_bond(launcher, world, environ)])
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", called).strip("-.")[:MAX_LABEL] or "job"
    return {
        "name": called,
        "job": f"{label}-{hashlib.sha1(seed.encode(errors='replace'), usedforsecurity=False).hexdigest()[:6]}",
        "rank": rank,
        "local_rank": local_rank,
        "world_size": world,
        "launcher": launcher,
    }


def readable(name: str) -> str:
    """A name that can be shown: printable, not too long, not empty."""
    shown = "".join(char if char.isprintable() else " " for char in name).strip()
    return shown[: wire.MAX_NAME] or "training"


def script_name() -> str:
    """The module after -m, or the script's file name without its ending."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    script = getattr(sys, "argv", [""])[0:1] or [""]
    return Path(script[0]).stem if script[0] not in ("", "-", "-c") else "python"


def place(environ: Mapping[str, str]) -> Place:
    """What the environment says of this process's rank; the process group knows better, once there is one."""
    found = _from_launcher(environ)
    group = _process_group()
    if group is None:
        return found
    rank, world = group
    launcher, _, local_rank, told = found
    return (launcher, rank, local_rank, world) if told == world else ("spawn", rank, rank, world)


def _from_launcher(environ: Mapping[str, str]) -> Place:
    number = functools.partial(_number, environ)
    rank, world = number("RANK"), number("WORLD_SIZE")
    if _sound(rank, world):
        return _by_rank(environ), rank, number("LOCAL_RANK", rank), world
    rank, world = number("SLURM_PROCID"), number("SLURM_STEP_NUM_TASKS")
    if world < 0 and 0 <= number("SLURM_STEP_ID") < NO_STEP:
        world = number("SLURM_NTASKS")
    if _sound(rank, world):
        return "slurm", rank, number("SLURM_LOCALID", rank), world
    for one, all_, local in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        if _sound(number(one), number(all_)):
            return "mpi", number(one), number(local, number(one)), number(all_)
    return "single", 0, 0, 1


def _by_rank(environ: Mapping[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    return "deepspeed" if "CROSS_SIZE" in environ else "env"


def _number(environ: Mapping[str, str], name: str, default: int = -1) -> int:
    """A count that a launcher set; ``default`` if it is absent or makes no sense."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else default


def _sound(rank: int, world: int) -> bool:
    return 0 <= rank < world <= MAX_WORLD


def _process_group() -> tuple[int, int] | None:
    """Rank and size of torch's process group, if the training has set one up."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:  # a group in the making, or torn down
        return None
    return (rank, world) if _sound(rank, world) else None


def _bond(launcher: str, world: int, environ: Mapping[str, str]) -> list[str]:
    """What the ranks of this job share with each other and with no other job."""
    if launcher == "single":
        return [socket.gethostname(), *_start(os.getpid())]
    if launcher == "slurm":
        return _values(environ, "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    spread = _values(environ, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
    if launcher == "mpi" and any(spread):
        return [*spread, *_values(environ, "SLURM_JOB_ID")]
    if _on_one_host(launcher, world, environ):
        return [socket.gethostname(), *_parent(os.getpid()), *_values(environ, "MASTER_PORT")]
    return _values(environ, "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")


def _on_one_host(launcher: str, world: int, environ: Mapping[str, str]) -> bool:
    sizes = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    here = max(_number(environ, name) for name in sizes)
    return here == world or (here < 0 and launcher in ("spawn", "env") and _is_local(environ.get("MASTER_ADDR", "")))


def _is_local(address: str) -> bool:
    return address in ("", "localhost", "::1", socket.gethostname()) or address.startswith("127.")


def _values(environ: Mapping[str, str], *names: str) -> list[str]:
    return [environ.get(name, "") for name in names]


@functools.lru_cache(maxsize=8)
def _parent(pid: int) -> tuple[str, ...]:
    """Who started this process, remembered from the first time: a parent may die before its children."""
    return _start(os.getppid())


def _start(pid: int) -> tuple[str, ...]:
    return str(pid), str(wire.process_start(pid))
