"""Contributions of micro-batches: their norms against autograd by hand, on all kinds of models."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import noise_runs as runs  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from bsmon.estimators import noise  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(1)


class Checkpointed(runs.Tiny):
    """Recomputes its middle, which may use one layer twice."""

    def __init__(self, reentrant: bool, shared: bool = False) -> None:
        super().__init__()
        self.reentrant, self.shared = reentrant, shared

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for _ in range(2 if self.shared else 1):
            x = checkpoint(self.middle, x, use_reentrant=self.reentrant)
        return self.head(x)


MODELS = {
    "plain": lambda: runs.Tiny(),
    "tied": lambda: runs.Tiny(tied=True),
    "sparse": lambda: runs.Tiny(sparse=True),
    "unused": lambda: runs.Tiny(unused=True),
    "frozen": lambda: runs.Tiny(frozen=True),
    "recomputed": lambda: Checkpointed(reentrant=False),
    "recomputed, shared": lambda: Checkpointed(reentrant=False, shared=True),
    "recomputed, reentrant": lambda: Checkpointed(reentrant=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_norms_are_those_of_autograd(name: str) -> None:
    model = MODELS[name]()
    start = copy.deepcopy(model)
    with runs.watching() as watched:
        runs.train(model, steps=3, learning_rate=0.0)
    assert watched.notes == []
    assert len(watched.samples) == 2  # the first step tells how many passes there are
    for step, sample in enumerate(watched.samples, start=1):
        total, parts = runs.by_hand(start, *runs.data(step), parts=4)
        assert sample.total == pytest.approx(total, rel=1e-5)
        assert sample.parts == pytest.approx(parts, rel=1e-5)
        assert (sample.estimator, sample.coverage, sample.processes) == ("accumulation", 1.0, 1)
        assert sample.residual == pytest.approx(0.0, abs=1e-10)


def test_a_compiled_model_is_measured_alike() -> None:
    plain, fast = runs.Tiny(), runs.Tiny()
    fast.load_state_dict(plain.state_dict())
    found = []
    for model in (plain, torch.compile(fast, backend="aot_eager")):
        with runs.watching() as watched:
            runs.train(model, steps=3)
        found.append([noise.pair(sample) for sample in watched.samples])
    assert len(found[1]) == 2
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_arming_does_not_compile_again() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with runs.watching() as watched:
        model = torch.compile(runs.Tiny(), backend="aot_eager")
        runs.train(model, steps=2)
        before = counters["stats"]["unique_graphs"]
        runs.train(model, steps=3)
    assert watched.samples
    assert counters["stats"]["unique_graphs"] == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_gradients_are_summed_in_float(dtype: Any) -> None:
    model = runs.Tiny().to(dtype)
    start = copy.deepcopy(model)
    with runs.watching() as watched:
        runs.train(model, steps=2, learning_rate=0.0)
    total, parts = runs.by_hand(start, *runs.data(1), parts=4)
    assert watched.samples[0].parts == pytest.approx(parts, rel=0.02)
    assert watched.samples[0].total == pytest.approx(total, rel=0.02)
    assert watched.samples[0].residual < 1e-3


def ratio(watched: runs.Watched) -> list[float]:
    pairs = [noise.pair(sample) for sample in watched.samples]
    return [pair.noise / pair.signal for pair in pairs if pair]


@pytest.mark.parametrize("change", ["scale", "sum", "clip", "clip with a wild norm"])
def test_scale_sum_and_clip_change_nothing(change: str) -> None:
    """A power of two is exact; so is what happens after the backward pass."""
    start = runs.Tiny()
    factor = {"scale": 1024.0, "sum": runs.BATCH // 4 * runs.LENGTH}.get(change, 1.0)
    clip = {"clip": 1e-3, "clip with a wild norm": 1e-9}.get(change)
    found = []
    for scale, limit in ((1.0, None), (factor, clip)):
        model = copy.deepcopy(start)
        clipping = (lambda m=model, c=limit: nn.utils.clip_grad_norm_(m.parameters(), c)) if limit else (lambda: None)
        with runs.watching() as watched:
            runs.train(
                model,
                learning_rate=0.0,
                loss=lambda m, ids, wanted, s=scale: runs.mean_loss(m, ids, wanted) * s,
                before_step=clipping,
            )
        found.append(ratio(watched))
    assert len(found[0]) == 2
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    if change == "scale":
        assert found[1] == found[0]


def test_a_loss_scaler() -> None:
    """Scaled gradients give the same ratio, a step that overflows is not used, nor is one after it lost."""
    start = runs.Tiny()
    found = []
    for enabled in (False, True):
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=2.0**10)
        with runs.watching() as watched:
            for step in range(4):
                ids, targets = runs.data(step)
                for some, wanted in zip(ids.chunk(4), targets.chunk(4), strict=True):
                    loss = runs.mean_loss(model, some, wanted) / 4
                    scaler.scale(loss * torch.inf if enabled and step == 2 else loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        records = [r for r in watched.records if "noise" in r and not r.get("skipped")]
        pairs = {r["step"]: noise.pair(runs.msgspec.convert(r["noise"], runs.NoiseSample)) for r in records}
        found.append([pairs[step].noise / pairs[step].signal for step in sorted(pairs) if pairs[step]])
    assert len(found[0]) == 3
    assert found[1] == [found[0][0], found[0][2]]


def test_weights_stay_bit_identical() -> None:
    start = runs.Tiny(tied=True)
    alone, seen = copy.deepcopy(start), copy.deepcopy(start)
    runs.train(alone, steps=10)
    with runs.watching() as watched:
        runs.train(seen, steps=10)
    assert len(watched.samples) == 9
    assert all(torch.equal(a, b) for a, b in zip(alone.state_dict().values(), seen.state_dict().values(), strict=True))


def test_no_gradient_is_kept() -> None:
    """Between the passes of a step the probe holds 0-d tensors, and of one small parameter the sum."""
    model = runs.Tiny()
    held: list[int] = []

    def look(watched: runs.Watched) -> None:
        leaves = watched.probe._leaves
        if leaves is not None:
            lists = [value for value in vars(leaves).values() if isinstance(value, (list, torch.Tensor))]
            flat = [x for value in lists for x in (value if isinstance(value, list) else [value])]
            held.append(max(x.numel() for x in flat if isinstance(x, torch.Tensor)))

    with runs.watching() as watched:
        runs.train(model, before_step=lambda: look(watched))
    assert held
    assert max(held) <= max(p.numel() for p in model.parameters() if p.dim() == 1)


def test_micro_gradients_need_no_more_memory() -> None:
    """A hook that kept what it is given would force autograd to copy: the first gradient must become .grad itself."""
    model = runs.Tiny()
    seen: list[int] = []
    model.head.weight.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    with runs.watching() as watched:
        runs.train(model, before_step=lambda: seen.append(model.head.weight.grad.data_ptr()))
    assert watched.samples
    assert seen[-1] == seen[-5]


def test_unarmed_steps_have_no_hooks() -> None:
    model = runs.Tiny()
    hooks: list[bool] = []

    def look() -> None:
        hooks.append(any(p._backward_hooks for p in model.parameters()))

    with runs.watching() as watched:
        runs.train(model, steps=2, before_step=look)
        watched.session.governor.share = 0.0
        watched.probe.armed = False
        watched.session.dispatch.arm()
        runs.train(model, steps=3, before_step=look)
    assert hooks == [False, True, False, False, False]


class TestRefusals:
    def reason(self, watched: runs.Watched) -> str:
        hello: dict[str, Any] = {}
        watched.probe.describe(hello)
        assert watched.samples == []
        assert watched.notes == []
        return str(hello["unavailable"]["noise"])

    def test_reentrant_checkpointing_of_a_shared_parameter(self) -> None:
        with runs.watching() as watched:
            runs.train(Checkpointed(reentrant=True, shared=True), steps=6)
        assert "reentrant" in self.reason(watched)

    def test_batch_norm_while_it_trains(self) -> None:
        class Normed(runs.Tiny):
            def __init__(self) -> None:
                super().__init__()
                self.batch_norm = nn.BatchNorm1d(runs.LENGTH)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return self.batch_norm(super().forward(ids))

        model = Normed()
        with runs.watching() as watched:
            runs.train(model, steps=3)
            assert "BatchNorm" in self.reason(watched)
            model.batch_norm.eval()
            runs.train(model, steps=70)
        assert watched.samples

    def test_optimizer_in_backward(self) -> None:
        model = runs.Tiny()
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def apply(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(apply)
        with runs.watching() as watched:
            for step in range(8):
                runs.mean_loss(model, *runs.data(step)).backward()
        assert watched.samples == []

    def test_two_backward_passes_through_one_forward(self) -> None:
        model = runs.Tiny()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with runs.watching() as watched:
            for step in range(6):
                ids, targets = runs.data(step)
                loss = runs.mean_loss(model, ids, targets)
                loss.backward(retain_graph=True)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        assert "one forward" in self.reason(watched)

    def test_optimizers_that_take_turns(self) -> None:
        model = runs.Tiny()
        first = torch.optim.SGD(model.up.parameters(), lr=0.1)
        second = torch.optim.SGD(model.down.parameters(), lr=0.1)
        with runs.watching() as watched:
            for step in range(8):
                for optimizer in (first, second):
                    model.zero_grad()
                    for _ in range(2):
                        runs.mean_loss(model, *runs.data(step)).backward()
                    optimizer.step()
        assert "take turns" in self.reason(watched)


class TestMismatches:
    """What must become `invalid`, never a number."""

    def check(self, watched: runs.Watched) -> None:
        view = noise.estimate(watched.samples)
        assert (view.state, view.phi) == ("invalid", None)
        assert "do not add up" in str(view.reason)

    def test_gradients_that_were_not_zeroed(self) -> None:
        model = runs.Tiny()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with runs.watching() as watched:
            for step in range(40):
                ids, targets = runs.data(step)
                for some, wanted in zip(ids.chunk(2), targets.chunk(2), strict=True):
                    (runs.mean_loss(model, some, wanted) / 2).backward()
                optimizer.step()
                if step % 2:
                    optimizer.zero_grad()
        self.check(watched)

    def test_gradients_changed_on_the_way(self) -> None:
        model = runs.Tiny()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * 0.5))
        with runs.watching() as watched:
            runs.train(model, steps=40, learning_rate=0.0)
        self.check(watched)


def test_closures_measure_the_first_evaluation() -> None:
    """LBFGS evaluates many times a step; all its passes but those of the first evaluation are left alone."""
    model = runs.Tiny()
    start = copy.deepcopy(model)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-9, max_iter=3)
    with runs.watching() as watched:
        for step in range(3):

            def closure(step: int = step) -> torch.Tensor:
                ids, targets = runs.data(step)
                optimizer.zero_grad()
                losses = []
                for some, wanted in zip(ids.chunk(2), targets.chunk(2), strict=True):
                    losses.append(runs.mean_loss(model, some, wanted) / 2)
                    losses[-1].backward()
                return torch.stack(losses).sum()

            optimizer.step(closure)
    assert len(watched.samples) == 2
    total, parts = runs.by_hand(start, *runs.data(1), parts=2)
    assert watched.samples[0].total == pytest.approx(total, rel=1e-3)
    assert watched.samples[0].parts == pytest.approx(parts, rel=1e-3)


def test_uneven_micro_batches_are_left_out() -> None:
    model = runs.Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with runs.watching() as watched:
        for step in range(5):
            ids, targets = runs.data(step)
            sizes = [6, 2] if step == 3 else [4, 4]
            for some, wanted in zip(ids.split(sizes), targets.split(sizes), strict=True):
                (runs.mean_loss(model, some, wanted) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [("noise" in record) for record in watched.records] == [False, True, True, False, True]
