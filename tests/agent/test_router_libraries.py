"""Layers of real libraries, whose counts were found apart from their routers (tests/data/routers holds them): token
numbers read at each expert's input, intended choices worked out in plain Python, the rule of dropping simulated.

A library that is not installed is skipped; ``pip install -r tests/requirements-routers.txt`` gets them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bsmon_agent.routers import watch  # noqa: E402

DATA = Path(__file__).parents[1] / "data" / "routers"
T, D, E, K, INNER = 96, 32, 8, 2, 4


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def truth(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{case}.json").read_text())
    return found


def compare(layer: dict[str, Any], case: str, assigned: bool = True) -> None:
    """Everything that the case tells, exactly."""
    want = truth(case)
    assert layer["tokens_per_expert"] == (want["assigned"]["counts"] if assigned else None)
    assert layer["kept_per_expert"] == want["kept"]["counts"]
    assert layer["dropped_assignments"] == want["dropped_assignments"]
    assert layer["tokens_fully_dropped"] == want["tokens_fully_dropped"]
    assert layer["dropped_rate"] == want["assignment_drop_rate"]
    assert layer["cv_sampling"] == pytest.approx(want["load_cv_null"])
    assert layer["entropy"] == pytest.approx(want["router_entropy_normalized"], rel=1e-6)
    assert layer["policy_skipped"] == want.get("second_choice_skipped_by_policy", 0)
    if assigned:
        for ours, theirs in {"load_variance": "variance", "load_cv": "cv", "max_over_mean": "max_over_mean"}.items():
            assert layer[ours] == pytest.approx(want["assigned"][theirs])
        assert len(layer["dead_experts"]) == want["assigned"]["dead_experts"]


def called(module: Any, *args: Any) -> dict[str, Any]:
    seen = watch(module, training_only=False)
    with torch.no_grad():
        module(*args)
    (layer,) = seen.read()
    seen.close()
    return layer


# ---------------------------------------------------------------- transformers


def skewed():
    torch.manual_seed(3)
    weight = torch.randn(E, D) * 0.35
    weight[:, -2:] = 0
    weight[0, 0] += 1.2
    weight[1, 0] += 0.8
    weight[E - 1] = 0
    weight[E - 1, -2] = -50.0  # dead: the feature is 1
    return weight


def inputs():
    torch.manual_seed(4)
    x = torch.randn(1, T, D)
    x[..., 0] += 0.8
    x[..., -1] = 0
    x[..., -2] = 1.0
    return x


def hf_block(family: str, config: str, block: str, **more: Any):
    configuration = pytest.importorskip(f"transformers.models.{family}.configuration_{family}")
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    base = {"hidden_size": D, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
    made = getattr(configuration, config)(**base, num_hidden_layers=2, vocab_size=32, **more)
    made._experts_implementation = "eager"
    return getattr(modeling, block)(made).eval()


def test_mixtral():
    block = hf_block(
        "mixtral",
        "MixtralConfig",
        "MixtralSparseMoeBlock",
        intermediate_size=INNER,
        num_local_experts=E,
        num_experts_per_tok=K,
    )
    with torch.no_grad():
        block.gate.weight.copy_(skewed())
        block.experts.gate_up_proj.zero_(), block.experts.down_proj.zero_()
    layer = called(block, inputs())
    compare(layer, "hf5_mixtral")
    assert (layer["tag"], layer["name"], layer["dropless"]) == ("exact", "gate", True)


def test_deepseek_v3_chooses_by_sigmoid_bias_and_groups():
    block = hf_block(
        "deepseek_v3",
        "DeepseekV3Config",
        "DeepseekV3MoE",
        moe_intermediate_size=INNER,
        n_routed_experts=E,
        num_experts_per_tok=K,
        n_group=2,
        topk_group=1,
    )
    with torch.no_grad():
        block.gate.weight.copy_(skewed())
        block.gate.e_score_correction_bias.copy_(torch.tensor([-0.3, -0.2, 0, 0.1, 0.2, 0.25, 0.3, 0]))
        block.experts.gate_up_proj.zero_(), block.experts.down_proj.zero_()
    compare(called(block, inputs()), "hf5_deepseek_v3")


def test_gpt_oss():
    block = hf_block(
        "gpt_oss",
        "GptOssConfig",
        "GptOssMLP",
        intermediate_size=INNER,
        num_local_experts=E,
        num_experts_per_tok=K,
    )
    with torch.no_grad():
        block.router.weight.copy_(skewed())
        for parameter in block.experts.parameters():
            parameter.zero_()
    compare(called(block, inputs()), "hf5_gpt_oss")


def test_dbrx_answers_logits_alone():
    configuration = pytest.importorskip("transformers.models.dbrx.configuration_dbrx")
    modeling = importlib.import_module("transformers.models.dbrx.modeling_dbrx")
    ffn = configuration.DbrxFFNConfig(
        hidden_size=D,
        ffn_hidden_size=INNER,
        moe_num_experts=E,
        moe_top_k=K,
        moe_jitter_eps=None,
        moe_loss_weight=0.0,
        moe_normalize_expert_weights=1.0,
    )
    block = modeling.DbrxFFN(types.SimpleNamespace(ffn_config=ffn)).eval()
    with torch.no_grad():
        block.router.layer.weight.copy_(skewed())
        for parameter in block.experts.parameters():
            parameter.zero_()
    compare(called(block, inputs()), "hf5_dbrx")


def test_gemma4_answers_probabilities():
    modeling = pytest.importorskip("transformers.models.gemma4.modeling_gemma4")
    config = types.SimpleNamespace(hidden_size=D, num_experts=E, top_k_experts=K, rms_norm_eps=1e-6)
    router = modeling.Gemma4TextRouter(config)
    with torch.no_grad():
        router.proj.weight.copy_(skewed())
    compare(called(router, inputs().reshape(-1, D)), "hf5_gemma4_router")


def test_switch_drops_by_sequence():
    modeling = pytest.importorskip("transformers.models.switch_transformers.modeling_switch_transformers")
    transformers = importlib.import_module("transformers")
    batch, length, width = 3, 40, 16
    config = transformers.SwitchTransformersConfig(
        d_model=width, d_ff=8, num_experts=E, expert_capacity=5, router_jitter_noise=0.0, dropout_rate=0.0
    )
    torch.manual_seed(11)
    block = modeling.SwitchTransformersSparseMLP(config).eval()
    x = torch.randn(batch, length, width)
    x[..., -1] = torch.arange(1, batch * length + 1).view(batch, length).float()
    with torch.no_grad():
        weight = block.router.classifier.weight
        weight.copy_(torch.randn(E, width) * 0.4)
        weight[:, -1] = 0
        weight[0, 0] += 1.5
        weight[3] *= 0
        weight[3, -1] = -1.0
    layer = called(block, x)
    compare(layer, "hf5_switch_capacity")
    assert (layer["capacity"], layer["tag"]) == (5, "exact")


@pytest.mark.parametrize("mode", ["plain", "ckpt_nonreentrant", "ckpt_reentrant"])
def test_a_training_with_accumulation_padding_and_evaluation(mode):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=E,
        num_experts_per_tok=K,
        max_position_embeddings=64,
        use_cache=False,
        attn_implementation="eager",
    )
    model = transformers.MixtralForCausalLM(config).train()
    if mode != "plain":
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": mode.endswith("_reentrant")}
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(1)
    seen = watch(model)
    for step in truth(f"hf5_training_semantics_{mode}")["steps"]:
        for _ in range(2):
            ids = torch.randint(3, 64, (4, 12), generator=generator)
            mask = torch.ones_like(ids)
            mask[1, 7:] = mask[3, 9:] = 0
            ids[mask == 0] = 0
            labels = ids.masked_fill(mask == 0, -100)
            (model(input_ids=ids, attention_mask=mask, labels=labels).loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        evaluated = torch.randint(3, 64, (2, 12), generator=generator)
        model.eval()
        with torch.no_grad():
            model(input_ids=evaluated)
        model.train()
        for layer, want in zip(seen.read(), step["layers"], strict=True):
            assert layer["tokens_per_expert"] == want["counts_incl_padding"]
            real = [a - b for a, b in zip(layer["tokens_per_expert"], layer["padding_per_expert"], strict=True)]
            assert real == want["counts_excl_padding"]
            assert layer["load_variance"] == want["variance"] and layer["load_cv"] == pytest.approx(want["cv"])
        seen.reset()


def test_zero_and_skip_experts_are_policy():
    modeling = pytest.importorskip("transformers.models.longcat_flash.modeling_longcat_flash")
    configuration = importlib.import_module("transformers.models.longcat_flash.configuration_longcat_flash")
    torch.manual_seed(0)
    longcat = modeling.LongcatFlashMoE(
        configuration.LongcatFlashConfig(
            hidden_size=D, expert_ffn_hidden_size=INNER, n_routed_experts=6, zero_expert_num=2, moe_topk=K
        )
    ).eval()
    with torch.no_grad():
        for parameter in longcat.parameters():
            parameter.normal_(std=0.3)
        numbers = longcat.router(inputs())[2].flatten().tolist()
    layer = called(longcat, inputs())
    assert layer["tokens_per_expert"] == [numbers.count(expert) for expert in range(6)]
    assert layer["policy_skipped"] == numbers.count(6) + numbers.count(7) > 0
    assert (layer["dropped_assignments"], layer["assignments"]) == (0, sum(layer["tokens_per_expert"]))

    modeling = importlib.import_module("transformers.models.zaya.modeling_zaya")
    configuration = importlib.import_module("transformers.models.zaya.configuration_zaya")
    config = configuration.ZayaConfig(hidden_size=D, num_experts=E, num_experts_per_tok=1, router_hidden_size=8)
    zaya = modeling.ZayaRouter(config, 0).eval()
    with torch.no_grad():
        for parameter in zaya.parameters():
            parameter.normal_(std=0.5)
        zaya.balancing_biases.zero_()
        classes = zaya(inputs())[0].softmax(-1).argmax(-1).tolist()
    layer = called(zaya, inputs())
    assert layer["tokens_per_expert"] == [classes.count(expert) for expert in range(E)]
    assert layer["policy_skipped"] == classes.count(E) > 0 and layer["dropped_assignments"] == 0


def test_nllb_queues_second_choices_behind_first_ones():
    modeling = pytest.importorskip("transformers.models.nllb_moe.modeling_nllb_moe")
    configuration = importlib.import_module("transformers.models.nllb_moe.configuration_nllb_moe")
    torch.manual_seed(0)
    router = modeling.NllbMoeTop2Router(configuration.NllbMoeConfig(d_model=D, num_experts=E, expert_capacity=20))
    x = inputs().reshape(-1, D)
    with torch.no_grad():
        router.classifier.weight.copy_(skewed())
        best = (x @ router.classifier.weight.T).topk(2, -1).indices
    first, second = best[:, 0].tolist(), best[:, 1].tolist()
    room, kept = [20] * E, [0] * E
    for expert in [*first, *second]:
        kept[expert] += room[expert] > 0
        room[expert] -= 1
    layer = called(router, x)
    assert layer["tokens_per_expert"] == [first.count(e) + second.count(e) for e in range(E)]
    assert layer["kept_per_expert"] == kept
    assert layer["dropped_assignments"] == 2 * T - sum(kept) > 0


def test_what_is_no_router_is_unsupported():
    modeling = pytest.importorskip("transformers.models.doge.modeling_doge")
    config = types.SimpleNamespace(
        hidden_size=D,
        intermediate_size=8,
        hidden_act="silu",
        num_experts=16,
        num_experts_per_tok=2,
        norm_topk_prob=False,
        mlp_bias=False,
    )
    layer = called(modeling.DogeCDMoE(config), inputs())
    assert layer["tag"] == "unsupported" and "no router" in layer["reason"] and layer["tokens_per_expert"] is None


# ---------------------------------------------------------------- others


def numbered(*shape: int):
    """Inputs whose last feature numbers the tokens from 1, as in the cases."""
    x = torch.randn(*shape)
    x[..., -1] = torch.arange(1, x[..., 0].numel() + 1).view(shape[:-1]).float()
    return x


def tilt(weight: Any) -> None:
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape) * 0.3)
        weight[:, -1] = 0
        weight[0, 0] += 1.0
        weight[1, 1] += 0.8


@pytest.mark.parametrize("case", ["capacity_only", "random_policy"])
def test_st_moe(case):
    st_moe = pytest.importorskip("st_moe_pytorch")
    threshold = 1e-9 if case == "capacity_only" else 0.9
    torch.manual_seed(0)
    layer = st_moe.MoE(
        dim=16,
        num_experts=E,
        gating_top_n=2,
        threshold_train=threshold,
        capacity_factor_train=1.0,
        expert_hidden_mult=1,
    ).train()
    x = numbered(2, 48, 16)
    tilt(layer.gate.to_gates.weight)
    torch.manual_seed(7)
    seen = watch(layer)
    with torch.no_grad():
        layer(x)
    drawn = torch.rand(1)
    compare(seen.read()[0], f"st_moe_{case}", assigned=False)
    assert seen.read()[0]["capacity"] == 6
    seen.close()
    torch.manual_seed(7)
    with torch.no_grad():
        layer(x)
    assert torch.equal(torch.rand(1), drawn)  # the run's random numbers are as without us


@pytest.mark.parametrize("policy", ["all", "none", "random"])
def test_mixture_of_experts(policy):
    library = pytest.importorskip("mixture_of_experts")
    torch.manual_seed(0)
    moe = library.MoE(16, num_experts=E, second_policy_train=policy, capacity_factor_train=1.0)
    x = torch.randn(2, 48, 16)
    torch.manual_seed(3)
    draws = torch.zeros(2, 48).uniform_(0, 1).double()
    gates = torch.einsum("bnd,de->bne", x, moe.gate.w_gating).softmax(-1).double()
    best = gates.topk(2, -1)
    share = best.values[..., 1] / (best.values.sum(-1) + 1e-9)
    routed = {"all": torch.ones(2, 48, dtype=torch.bool), "none": torch.zeros(2, 48, dtype=torch.bool)}
    second = routed.get(policy, draws < share / 0.2)
    assigned, kept, lost = [0] * E, [0] * E, 0
    for batch in range(2):
        queues: list[list[tuple[int, int]]] = [[], []]
        for token in range(48):
            first, other = best.indices[batch, token].tolist()
            queues[0].append((token, first))
            if second[batch, token]:
                queues[1].append((token, other))
        used, served = [0] * E, set()
        for queue in queues:
            for token, expert in queue:
                assigned[expert] += 1
                if used[expert] < 6:
                    used[expert] += 1
                    kept[expert] += 1
                    served.add(token)
        lost += 48 - len(served)
    torch.manual_seed(3)
    layer = called(moe, x)
    assert layer["tokens_per_expert"] == assigned and layer["kept_per_expert"] == kept
    assert layer["dropped_assignments"] == sum(assigned) - sum(kept)
    assert layer["policy_skipped"] == 192 - sum(assigned) and layer["tokens_fully_dropped"] == lost


TORCHTITAN = """
import json, sys
from unittest.mock import MagicMock
for kernels in "minimal_async_ep.kernels", "minimal_async_ep.api":  # they want triton, the router does not
    sys.modules["torchtitan.distributed." + kernels] = MagicMock()
