"""Routers by rule: hand-written ones, declared ones, published shapes of libraries; and what can't be read."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bsmon_agent.routers import declare, find, watch  # noqa: E402
from tests.agent.moe_models import (  # noqa: E402
    EXPERTS,
    TOP_K,
    WIDTH,
    Around,
    Bank,
    CapacityBlock,
    GateBlock,
    Net,
    TripleRouter,
    chosen,
    named,
)

T = 12


@pytest.fixture(autouse=True)
def seeded():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def one(module, *calls):
    """The single layer of a module after these calls."""
    seen = watch(module)
    for x in calls or (torch.randn(T, WIDTH),):
        module(x)
    (layer,) = seen.read()
    return layer


def pick(tokens: int = T, top_k: int = TOP_K):
    logits = torch.randn(tokens, EXPERTS)
    weights, numbers = logits.softmax(-1).topk(top_k, -1)
    return logits, weights, numbers


# ---------------------------------------------------------------- hand-written


def test_capacity_router_that_answers_places():
    block, x = CapacityBlock(factor=1.0), torch.randn(4, 16, WIDTH)
    layer = one(block, x)
    _, _, mask = block.router(x)
    assigned = chosen(block.router.w_g(x))
    assert layer["tokens_per_expert"] == assigned
    assert layer["kept_per_expert"] == [min(16, count) for count in assigned] == mask.sum((0, 2)).tolist()
    assert layer["dropped_assignments"] == sum(max(0, count - 16) for count in assigned) > 0
    assert layer["tokens_fully_dropped"] == int((~mask.flatten(1).any(-1)).sum())
    assert (layer["tag"], layer["capacity"], layer["capacity_factor"]) == ("derived", 16, 1.0)


def test_noise_in_the_choice_leaves_only_what_was_kept():
    block = CapacityBlock(factor=8.0)
    block.router.register_forward_pre_hook(lambda module, args: (args[0] + torch.randn_like(args[0]),))
    seen = watch(block)
    clean = torch.randn(4, 16, WIDTH)
    block.router.w_g.register_forward_hook(lambda module, args, output: output + 5 * torch.randn_like(output))
    block(clean)
    (layer,) = seen.read()
    assert layer["tokens_per_expert"] is None and sum(layer["kept_per_expert"]) == 128
    assert layer["dropped_assignments"] == 0


def test_linear_gate_is_logits_only():
    block, x = GateBlock(Bank()), torch.randn(T, WIDTH)
    layer = one(block, x)
    assert layer["tokens_per_expert"] == chosen(block.gate(x))
    assert (layer["tag"], layer["name"], layer["dropped_assignments"]) == ("logits-only", "gate", None)
    assert layer["entropy"] is not None


def test_experts_called_one_by_one_show_what_the_gate_hides():
    block, x = GateBlock(), torch.randn(T, WIDTH)
    layer = one(block, x)
    assert layer["tokens_per_expert"] == chosen(block.gate(x))
    assert (layer["tag"], layer["dropped_assignments"]) == ("derived", 0)
    block.bias = torch.tensor([0.0, 5, 5, 0, 0, 0, 0, 0])  # the choice is no longer that of the logits
    layer = one(block, x)
    assert layer["tokens_per_expert"] == chosen(block.gate(x) + block.bias) == [0, T, T, 0, 0, 0, 0, 0]
    block.bias = torch.zeros(EXPERTS)
    block.room = 3
    layer = one(block, x)
    assigned = chosen(block.gate(x))
    assert layer["kept_per_expert"] == [min(3, count) for count in assigned]
    assert layer["tokens_per_expert"] == assigned
    assert layer["dropped_assignments"] == sum(max(0, count - 3) for count in assigned) > 0


def test_equal_lots_at_the_experts_prove_nothing():
    block = GateBlock()
    seen = watch(block)
    x = torch.randn(T, WIDTH)
    block.gate(x)
    for expert in block.experts:
        expert(torch.zeros(2, WIDTH))
    (layer,) = seen.read()
    assert (layer["tag"], layer["dropped_assignments"]) == ("logits-only", None)
    assert layer["tokens_per_expert"] == chosen(block.gate(x))


def test_weights_of_zero_are_choices_without_a_place():
    logits, weights, numbers = pick()
    weights[3] = 0
    weights[5, 1] = 0
    layer = one(Around(named("Router")(logits, weights, numbers, top_k=TOP_K, num_experts=EXPERTS)))
    assert layer["tokens_per_expert"] == chosen(logits)
    assert (layer["dropped_assignments"], layer["tokens_fully_dropped"]) == (3, 1)


@pytest.mark.parametrize("order", ["numbers first", "by choice", "flat", "top 1"])
def test_numbers_in_every_layout(order):
    logits, weights, numbers = pick(top_k=1 if order == "top 1" else TOP_K)
    outputs = {
        "numbers first": (numbers, weights),
        "by choice": (weights.T, numbers.T.int(), logits),
        "flat": (weights.flatten(), numbers.flatten()),
        "top 1": (weights[:, 0], numbers[:, 0]),
    }
    router = named("TopKRouter")(*outputs[order], n_experts=EXPERTS, k=numbers.shape[1])
    assert one(Around(router))["tokens_per_expert"] == chosen(logits, numbers.shape[1])


def test_numbers_out_of_range_are_nobody():
    _, weights, numbers = pick()
    hidden = numbers.clone()
    hidden[0, 0] = -1
    hidden[1] = -1
    layer = one(Around(named("Router")(hidden, weights, num_experts=EXPERTS)))
    assert layer["tokens_per_expert"] is None
    assert sum(layer["kept_per_expert"]) == 2 * T - 3
    assert (layer["dropped_assignments"], layer["tokens_fully_dropped"]) == (3, 1)


def test_masks_and_sparse_scores():
    logits, weights, numbers = pick()
    mask = torch.zeros(T, EXPERTS, dtype=torch.bool).scatter(1, numbers, True)
    scores = torch.zeros(T, EXPERTS).scatter(1, numbers, weights)
    want = chosen(logits)
    by_choice = torch.stack([torch.zeros(T, EXPERTS).scatter(1, number[:, None], 1) for number in numbers.T])
    places = by_choice[..., None].expand(-1, -1, -1, 5).bool()
    for output in ((scores, mask), (mask.int(),), (scores,), (by_choice.long(), scores), (places,)):
        layer = one(Around(named("Router")(*output, num_experts=EXPERTS, top_k=TOP_K)))
        assert (layer["kept_per_expert"] or layer["tokens_per_expert"]) == want
    assert one(Around(named("Router")(logits, num_experts=EXPERTS, top_k=TOP_K)))["tokens_per_expert"] == want


def test_a_name_without_experts_beside_it_is_no_router():
    class RouterNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.forget = named("ForgetGate")(torch.zeros(1))
            self.attention_router = named("Router")(torch.zeros(1))
            self.gate = nn.Linear(WIDTH, EXPERTS)

        def forward(self, x):
            return x

    assert find(RouterNet()) == []


def test_a_root_called_router_is_none_without_a_number_of_experts():
    assert [site.name for site in find(named("SemanticRouter", base=GateBlock)(Bank()))] == ["gate"]
    assert find(named("SemanticRouter")(torch.zeros(1))) == []
    assert len(watch(named("SemanticRouter")(torch.zeros(1))).read()) == 1  # asked for by name


def test_shared_experts_are_no_bank():
    block = nn.Module()
    block.gate = nn.Linear(WIDTH, EXPERTS)
    block.shared_experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(EXPERTS))
    assert find(block) == []


def test_names_are_without_wrappers():
    net = nn.Module()
    net.module = nn.Module()
    net.module._orig_mod = Net()
    assert [site.name for site in find(net)] == ["blocks.0.router", "blocks.1.router"]


def test_a_module_that_is_itself_the_router():
    layer = one(named("MyTopKRouter", base=TripleRouter)())
    assert layer["name"] == "MyTopKRouter" and sum(layer["tokens_per_expert"]) == T * TOP_K


# ---------------------------------------------------------------- declared


class Opaque(nn.Module):
    """Routes in a way that no rule sees."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH, EXPERTS)
        self.last = None

    def forward(self, x):
        best = self.proj(x).topk(TOP_K, -1)
        self.last = best.indices
        return {"mixed": best.values, "full": best.values < best.values.median()}


