"""torch.compile: exact, no graph break, no recompilation; and never 0 where it came too late."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo as dynamo  # noqa: E402

from bsmon_agent.routers import watch  # noqa: E402
from tests.agent.moe_models import TOP_K, WIDTH, CapacityBlock, Net, recomputed  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dynamo.reset()
    dynamo.utils.counters.clear()
    yield
    dynamo.reset()
    dynamo.utils.counters.clear()


def whole(net):
    return torch.compile(net, backend="aot_eager", fullgraph=True)


def in_place(net):
    net.compile(backend="aot_eager", fullgraph=True)
    return net


def by_block(net):
    for number, block in enumerate(net.blocks):
        net.blocks[number] = whole(block)
    return net


NETS = {
    "whole": (Net, whole),
    "in place": (Net, in_place),
    "block by block": (Net, by_block),
    "checkpoints inside": (lambda: Net(recomputed(False)), whole),
    "checkpoints around": (lambda: Net(recomputed(False)), by_block),
    "capacity": (lambda: torch.nn.Sequential(CapacityBlock(), CapacityBlock()), whole),
}


@pytest.mark.parametrize("name", NETS)
def test_exact_without_breaks_or_recompilation(name):
    make, compiled = NETS[name]
    net, plain = make(), make()
    plain.load_state_dict(net.state_dict())
    seen, reference = watch(net), watch(plain)
    call = compiled(net)
    for step in range(4):
        x = torch.randn(2, 12, WIDTH)
        with dynamo.config.patch(error_on_recompile=step > 0):
            call(x).sum().backward()
        plain(x).sum().backward()
    assert sum(dynamo.utils.counters["graph_break"].values()) == 0
    got, wanted = seen.read(), reference.read()
    for key in ("tokens_per_expert", "kept_per_expert", "dropped_assignments", "assignments", "sampled_steps"):
        assert [layer[key] for layer in got] == [layer[key] for layer in wanted]
    assert got[0]["assignments"] == 4 * 24 * TOP_K
    assert got[0]["entropy"] == pytest.approx(wanted[0]["entropy"], rel=1e-5)


def test_evaluation_in_a_compiled_region_is_not_counted():
    net = Net()
    seen = watch(net)
    call = whole(net)
    x = torch.randn(2, 12, WIDTH)
    call(x).sum().backward()
    net.eval()
    call(x)
    assert seen.read()[0]["assignments"] == 24 * TOP_K


def test_too_late_is_not_zero_and_names_the_way_out():
    net = Net()
    call = whole(net)
    x = torch.randn(2, 12, WIDTH)
    call(x).sum().backward()
    seen = watch(net)
    call(x).sum().backward()
    layer = seen.read()[0]
    assert layer["tokens_per_expert"] is layer["assignments"] is layer["dropped_rate"] is None
    assert layer["tag"] == "unsupported" and "bsmon run" in layer["reason"] and "reset" in layer["reason"]
    dynamo.reset()
    seen.reset()
    call(x).sum().backward()
    assert seen.read()[0]["assignments"] == 24 * TOP_K


def test_a_shape_that_cannot_be_read_is_said_without_a_break():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.top_k, self.num_experts = 2, 8

        def forward(self, x):
            return x.sum(-1)

    odd = type("OddRouter", (Odd,), {})()
    seen = watch(odd)
    whole(odd)(torch.randn(2, 12, WIDTH))
    layer = seen.read()[0]
    assert layer["tokens_per_expert"] is None and "compiled" in layer["reason"]
