"""One gradient a step: the halves of its batch, layer by layer, against autograd on each half."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import noise_runs as runs  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from bsmon_agent.probes.noise import halves, layers  # noqa: E402

COVERED = (
    "words.weight",
    "norm.weight",
    "norm.bias",
    "up.weight",
    "up.bias",
    "down.weight",
    "down.bias",
    "head.weight",
)


@pytest.fixture(autouse=True)
def seeded() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(1)


def elements(model: nn.Module, names: Any = None) -> int:
    return sum(
        p.numel() for name, p in model.named_parameters() if p.requires_grad and (names is None or name in names)
    )


def check(model: nn.Module, covered: tuple[str, ...], batch: int = runs.BATCH) -> None:
    """Train without accumulation; the halves' norms over exactly these parameters."""
    start = copy.deepcopy(model)
    with runs.watching() as watched:
        runs.train(model, steps=2, parts=1, batch=batch, learning_rate=0.0)
    assert watched.notes == []
    (sample,) = watched.samples
    total, parts = runs.by_hand(start, *runs.data(1, batch), parts=2, only=covered)
    assert sample.total == pytest.approx(total, rel=1e-4)
    assert sample.parts == pytest.approx(parts, rel=1e-4)
    assert sample.coverage == pytest.approx(elements(model, covered) / elements(model))
    assert sample.estimator == "half_split"
    assert sum(sample.weights or ()) == pytest.approx(1.0)


def test_all_that_has_samples_in_its_input() -> None:
    """Positions are the same for every sample: their embedding can't be split."""
    check(runs.Tiny(), COVERED)


def test_clipping_changes_nothing() -> None:
    start = runs.Tiny()
    found = []
    for limit in (None, 1e-3):
        model = copy.deepcopy(start)
        clip = (lambda m=model: nn.utils.clip_grad_norm_(m.parameters(), 1e-3)) if limit else (lambda: None)
        with runs.watching() as watched:
            runs.train(model, parts=1, learning_rate=0.0, before_step=clip)
        found.append(watched.samples)
    assert len(found[0]) == 2
    assert found[0] == found[1]


def test_frozen_and_unused_parameters() -> None:
    check(runs.Tiny(frozen=True), tuple(name for name in COVERED if not name.startswith("up")))
    model = runs.Tiny(unused=True)
    with runs.watching() as watched:
        runs.train(model, steps=2, parts=1)
    assert watched.samples[0].coverage == pytest.approx(elements(model, COVERED) / elements(model))


