"""Data-parallel processes: each one's own contribution before it is averaged, and the averaged gradient."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.real]

import noise_runs as runs  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from bsmon.estimators import noise  # noqa: E402
from bsmon.model import NoiseSample, Record  # noqa: E402

RANKS = 2
STEPS = 4


def train(model: nn.Module, rank: int, parts: int, quiet: bool) -> None:
    """Each rank takes its half of the step's data, in so many micro-batches, averaged at each or at the last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(STEPS):
        ids, targets = (whole.chunk(RANKS)[rank].chunk(parts) for whole in runs.data(step))
        for number, (some, wanted) in enumerate(zip(ids, targets, strict=True)):
            waits = quiet and number < parts - 1
            with model.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
                (runs.mean_loss(model, some, wanted) / parts).backward()
        optimizer.step()
        optimizer.zero_grad()


def unknown_hook(state, bucket):  # type: ignore[no-untyped-def]  # torch checks its annotations, which are strings here
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    return model


WAYS = ("one pass", "every pass", "no_sync", "static graph", "unknown hook", "fsdp2")


def watch(way: str, rank: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model: nn.Module = runs.Tiny()
    with runs.watching() as watched:
        if way == "fsdp2":
            wrapped = sharded(model)
        else:
            wrapped = DistributedDataParallel(model, static_graph=way == "static graph")
        if way == "unknown hook":
            wrapped.register_comm_hook(None, unknown_hook)
        train(wrapped, rank, parts=1 if way in ("one pass", "fsdp2", "unknown hook") else 2, quiet=way == "no_sync")
    hello: dict[str, Any] = {}
    watched.probe.describe(hello)
    found = [{"step": record["step"], **record["noise"]} for record in watched.records if "noise" in record]
    return {"found": found, "why": hello.get("unavailable", {}).get("noise"), "notes": watched.notes}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    answers = {way: watch(way, rank) for way in WAYS}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found, by way."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(worker, (str(folder),), nprocs=RANKS)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def records(found: list[dict[str, Any]]) -> list[Record]:
    samples = [(one["step"], NoiseSample(**{k: v for k, v in one.items() if k != "step"})) for one in found]
    return [Record(step, step, 0.0, noise=sample) for step, sample in samples]


@pytest.mark.parametrize("way", ["one pass", "every pass", "no_sync", "static graph"])
def test_joined_ranks_are_the_whole_batch(answers: list[dict[str, Any]], way: str) -> None:
    assert [rank[way]["notes"] for rank in answers] == [[], []]
    torch.manual_seed(1)
    model = runs.Tiny()
    joined = noise.join_ranks(records(rank[way]["found"]) for rank in answers)
    assert len(joined) == STEPS - 1
    for record in joined:
        sample = record.noise
        assert sample is not None
        parts = RANKS * (1 if way == "one pass" else 2)
        total, squares = runs.by_hand(model, *runs.data(record.step - 1), parts=parts)
        assert (sample.estimator, sample.processes, sample.seen) == ("ranks", 2, 2)
        assert sample.total == pytest.approx(total, rel=1e-4)
        assert sample.parts == pytest.approx(squares, rel=1e-4)


@pytest.mark.parametrize(("way", "word"), [("unknown hook", "unknown scale"), ("fsdp2", "sharded")])
def test_what_cannot_be_told_is_refused(answers: list[dict[str, Any]], way: str, word: str) -> None:
    for rank in answers:
        assert rank[way]["found"] == []
        assert word in rank[way]["why"]
