"""What is read off real models, against what torch counts while they train."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import set_checkpoint_early_stop  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from bsmon.estimators import flops  # noqa: E402
from bsmon.model import Hello, ModelInfo, Record, Steps  # noqa: E402
from bsmon.store import Fleet  # noqa: E402
from bsmon_agent import modelinfo, modelshape  # noqa: E402
from bsmon_agent.session import Session  # noqa: E402

LENGTH, BATCH, VOCABULARY, WIDTH, HEADS, LAYERS = 64, 2, 512, 128, 4, 3


class CausalSelfAttention(nn.Module):
    """As in nanoGPT; ``size`` makes the heads wider than the model."""

    def __init__(self, size=WIDTH // HEADS):
        super().__init__()
        self.n_head, self.head_dim = HEADS, size
        self.c_attn = nn.Linear(WIDTH, 3 * HEADS * size, bias=False)
        self.c_proj = nn.Linear(HEADS * size, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.c_attn(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        # written out: torch counts its products
        mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, bias=False))


class TopTwoOfEight(nn.Module):
    """Every expert gets an even share of the tokens, so that the count does not depend on a router."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 8, bias=False)
        self.experts = nn.ModuleList(Mlp() for _ in range(8))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weight = self.gate(tokens).softmax(-1)
        parts = torch.cat([tokens, tokens]).chunk(8)
        y = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return (y.view(2, *tokens.shape).sum(0) * weight.amax(-1, keepdim=True)).view_as(x)


class Block(nn.Module):
    def __init__(self, attention, mlp):
        super().__init__()
        self.attn, self.mlp = attention(), mlp()

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, attention=CausalSelfAttention, mlp=Mlp, tied=True, config=None):
        super().__init__()
        if config is not None:
            self.config = config
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block(attention, mlp) for _ in range(LAYERS))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