def test_declared_by_function_attribute_and_index():
    block, x = Opaque(), torch.randn(T, WIDTH)
    assert find(block) == []
    declare(
        block,
        indices="last",
        probs=lambda module, args, output: module.proj(args[0]).softmax(-1),
        dropped=lambda module, args, output: output["full"],
        capacity=7,
    )
    layer = one(block, x)
    full = block(x)["full"]
    assert layer["tokens_per_expert"] == chosen(block.proj(x))
    assert layer["dropped_assignments"] == int(full.sum())
    assert layer["tokens_fully_dropped"] == int(full.all(-1).sum())
    assert (layer["tag"], layer["capacity"]) == ("derived", 7) and layer["entropy"]


def test_declared_probabilities_alone():
    block = Around(nn.Linear(WIDTH, EXPERTS), top_k=TOP_K)
    declare(block.router, probs=lambda module, args, output: output.softmax(-1))
    x = torch.randn(T, WIDTH)
    layer = one(block, x)
    assert layer["tokens_per_expert"] == chosen(block.router(x)) and layer["dropped_assignments"] == 0


def test_a_declaration_that_does_not_fit_is_said():
    block = Opaque()
    declare(block, indices=lambda module, args, output: output["nothing"])
    layer = one(block)
    assert layer["tag"] == "unsupported" and "nothing" in layer["reason"]