import torch
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import TokenChoiceTopKRouter
from bsmon_agent.routers import watch
gate = Linear.Config(in_features=16, out_features=8)
found = []
for score in "sigmoid", "softmax":
    torch.manual_seed(0)
    router = TokenChoiceTopKRouter(TokenChoiceTopKRouter.Config(num_experts=8, top_k=2, score_func=score, gate=gate))
    torch.nn.init.normal_(router.gate.weight)
    x, bias = torch.randn(2, 24, 16), torch.linspace(0, 0.5, 8)
    seen = watch(router)
    router(x, bias)
    logits = (x @ router.gate.weight.T).reshape(-1, 8)
    scores = logits.sigmoid() if score == "sigmoid" else logits.softmax(-1)
    numbers = (scores + bias).topk(2, -1).indices.flatten().tolist()
    shares = scores / scores.sum(-1, keepdim=True)
    entropy = float(torch.special.entr(shares).sum(-1).mean() / torch.tensor(8.0).log())
    found.append([seen.read()[0], [numbers.count(expert) for expert in range(8)], entropy])
print("\\n" + json.dumps(found))
"""


@pytest.mark.real
def test_torchtitan():
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    for layer, assigned, entropy in in_process(TORCHTITAN):
        assert layer["tokens_per_expert"] == layer["kept_per_expert"] == assigned
        assert layer["entropy"] == pytest.approx(entropy, rel=1e-5)
        assert (layer["tag"], layer["dropless"]) == ("exact", True)


def in_process(script: str, **environment: str) -> Any:
    """What a script of its own prints last, as JSON: for libraries that change a process they are imported into."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"BSMON": "0"} | environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


