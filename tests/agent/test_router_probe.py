"""The router probe in a session: what goes into records and hellos, sampled or not."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import msgpack  # noqa: E402
import torch._dynamo as dynamo  # noqa: E402

from bsmon_agent import wire  # noqa: E402
from bsmon_agent.governor import Governor  # noqa: E402
from bsmon_agent.ledger import Ledger  # noqa: E402
from bsmon_agent.probes.router import RouterProbe  # noqa: E402
from bsmon_agent.reductions import Lagged  # noqa: E402
from bsmon_agent.session import Session  # noqa: E402
from tests.agent.moe_models import EXPERTS, TOP_K, WIDTH, CapacityBlock, Net, chosen, recomputed  # noqa: E402

TOKENS = 2 * 12


class Kept(Ledger):
    """Holds the records as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict] = []

    def push(self, record: dict) -> None:
        self.records.append(record)


class Run:
    """A tiny training with a session of its own around it."""

    def __init__(self, net, share: float = 1.0, compiled: bool = False) -> None:
        torch.set_num_threads(1)
        self.net, self.ledger, self.probe = net, Kept(), RouterProbe()
        self.session = Session(ledger=self.ledger, chosen=[self.probe], governor=Governor(share), publish=False)
        self.session.install()
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        self.call = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net

    def steps(self, count: int, micro: int = 2) -> None:
        for _ in range(count):
            for _ in range(micro):
                self.call(torch.randn(2, 12, WIDTH)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def close(self) -> list[list[dict]]:
        self.session.close()
        assert self.session.dispatch.notes == []
        return [record.get("moe", []) for record in self.ledger.records]

    def routers(self) -> list[dict]:
        hello: dict = {}
        self.probe.describe(hello)
        return hello["routers"]


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    dynamo.reset()
    dynamo.utils.counters.clear()
    yield
    dynamo.reset()
    dynamo.utils.counters.clear()


def test_a_step_holds_all_its_micro_batches():
    run = Run(Net())
    run.steps(3)
    routers = run.routers()
    layers = run.close()
    assert [[layer["layer"] for layer in step] for step in layers] == [[0, 1]] * 3
    for layer in (layer for step in layers for layer in step):
        assert set(layer) <= set(wire.MOE_FIELDS)
        assert layer["assignments"] == sum(layer["assigned"]) == 2 * TOKENS * TOP_K
        assert (layer["tokens"], layer["calls"], layer["dropped"]) == (2 * TOKENS, 2, 0)
        assert 0 < layer["entropy"] < math.log(EXPERTS)
        assert msgpack.unpackb(msgpack.packb(layer)) == layer
    assert routers[0] == {
        "name": "blocks.0.router",
        "router": "TripleRouter",
        "experts": EXPERTS,
        "top_k": TOP_K,
        "tag": "derived",
        "calls": 6,
    }


def test_drops_and_capacity():
    run = Run(torch.nn.Sequential(CapacityBlock(), CapacityBlock()))
    run.steps(2)
    routers = run.routers()
    for layer in (layer for step in run.close() for layer in step):
        assert layer["dropped"] == sum(layer["assigned"]) - sum(layer["kept"]) > 0
        assert max(layer["kept"]) <= 2 * 6
    assert [(router["capacity"], router["capacity_factor"]) for router in routers] == [(6, 1.0)] * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_that_is_not_looked_at_is_not_mixed_into_the_next(compiled):
    run = Run(Net(), compiled=compiled)
    governor = run.session.governor
    look = iter([False, False, True, False, True, True, False, False])
    governor._due = lambda duty: next(look)
    run.steps(8)
    counted = [[layer.get("calls") for layer in step] for step in run.close()]
    assert [bool(step) for step in counted] == [True, False, False, True, False, True, True, False]
    assert [step for step in counted if step] == [[2, 2]] * 4


def test_a_first_look_at_compiled_routers_that_ran_before_says_nothing():
    """They counted in steps that nobody looked at; only then it is known that they do."""
    run = Run(Net(), compiled=True)
    run.probe.armed = False
    run.session.dispatch.arm()
    look = iter([False, True, True, True])
    run.session.governor._due = lambda duty: next(look)
    run.steps(4)
    assert [[layer.get("calls") for layer in step] for step in run.close()] == [[], [], [None, None], [2, 2]]


def test_checkpoints_around_compiled_blocks_do_not_count_twice():
    net = Net(recomputed(False))
    net.blocks = torch.nn.ModuleList(torch.compile(block, backend="aot_eager", fullgraph=True) for block in net.blocks)
    run = Run(net)
    run.steps(3)
    assert [[layer["calls"] for layer in step] for step in run.close()] == [[2, 2]] * 3


def test_attached_after_the_compiler_is_not_zero():
    net = Net()
    call = torch.compile(net, backend="aot_eager", fullgraph=True)
    call(torch.randn(2, 12, WIDTH)).sum().backward()
    run = Run(net)
    run.call = call
    run.steps(3)
    routers = run.routers()
    assert all(set(layer) == {"layer"} for step in run.close() for layer in step)
    assert {router["tag"] for router in routers} == {"unsupported"}
    assert all("bsmon run" in router["reason"] for router in routers)


def test_nan_is_said_and_passes():
    run = Run(Net())
    run.steps(1)
    with torch.no_grad():
        run.net.blocks[1].router.weight[0, 0] = math.nan
    run.steps(1)
    during = run.routers()
    for parameter in run.net.parameters():
        parameter.data = torch.randn_like(parameter) * 0.1
    run.steps(1)
    after = run.routers()
    assert [router["tag"] for router in during] == ["derived", "unsupported"] and "NaN" in during[1]["reason"]
    assert [router["tag"] for router in after] == ["derived", "derived"]
    assert [len(step[1]) > 1 for step in run.close()] == [True, False, True]


def test_evaluation_and_padding():
    net = Net()
    run = Run(net)
    mask = torch.ones(2, 12)
    mask[0, 5:] = 0
    for _ in range(2):
        net(torch.randn(2, 12, WIDTH), attention_mask=mask).square().mean().backward()
        net.eval()
        with torch.no_grad():
            net(torch.randn(2, 12, WIDTH))
        net.train()
        run.optimizer.step()
        run.optimizer.zero_grad()
    for step in run.close():
        assert [(layer["calls"], sum(layer["padding"])) for layer in step] == [(1, 7 * TOP_K)] * 2


def test_everything_is_taken_out_again():
    run = Run(Net())
    run.steps(2)
    run.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in run.net.modules())