# ---------------------------------------------------------------- what can't be read; the run goes on


def test_an_unexpected_shape_is_said():
    layer = one(Around(named("Router")(torch.zeros(3, 5, 7), num_experts=EXPERTS)))
    assert layer["tag"] == "unsupported" and "[3, 5, 7] float32" in layer["reason"]
    assert layer["tokens_per_expert"] is None and layer["dropped_rate"] is None


def test_a_shape_that_changes_is_said():
    logits, weights, numbers = pick()
    router = named("Router")(logits, weights, numbers, num_experts=EXPERTS)
    block = Around(router)
    seen = watch(block)
    block(torch.randn(T, WIDTH))
    router.output = (logits, weights[:, :1], numbers[:, :1])
    block(torch.randn(T, WIDTH))
    (layer,) = seen.read()
    assert layer["tag"] == "unsupported" and "changed" in layer["reason"] and layer["tokens_per_expert"] is None
    seen.reset()
    block(torch.randn(T, WIDTH))
    assert sum(seen.read()[0]["tokens_per_expert"]) == T


@pytest.mark.parametrize("place", [0, 1])
def test_nan_is_said_and_forgotten_on_reset(place):
    output = list(pick())
    router = named("Router")(*output, num_experts=EXPERTS)
    block = Around(router)
    seen = watch(block)
    broken = [part.clone() for part in output]
    broken[place][0, 0] = math.nan
    router.output = tuple(broken)
    block(torch.randn(T, WIDTH))
    (layer,) = seen.read()
    assert layer["tag"] == "unsupported" and "NaN" in layer["reason"] and layer["tokens_per_expert"] is None
    router.output = tuple(output)
    seen.reset()
    block(torch.randn(T, WIDTH))
    assert seen.read()[0]["tag"] == "derived" and seen.read()[0]["tokens_per_expert"] == chosen(output[0])


def test_an_exception_while_reading_never_reaches_the_run():
    block = Opaque()
    declare(block, indices=lambda module, args, output: 1 / 0)
    layer = one(block)
    assert layer["tag"] == "unsupported" and "division" in layer["reason"]


def test_a_router_that_never_fires_is_reported():
    class Fused(Around):
        def forward(self, x):
            return x

    layer = one(Fused(named("Router")(torch.zeros(1), num_experts=EXPERTS)))
    assert layer["tag"] == "unsupported" and "never called" in layer["reason"] and layer["assignments"] is None


# ---------------------------------------------------------------- libraries, by the shapes they publish


def parallel(name: str):
    return named(name, "megablocks.layers", Bank)()


def test_megablocks():
    logits, weights, numbers = pick()
    args = type("Arguments", (), {"moe_num_experts": EXPERTS, "moe_top_k": TOP_K, "moe_capacity_factor": 1.0})()
    router = named("LearnedRouter", "megablocks.layers.router")(logits.softmax(-1), weights, numbers, args=args)
    assigned, capacity = chosen(logits), T * TOP_K // EXPERTS
    limited = one(Around(router, parallel("ParallelMLP")))
    assert limited["tokens_per_expert"] == assigned
    assert limited["kept_per_expert"] == [min(capacity, count) for count in assigned]
    assert limited["dropped_assignments"] == sum(max(0, count - capacity) for count in assigned)
    dropless = one(Around(router, parallel("ParallelDroplessMLP")))
    assert (dropless["dropped_assignments"], dropless["dropless"]) == (0, True)