class Adapted(nn.Module):
    """A frozen projection with a low-rank update beside it, as LoRA has it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, 4, bias=False)
        self.lora_b = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


def info(model, routers=()):
    counts, reason = modelshape.read(model, list(routers))
    assert reason is None
    return msgspec.convert({**counts, **modelshape.precision(model)}, ModelInfo)


def refused(model, routers=()):
    counts, reason = modelshape.read(model, list(routers))
    assert not any(name.startswith("matmul") for name in counts)
    return reason


def counted(model):
    """FLOPs a token of one forward and backward, as torch counts them."""
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH))
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    return counter.get_total_flops() / ids.numel()


def computed(model, routers=()):
    return flops.per_token(info(model, routers), LENGTH, "full")


# ------------------------------------------------------------------ against torch's own count


@pytest.mark.parametrize("tied", [True, False])
def test_a_dense_model(tied):
    model = Gpt(tied=tied)
    assert info(model).matmul == LAYERS * 12 * WIDTH**2 + VOCABULARY * WIDTH
    assert computed(model) == pytest.approx(counted(model), rel=0.001)


def test_wide_heads_are_read_off_the_modules():
    model = Gpt(attention=lambda: CausalSelfAttention(size=48))
    assert (info(model).attention_layers, info(model).attention_width) == (LAYERS, HEADS * 48)
    assert computed(model) == pytest.approx(counted(model), rel=0.001)


def test_active_experts_alone():
    model = Gpt(mlp=TopTwoOfEight)
    routers = [{"name": f"h.{layer}.mlp.gate", "experts": 8, "top_k": 2} for layer in range(LAYERS)]
    assert computed(model, routers) == pytest.approx(counted(model), rel=0.005)
    assert info(model, routers).matmul < 0.5 * sum(p.numel() for p in model.parameters())
    assert refused(model) == modelshape.NO_ROUTER
    assert refused(model, [{"name": "h.0.mlp.gate", "experts": 8}]) == modelshape.NO_SHARES


def test_low_rank_adapters_on_frozen_weights():
    model = Gpt().requires_grad_(False)
    for block in model.h:
        block.attn.c_attn = Adapted(block.attn.c_attn)
    found = info(model)
    assert found.matmul_frozen > 0.9 * found.matmul
    assert computed(model) == pytest.approx(counted(model), rel=0.03)  # a first layer's backward ends inside it
    assert computed(model) < 0.75 * computed(Gpt())


def test_frozen_first_layers_have_no_backward():
    model = Gpt(tied=False)
    for part in (model.wte, model.wpe, *model.h[:2]):
        part.requires_grad_(False)
    assert info(model).matmul_forward_only == 2 * 12 * WIDTH**2
    exact = counted(model)
    assert computed(model) == pytest.approx(exact, rel=0.05)
    assert 6 * info(model).matmul > 1.5 * exact


class Prompted(nn.Module):
    """Prompt tuning: what is trained is at the input, and registered last."""

    def __init__(self):
        super().__init__()
        self.base = Gpt(tied=False).requires_grad_(False)
        self.prompt = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, ids):
        x = self.base.wte(ids) + self.prompt(ids)
        for block in self.base.h:
            x = block(x)
        return self.base.lm_head(x)


def test_a_trained_embedding_needs_the_backward_through_all():
    model = Prompted()
    assert (info(model).matmul_forward_only, info(model).matmul_frozen) == (0, info(model).matmul)
    assert computed(model) == pytest.approx(counted(model), rel=0.001)


def test_a_frozen_output_projection_that_is_tied_has_a_backward():
    model = Gpt(tied=True)
    model.wte.requires_grad_(False)
    assert (info(model).matmul_forward_only, info(model).matmul_frozen) == (0, VOCABULARY * WIDTH)


def test_checkpointed_layers_are_computed_again():
    model = Gpt()
    for place, block in enumerate(model.h):
        model.h[place] = checkpoint_wrapper(block)
    found = info(model)
    again = flops.recomputed_per_token(found, LENGTH, "full")
    assert (found.matmul_recomputed, found.recomputed_layers) == (LAYERS * 12 * WIDTH**2, LAYERS)
    with set_checkpoint_early_stop(False):  # else torch spares itself a layer's last product
        assert computed(model) + again == pytest.approx(counted(model), rel=0.001)
    assert flops.recomputed_per_token(info(Gpt()), LENGTH, "full") is None


def test_partly_checkpointed_layers_are_not_taken_for_whole_ones():
    model = Gpt()
    model.h[0] = checkpoint_wrapper(model.h[0], context_fn=lambda: (None, None))
    assert info(model).matmul_recomputed is None
    model.h[1].gradient_checkpointing = True  # as transformers marks them
    assert (info(model).matmul_recomputed, info(model).recomputed_layers) == (12 * WIDTH**2, LAYERS)


def test_torchs_own_layers():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, bias=False)
    model = Gpt(attention=nn.Identity, mlp=lambda: layer, tied=False)
    assert (info(model).attention_layers, info(model).attention_width) == (1, WIDTH)


# ------------------------------------------------------------------ config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"n_layer": 3, "n_head": 4, "n_embd": 128}, (3, 128, None, None)),
        ({"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 128, "head_dim": 64}, (3, 256, None, None)),
        ({"n_layers": 3, "n_heads": 4, "dim": 128, "head_dim": None}, (3, 128, None, None)),
        (
            {
                "num_layers": 3,
                "num_attention_heads": 4,
                "qk_nope_head_dim": 32,
                "qk_rope_head_dim": 16,
                "v_head_dim": 32,
            },
            (3, 4 * 40, None, None),
        ),
        ({"n_layer": 3, "n_head": 4, "n_embd": 128, "sliding_window": 16}, (3, 128, 16, 3)),
        (
            {"n_layer": 3, "n_head": 4, "n_embd": 128, "sliding_window": 16}
            | {"layer_types": ["sliding_attention", "full_attention", "linear_attention"]},
            (2, 128, 16, 1),
        ),
        (
            {"n_layer": 3, "n_head": 4, "n_embd": 128, "sliding_window": 16, "use_sliding_window": False},
            (3, 128, None, None),
        ),
        ({"n_layer": True, "n_head": "4"}, (LAYERS, WIDTH, None, None)),  # then the modules are read
    ],
)
@pytest.mark.parametrize("kind", [dict, lambda **fields: SimpleNamespace(**fields)])
def test_attention_by_the_config(config, expected, kind):
    found = info(Gpt(config=kind(**config)))
    told = (found.attention_layers, found.attention_width, found.attention_window, found.windowed_layers)
    assert told == expected


def test_a_config_inside_a_wrapper_is_found():
    inner = Gpt(config=SimpleNamespace(n_layer=3, n_head=4, n_embd=64))
    assert info(nn.Sequential(inner)).attention_width == 64


# ------------------------------------------------------------------ what can't be known


class Strange(nn.Module):
    @property
    def gradient_checkpointing(self):
        raise RuntimeError("no")


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError("not yet")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 2)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 10)), modelshape.CONVOLUTIONS),
        (Classifier, modelshape.TIED),
        (lambda: Gpt(config={"is_encoder_decoder": True}), "encoder and a decoder"),
        (lambda: Gpt(config={"vision_config": {}}), "more than tokens"),
        (lambda: Gpt(config={"num_hidden_layers": 3, "num_hidden_groups": 1}), "share parameters"),
        (lambda: nn.Sequential(nn.TransformerDecoderLayer(WIDTH, HEADS)), "encoder and a decoder"),
        (lambda: Gpt(config=Hostile()), "not yet"),
    ],
)
def test_refused_with_the_reason(model, reason):
    assert reason in refused(model())


def test_attention_that_cannot_be_read_is_left_out():
    class CrossAttention(CausalSelfAttention):
        pass

    model = Gpt()
    model.h[0].cross = CrossAttention()
    assert info(model).attention_layers is None
    assert info(nn.Sequential(Strange(), nn.Linear(4, 4))).matmul == 20


# ------------------------------------------------------------------ dtype and devices


def test_the_dtype_in_use():
    model = Gpt()
    assert modelshape.compute_dtype(model) == "float32"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert modelshape.compute_dtype(model) == "bfloat16"
    assert modelshape.compute_dtype(model.to(torch.float16)) == "float16"


def test_a_cast_that_accelerate_or_a_quantiser_makes(monkeypatch):
    model = Gpt()
    model._original_forward = model.forward
    state = SimpleNamespace(AcceleratorState=SimpleNamespace(_shared_state={"_mixed_precision": "bf16"}))
    monkeypatch.setitem(__import__("sys").modules, "accelerate.state", state)
    assert modelshape.compute_dtype(model) == "bfloat16"
    packed = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    packed.quant_state = SimpleNamespace(shape=(4, 4), dtype=torch.float16)
    assert modelshape.elements(packed) == 16
    holder = nn.Module()
    holder.weight = packed
    assert modelshape.compute_dtype(holder) == "float16"


def test_devices_of_one_process():
    assert modelshape.devices(Gpt()) == 1
    assert modelinfo.shares(Gpt(), []) == {}


# ------------------------------------------------------------------ in a training


@pytest.fixture
def session():
    made = Session(name="run", publish=False)
    made.install()
    yield made
    made.close()


def trained(session, model, inputs, steps=5):
    """The job as it is shown after some steps under autocast."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(inputs)
        output.float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    session.steps.read()
    fleet = Fleet()
    hello = msgspec.convert(session.describe(), Hello)
    fleet.ingest(hello)
    records = msgspec.convert(session.ledger.drain(), list[Record])
    fleet.ingest(Steps(schema=1, session=hello.session, records=records))
    (job,) = fleet.jobs(records[-1].time)
    return hello, job


def test_a_training_on_tokens(session):
    model = Gpt()
    hello, job = trained(session, model, torch.randint(VOCABULARY, (BATCH, LENGTH)))
    assert (hello.model.compute_dtype, hello.model.devices) == ("bfloat16", 1)
    assert (job.model.flops_per_token, job.model.convention) == (computed(model), "full")
    assert job.unavailable["mfu"] == "no peak is known for a CPU"


def test_a_training_on_images(session):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))
    _, job = trained(session, model, torch.rand(4, 3, 8, 8))
    assert job.model.flops_per_token is None
    assert job.unavailable["model.flops_per_token"] == modelshape.CONVOLUTIONS


def test_a_training_on_anything_but_tokens(session):
    _, job = trained(session, nn.Linear(8, 8), torch.rand(4, 8))
    assert job.model.flops_per_token is None
    assert "no tokens were found" in job.unavailable["model.flops_per_token"]