def test_its_own_time_is_booked():
    run = Run(Net())
    run.steps(6)
    assert run.session.governor.duties["router"].looks >= 4
    assert run.session.governor.duties["router"].cost.value > 10
    run.close()


def test_values_that_come_later_from_a_device():
    """As on a GPU: tensors stay in the record until a copy has landed, and a record that is given up says nothing."""
    landed = []

    class Flight:
        def __init__(self, tensors):
            self.tensors = list(tensors)

        def landed(self):
            return len(landed) < 2

        def values(self):
            return [tensor.tolist() for tensor in self.tensors]

    clock = iter(range(100))
    lagged = Lagged(landed.append, flight=Flight, remote=lambda tensor: True, clock=lambda: float(next(clock)))
    net, probe = Net(), RouterProbe()
    probe.model_found(net, None)
    want = []
    for _ in range(3):
        x = torch.randn(2, 12, WIDTH)
        want.append(chosen(x.reshape(-1, WIDTH) @ net.blocks[0].router.weight.T))
        net(x)
        record: dict = {}
        probe.collect(record)
        lagged.add(record)
    lagged.close()
    assert [record["moe"][0]["assigned"] for record in landed[:2]] == want[:2]
    assert landed[-1]["moe"] == [{"layer": 0}, {"layer": 1}]
    probe.remove()