MEGATRON = {
    "dropless": {},
    "probs": {"moe_expert_capacity_factor": 1.0},
    "padded": {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
    "position": {"moe_expert_capacity_factor": 1.0, "moe_token_drop_policy": "position"},
    "sigmoid": {"moe_expert_capacity_factor": 1.25, "moe_router_score_function": "sigmoid"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MEGATRON)
def test_megatron(case, monkeypatch):
    pytest.importorskip("megatron.core")
    router_module = importlib.import_module("megatron.core.transformer.moe.router")
    configuration = importlib.import_module("megatron.core.transformer.transformer_config")
    original = router_module.apply_router_token_dropping
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    config = configuration.TransformerConfig(
        num_layers=1,
        hidden_size=D,
        num_attention_heads=2,
        num_moe_experts=E,
        moe_router_topk=K,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        use_cpu_initialization=True,
        **MEGATRON[case],
    )
    group = types.SimpleNamespace(tp=None, cp=None, tp_cp=None, tp_dp_cp=None)
    router = router_module.TopKRouter(config, pg_collection=group)
    with torch.no_grad():
        router.weight.copy_(skewed())
    router.gating = lambda x: torch.nn.functional.linear(x, router.weight)  # theirs insists on a GPU
    x = inputs().reshape(T, 1, D)
    chosen = (x.reshape(T, D) @ router.weight.T).topk(K, -1).indices.flatten().tolist()
    assigned = [chosen.count(expert) for expert in range(E)]
    layer = called(router, x)
    capacity = layer["capacity"] or T
    kept = [min(capacity, count) for count in assigned]
    assert layer["tokens_per_expert"] == assigned
    assert layer["kept_per_expert"] == kept
    assert layer["dropped_assignments"] == sum(assigned) - sum(kept)
    assert (layer["dropless"], layer["tag"], layer["top_k"]) == (case == "dropless", "exact", K)
    assert layer["entropy"] is not None
    assert router_module.apply_router_token_dropping is original


def test_fairscale():
    pytest.importorskip("fairscale")
    distributed = importlib.import_module("torch.distributed")
    moe_layer = importlib.import_module("fairscale.nn.moe.moe_layer")
    top2gate = importlib.import_module("fairscale.nn.moe.top2gate")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(1)
        gate = top2gate.Top2Gate(16, E)
        experts = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(E)])
        layer = moe_layer.MOELayer(gate, experts)
        x = numbered(8, 8, 16)
        tilt(gate.wg.weight)
        torch.manual_seed(2)
        found = called(layer, x)
    finally:
        distributed.destroy_process_group()
    compare(found, "fairscale_top2", assigned=False)
    assert found["capacity"] == 16