def fast_gate(name: str, top_k: int, **more):
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(WIDTH, EXPERTS)
            self.tot_expert, self.top_k, self.prune = EXPERTS, top_k, 0
            for key, value in more.items():
                setattr(self, key, value)

        def forward(self, x):
            best = self.gate(x).topk(self.top_k, -1)
            numbers = best.indices.clone()
            numbers.view(-1)[: self.prune] = -1
            return numbers, best.values.softmax(-1)

    return type(name, (Gate,), {"__module__": "fmoe.gates"})()


def test_fastmoe():
    x = torch.randn(T, WIDTH)
    gate = fast_gate("NaiveGate", TOP_K)
    assert one(gate, x)["tokens_per_expert"] == chosen(gate.gate(x)) and one(gate, x)["dropless"]
    gate = fast_gate("GShardGate", TOP_K, random_routing=False, prune=5)
    layer = one(gate, x)
    assert layer["tokens_per_expert"] == chosen(gate.gate(x)) and layer["dropped_assignments"] == 5
    layer = one(fast_gate("GShardGate", TOP_K, random_routing=True, prune=5), x)
    assert layer["dropped_assignments"] is None and sum(layer["kept_per_expert"]) == T * TOP_K - 5
    layer = one(fast_gate("SwitchGate", 1, prune=4), x)
    assert (layer["tokens_per_expert"], layer["dropped_assignments"], layer["tokens_fully_dropped"]) == (None, 4, 4)


def test_olmo_core_nemo_automodel_litgpt_and_tutel():
    logits, weights, numbers = pick()
    counts = torch.tensor(chosen(logits))
    three = (weights.view(3, 4, TOP_K), numbers.view(3, 4, TOP_K), counts, None)
    known = {"num_experts": EXPERTS, "top_k": TOP_K}
    olmo = named("MoELinearRouter", "olmo_core.nn.moe.router", named("MoERouter", "olmo_core.nn.moe.router"))
    free = one(named("DroplessMoE", "olmo_core", Around)(olmo(*three, **known)))
    assert free["tokens_per_expert"] == chosen(logits) and free["dropped_assignments"] == 0
    tight = one(named("MoE", "olmo_core", Around)(olmo(*three, **known), capacity_factor=1.2))
    assert tight["tokens_per_expert"] == chosen(logits) and tight["dropped_assignments"] is None
    nemo = named("Gate", "nemo_automodel.components.moe.layers")(weights, numbers, None, n_experts=EXPERTS, topk=TOP_K)
    assert one(Around(nemo))["tokens_per_expert"] == chosen(logits)
    lit = named("GroupedTopkRouter", "litgpt.model")(weights, numbers, n_expert=EXPERTS)
    assert one(Around(lit))["tokens_per_expert"] == chosen(logits)
    tutel = one(named("LinearTopKGate", "tutel.gates.top")(logits, top_k=TOP_K, num_global_experts=EXPERTS, E=EXPERTS))
    assert (tutel["tag"], tutel["tokens_per_expert"]) == ("logits-only", chosen(logits))


def test_transformers_4_shapes():
    logits, weights, numbers = pick()
    here = "transformers.models.{0}.modeling_{0}".format
    known = {"num_experts": EXPERTS, "top_k": TOP_K}
    want = chosen(logits)
    sparse = torch.zeros(T, EXPERTS).scatter(1, numbers, weights)
    routers = {
        ("DeepseekV3TopkRouter", "deepseek_v3"): (numbers, weights),
        ("GptOssTopKRouter", "gpt_oss"): (sparse, numbers),
        ("GraniteMoeTopKGating", "granitemoe"): (numbers.view(-1), numbers.view(-1), weights.view(-1), want, logits),
        ("DbrxRouter", "dbrx"): (logits.softmax(-1), weights, numbers),
        ("Llama4Router", "llama4"): (sparse, logits),
    }
    for (name, family), output in routers.items():
        layer = one(Around(named(name, here(family))(*output, **known)))
        assert layer["tokens_per_expert"] == want, name
        assert layer["dropped_assignments"] == 0


def test_what_transformers_names_itself():
    """A router class that only the model's own registry of recordable outputs points at."""
    logits, _, _ = pick()
    chooser = named("Chooser")
    recorder = type("OutputRecorder", (), {"target_class": chooser, "index": 1})()
    model = type("Model", (Around,), {"_can_record_outputs": {"router_logits": recorder}})
    layer = one(model(chooser(torch.zeros(T, WIDTH), logits, num_experts=EXPERTS, top_k=TOP_K)))
    assert (layer["tag"], layer["tokens_per_expert"]) == ("logits-only", chosen(logits))
