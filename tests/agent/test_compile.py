"""torch.compile: counted where it can be, with no graph break and no recompilation of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import torch._dynamo as dynamo  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.inner(x))


def compiled_first(model: Any, opt: Any) -> Callable[[], None]:
    return loop(torch.compile(model, backend="aot_eager"), opt, opt.step)


def in_place(model: Any, opt: Any) -> Callable[[], None]:
    model.compile(backend="aot_eager")
    return loop(model, opt, opt.step)


def a_part(model: Any, opt: Any) -> Callable[[], None]:
    model.inner = torch.compile(model.inner, backend="aot_eager", fullgraph=True)
    return loop(model, opt, opt.step)


def the_step(model: Any, opt: Any) -> Callable[[], None]:
    return loop(model, opt, torch.compile(opt.step, backend="aot_eager"))


def everything(model: Any, opt: Any) -> Callable[[], None]:
    return torch.compile(loop(model, opt, opt.step), backend="aot_eager")


def loop(model: Any, opt: Any, step: Any) -> Callable[[], None]:
    def once() -> None:
        opt.zero_grad()
        model(torch.ones(4, 8)).mean().backward()
        step()

    return once


WAYS = [compiled_first, in_place, a_part, the_step, everything]


def run(way: Any, steps: int = 8) -> tuple[list[Any], dict[str, Any]]:
    """The weights, and how often dynamo broke and recompiled a graph."""
    dynamo.reset()
    dynamo.utils.counters.clear()
    torch.manual_seed(3)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    once = way(model, opt)
    for _ in range(steps):
        once()
    counters = dynamo.utils.counters
    seen = {
        "breaks": sum(counters["graph_break"].values()),
        "graphs": counters["stats"]["unique_graphs"],
        "recompiles": sum(counters["recompile_limit"].values()),
    }
    return [parameter.detach().clone() for parameter in model.parameters()], seen


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_steps_are_counted_and_nothing_is_changed(watch: Callable[..., Any], way: Any) -> None:
    plain, expected = run(way)
    seen = watch()
    weights, counted = run(way)
    assert all(torch.equal(one, other) for one, other in zip(plain, weights, strict=True))
    assert counted == expected
    assert seen.all("step")[-1] >= 7, "the last step of compiled code is told by the event after it"
    assert seen.all("step") == list(range(1, len(seen.records) + 1))
    assert seen.notes == []
    if way is not everything:
        assert seen.all("samples")[-1] == 4


def test_with_fullgraph_and_a_hook_on_the_module(watch: Callable[..., Any]) -> None:
    """The optimizer came first, so that the module that is then compiled was already listened to."""
    seen = watch()
    dynamo.reset()
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(6):
        compiled(torch.ones(4, 8)).mean().backward()
        opt.step()
    assert seen.all("samples") == [4] * 6
    assert seen.hello["model"]["name"] == "Net"


def test_late_attach_to_a_compiled_training(watch: Callable[..., Any]) -> None:
    dynamo.reset()
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    once = compiled_first(model, opt)
    for _ in range(4):
        once()
    graphs = dynamo.utils.counters["stats"]["unique_graphs"]
    seen = watch()
    for _ in range(8):
        once()
    assert dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert seen.all("step") == list(range(5, 13))
    assert seen.all("samples")[-4:] == [4] * 4


def test_export_of_a_watched_model(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        model(torch.ones(4, 8)).mean().backward()
        opt.step()
    exported = torch.export.export(model, (torch.ones(4, 8),), strict=True)
    assert torch.equal(exported.module()(torch.ones(4, 8)), model(torch.ones(4, 8)))
    assert seen.notes == []