DEEPSPEED = """
import json, logging, os, sys
logging.disable(logging.WARNING)
import torch, deepspeed
from deepspeed.moe.layer import MoE
from bsmon_agent.routers import watch
torch.set_num_threads(1)
deepspeed.init_distributed("gloo", rank=0, world_size=1, verbose=False)
T, D, E, found = 64, 16, 8, {}
for case, (k, drop) in {"top1": (1, True), "top2": (2, True), "top4": (4, True), "top2_nodrop": (2, False)}.items():
    torch.manual_seed(0)
    moe = MoE(D, torch.nn.Linear(D, D), num_experts=E, k=k, capacity_factor=1.0, min_capacity=2, drop_tokens=drop,
              use_rts=False, top2_2nd_expert_sampling=False)
    moe.set_deepspeed_parallelism()
    x = torch.randn(1, T, D)
    x[..., -1] = torch.arange(1, T + 1).float()
    weight = moe.deepspeed_moe.gate.wg.weight
    with torch.no_grad():
        weight.copy_(torch.randn(E, D) * 0.3)
        weight[:, -1] = 0
        weight[0, 0] += 1.0
        weight[1, 1] += 0.8
    seen = watch(moe)
    with torch.no_grad():
        moe(x)
    (found[case],) = seen.read()
    seen.close()
    seen = watch(moe)
    with torch.no_grad():
        moe.deepspeed_moe.gate(x[0])  # the dense form of the same answer
    dense = seen.read()[0]
    for key in "tokens_per_expert", "kept_per_expert", "dropped_assignments":
        assert dense[key] == found[case][key], key
sys.__stdout__.write("\\n" + json.dumps(found))
"""


@pytest.mark.real
def test_deepspeed():
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29600 + os.getpid() % 300)}
    found = in_process(DEEPSPEED, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", DS_ACCELERATOR="cpu", **address)
    for case, layer in found.items():
        compare(layer, f"deepspeed_{case}")
        assert layer["dropless"] == (case == "top2_nodrop")
    assert [found[case]["capacity"] for case in ("top1", "top2", "top4")] == [8, 16, 32]
