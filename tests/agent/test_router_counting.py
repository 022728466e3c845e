"""What counts and what does not: accumulation, evaluation, padding, recomputation; and that nothing is changed."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts  # noqa: E402

from bsmon_agent.routers import watch  # noqa: E402
from tests.agent.moe_models import EXPERTS, TOP_K, WIDTH, Block, Net, chosen, recomputed  # noqa: E402

aten = torch.ops.aten
SAVED = {
    aten.mm.default,
    aten._softmax.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.mul.Tensor,
    aten.add_.Tensor,
    aten.scatter_add_.default,
    aten.topk.default,
    aten.clamp.default,
    aten.remainder.Scalar,
    aten.div.Tensor,
    aten.special_entr.default,
}


def save_some(context, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = recomputed(False, context_fn=functools.partial(create_selective_checkpoint_contexts, save_some))
MODES = {
    "plain": (None, False),
    "reentrant": (recomputed(True), False),
    "non-reentrant": (recomputed(False), False),
    "selective": (SELECTIVE, False),
    "selective over both": (SELECTIVE, True),
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def batch(*shape: int):
    return torch.randn(*(shape or (2, 12)), WIDTH, requires_grad=True)


def gradients(net, x):
    net.zero_grad()
    net(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


def test_counts_are_those_of_the_choices():
    net = Net()
    seen = watch(net)
    x = batch()
    net(x)
    first, second = seen.read()
    assert first["name"] == "blocks.0.router"
    assert first["tokens_per_expert"] == chosen(x.reshape(-1, WIDTH) @ net.blocks[0].router.weight.T)
    assert sum(second["tokens_per_expert"]) == second["assignments"] == 24 * TOP_K
    assert (first["experts"], first["top_k"], first["dropped_assignments"]) == (EXPERTS, TOP_K, 0)


@pytest.mark.parametrize("mode", MODES)
def test_recomputation_is_not_counted_and_gradients_stay_exact(mode):
    net, x = Net(*MODES[mode]), batch()
    before = gradients(net, x)
    seen = watch(net)
    after = gradients(net, x)
    assert max((a - b).abs().max().item() for a, b in zip(before, after, strict=True)) == 0.0
    plain = Net()
    plain.load_state_dict(net.state_dict())
    reference = watch(plain)
    plain(x)
    assert [layer["tokens_per_expert"] for layer in seen.read()] == [
        layer["tokens_per_expert"] for layer in reference.read()
    ]


def test_a_half_guarded_hook_would_be_caught_here():
    """The same network under selective checkpointing with a hook that only skips the recomputation."""
    net, x = Net(SELECTIVE, together=True), batch()
    before = gradients(net, x)
    held = []

    def hook(module, args, output):
        if torch._C._current_graph_task_id() == -1:
            with torch.no_grad():
                held.append(output[0].softmax(-1).sum())

    for block in net.blocks:
        block.router.register_forward_hook(hook)
    try:
        after = gradients(net, x)
    except Exception:
        return  # it crashes the training: seen as well
    assert max((a - b).abs().max().item() for a, b in zip(before, after, strict=True)) > 0


@pytest.mark.parametrize("mode", MODES)
def test_trained_weights_are_bit_identical(mode):
    def train(watched: bool):
        torch.manual_seed(1)
        net = Net(*MODES[mode])
        seen = watch(net) if watched else None
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for _ in range(3):
            for _ in range(2):
                net(batch()).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert seen is None or seen.read()[0]["assignments"] == 6 * 24 * TOP_K
        return [*net.parameters(), torch.rand(3)]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True), strict=True))


def test_micro_batches_add_up_and_evaluation_does_not():
    net = Net()
    seen, every = watch(net), watch(net, training_only=False)
    for _ in range(3):
        net(batch())
    net.eval()
    with torch.no_grad():
        net(batch())
    assert [layer["assignments"] for layer in seen.read()] == [3 * 24 * TOP_K] * 2
    assert [layer["assignments"] for layer in every.read()] == [4 * 24 * TOP_K] * 2


def test_evaluation_alone_is_no_zero():
    net = Net().eval()
    seen = watch(net)
    net(batch())
    layer = seen.read()[0]
    assert layer["tokens_per_expert"] is layer["assignments"] is None
    assert layer["tag"] == "unsupported" and "evaluation" in layer["reason"]


def test_padding_stands_apart():
    net, x = Net(), batch(4, 6)
    mask = torch.ones(4, 6, dtype=torch.int64)
    mask[1, 3:] = 0
    mask[3, 5:] = 0
    seen = watch(net)
    net(x, attention_mask=mask)
    layer = seen.read()[0]
    logits = x.reshape(-1, WIDTH) @ net.blocks[0].router.weight.T
    assert layer["tokens_per_expert"] == chosen(logits)
    assert layer["padding_per_expert"] == chosen(logits[mask.reshape(-1) == 0])
    seen.reset()
    net(x, mask)  # by position
    assert seen.read()[0]["padding_per_expert"] == layer["padding_per_expert"]
    seen.reset()
    net(x)
    assert seen.read()[0]["padding_per_expert"] is None


def test_reset_and_close():
    net = Net()
    seen = watch(net)
    net(batch())
    seen.reset()
    assert seen.read()[0]["tokens_per_expert"] is None
    net(batch())
    before = seen.read()
    seen.close()
    net(batch())
    assert seen.read() == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_copy_is_not_counted_and_a_pickle_holds_nothing_of_ours():
    net = Block()
    seen = watch(net)
    copy.deepcopy(net)(batch())
    stored = pickle.dumps(net)
    assert b"bsmon" not in stored
    pickle.loads(stored)(batch())
    assert seen.read()[0]["assignments"] is None
    net(batch())
    assert seen.read()[0]["assignments"] == 24 * TOP_K


def test_half_precision_and_float64():
    for dtype in (torch.bfloat16, torch.float64):
        net = Block().to(dtype)
        seen = watch(net)
        with torch.no_grad():
            net.router(batch().to(dtype))
        assert sum(seen.read()[0]["tokens_per_expert"]) == 24 * TOP_K


def test_inference_mode_can_be_watched():
    net = Block().eval()
    seen = watch(net, training_only=False)
    with torch.inference_mode():
        net(batch())
    assert seen.read()[0]["assignments"] == 24 * TOP_K