def test_tied_weights_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each use shows a part of the gradient alone, be the norms what they may."""
    monkeypatch.setattr(halves, "AGREEMENT", math.inf)
    check(runs.Tiny(tied=True), tuple(name for name in COVERED if name not in ("words.weight", "head.weight")))


def test_weights_used_behind_the_layers_back_are_left_out() -> None:
    class Sly(runs.Tiny):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) + nn.functional.linear(self.words(ids), self.words.weight)

    class Functional(runs.Tiny):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            out = super().forward(ids)
            return out + nn.functional.linear(torch.ones_like(out[..., :1]) * 3, self.head.weight[:, :1])

    check(Functional(), tuple(name for name in COVERED if name != "head.weight"))
    check(Sly(), tuple(name for name in COVERED if name != "words.weight"))


def test_a_layer_that_is_called_twice_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "AGREEMENT", math.inf)

    class Twice(runs.Tiny):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.words(ids))
            return self.head(x + self.down(torch.tanh(self.up(x))) + self.down(torch.tanh(self.up(-x))))

    check(Twice(), ("words.weight", "norm.weight", "norm.bias", "head.weight"))


def test_an_odd_batch_has_unequal_halves() -> None:
    model = runs.Tiny()
    start = copy.deepcopy(model)
    with runs.watching() as watched:
        runs.train(model, steps=2, parts=1, batch=7, learning_rate=0.0)
    (sample,) = watched.samples
    assert sample.weights == pytest.approx([3 / 7, 4 / 7])
    ids, targets = runs.data(1, 7)
    for half, part in zip((slice(3), slice(3, None)), sample.parts, strict=True):
        share = len(ids[half]) / 7
        squared = runs.by_hand(start, ids[half], targets[half], parts=1, only=COVERED)[0]
        assert part == pytest.approx(squared * share**2, rel=1e-4)


def test_rows_of_samples_and_positions_together() -> None:
    class Flat(runs.Tiny):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1]))).flatten(0, 1)
            return self.head(x + self.down(torch.tanh(self.up(x)))).view(*ids.shape, -1)

    check(Flat(), COVERED)


def test_rms_norm_and_conv1d() -> None:
    class Conv1D(nn.Module):
        """As in transformers."""

        def __init__(self, outputs: int, inputs: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(inputs, outputs) / 4)
            self.bias = nn.Parameter(torch.zeros(outputs))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight + self.bias

    class Other(runs.Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(runs.WIDTH)  # type: ignore[assignment]
            self.up = Conv1D(12, runs.WIDTH)  # type: ignore[assignment]

    check(Other(), tuple(name for name in COVERED if name != "norm.bias"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers(reentrant: bool) -> None:
    """Reentrant: the recomputation is what autograd sees, and is split. Otherwise the activations may be gone."""

    class Recomputed(runs.Tiny):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.words(ids)
            x = checkpoint(lambda y: y + self.down(torch.tanh(self.up(self.norm(y)))), x, use_reentrant=reentrant)
            return self.head(x)

    start = Recomputed()
    alone, model = copy.deepcopy(start), copy.deepcopy(start)
    runs.train(alone, parts=1)
    with runs.watching() as watched:
        runs.train(model, parts=1)
    assert all(torch.equal(a, b) for a, b in zip(alone.state_dict().values(), model.state_dict().values(), strict=True))
    least = elements(model, ("words.weight", "head.weight")) / elements(model)
    assert len(watched.samples) == 2
    for sample in watched.samples:
        assert sample.coverage is not None
        assert sample.coverage > (0.8 if reentrant else least - 1e-6)


def test_no_activation_is_kept() -> None:
    """Weak references: what autograd lets go is gone."""
    freed: list[bool] = []

    class Watching(runs.Tiny):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            import weakref

            x = self.words(ids)
            middle = x * 2
            freed.append(False)
            where = len(freed) - 1
            weakref.finalize(middle, lambda: freed.__setitem__(where, True))
            with torch.no_grad():
                kept = middle.detach()
            del middle
            return self.head(self.up_and_down(kept + x))

        def up_and_down(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.tanh(self.up(self.norm(x))))

    with runs.watching() as watched:
        runs.train(Watching(), parts=1)
    assert watched.samples
    assert all(freed)


def test_autocast() -> None:
    """Layers are fed copies in half precision, which autograd keeps and the program does not."""
    model = runs.Tiny()

    def loss(m: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return runs.mean_loss(m, ids, targets)

    start, alone = copy.deepcopy(model), copy.deepcopy(model)
    runs.train(alone, parts=1, loss=loss)
    with runs.watching() as watched:
        runs.train(model, parts=1, loss=loss)
    assert all(torch.equal(a, b) for a, b in zip(alone.state_dict().values(), model.state_dict().values(), strict=True))
    sample = watched.samples[0]
    assert sample.coverage == pytest.approx(elements(model, COVERED) / elements(model))
    total, parts = runs.by_hand(start, *runs.data(1), parts=2, only=COVERED)
    assert sample.total == pytest.approx(total, rel=0.1)
    assert sample.parts == pytest.approx(parts, rel=0.1)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "CHUNK", 20)
    check(runs.Tiny(), COVERED)


def test_weights_stay_bit_identical_and_nothing_is_left_behind() -> None:
    start = runs.Tiny()
    alone, seen = copy.deepcopy(start), copy.deepcopy(start)
    runs.train(alone, steps=10, parts=1)
    with runs.watching() as watched:
        runs.train(seen, steps=10, parts=1)
    assert len(watched.samples) == 9
    assert all(torch.equal(a, b) for a, b in zip(alone.state_dict().values(), seen.state_dict().values(), strict=True))
    assert not any(layer._forward_hooks for layer in seen.modules())


def why(model: nn.Module, **options: Any) -> str:
    with runs.watching() as watched:
        runs.train(model, steps=6, parts=1, **options)
    hello: dict[str, Any] = {}
    watched.probe.describe(hello)
    assert watched.samples == []
    assert watched.notes == []
    return str(hello["unavailable"]["noise"])


def test_a_compiled_model_says_why_not() -> None:
    assert "compiled" in why(torch.compile(runs.Tiny(), backend="eager"))


def test_a_batch_of_one_says_why_not() -> None:
    assert "two or more samples" in why(runs.Tiny(), batch=1)


def test_no_layer_to_split_says_why_not() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(runs.WORDS, runs.WORDS))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table[ids]

    assert "no layer" in why(Bare())
