"""The probe and the estimator together against a noise scale that is known by enumerating every sample's gradient."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import noise_runs as runs  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402

from bsmon.estimators import noise  # noqa: E402

DATA = Path(__file__).parents[1] / "data" / "noise"
sys.path.insert(0, str(DATA))
from model import CharTransformer, dataset  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def frozen(steps: int, parts: int, batch: int = 32, seed: int = 11) -> Any:
    """What is seen of a training at learning rate zero from the checkpoint whose truth is in truth.json."""
    inputs, targets, vocabulary = dataset()
    model = CharTransformer(vocabulary)
    model.load_state_dict(torch.load(DATA / "checkpoint_300.pt")["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    generator = torch.Generator().manual_seed(seed)
    with runs.watching() as watched:
        for _ in range(steps):
            optimizer.zero_grad()
            for some in torch.randint(0, len(inputs), (batch,), generator=generator).split(batch // parts):
                loss = F.cross_entropy(model(inputs[some]).flatten(0, -2), targets[some].flatten())
                (loss / parts).backward()
            optimizer.step()
    return noise.estimate(watched.samples, batch, 64)


def truth() -> Any:
    return json.loads((DATA / "truth.json").read_text())["checkpoints"]["300"]


def test_a_frozen_transformer_by_accumulation() -> None:
    view, known = frozen(steps=121, parts=4), truth()
    assert view.state == "number"
    assert view.phi == pytest.approx(known["phi_at_batch_32"], rel=0.15)
    assert view.phi_low <= known["phi_at_batch_32"] <= view.phi_high
    assert view.noise * 32 == pytest.approx(known["trace_sigma"], rel=0.10)
    assert view.signal == pytest.approx(known["G2"], rel=0.10)


def test_a_frozen_transformer_by_halves() -> None:
    """Two parts tell less a step than four; what is covered is all but the position embedding."""
    view, known = frozen(steps=97, parts=1), truth()["per_parameter"]
    covered = [row for name, row in known.items() if name != "wpe.weight"]
    phi = sum(row["trS"] for row in covered) / sum(row["G2"] for row in covered) / 32
    assert view.estimator == "half_split"
    assert view.coverage == pytest.approx(1 - known["wpe.weight"]["numel"] / sum(r["numel"] for r in known.values()))
    assert view.phi == pytest.approx(phi, rel=0.15)
    assert view.phi_low <= phi <= view.phi_high


class Live:
    """A training that learns, with the exact signal and noise before every so many steps."""

    def __init__(self, batch: int, steps: int, seed: int, every: int = 5, population: int = 256) -> None:
        inputs, targets, vocabulary = dataset(16)
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(inputs), generator=generator)[:population]
        inputs, targets = inputs[chosen], targets[chosen]
        torch.manual_seed(seed)
        model = CharTransformer(vocabulary, width=16, layers=1, heads=2, length=16)
        twin = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        each = vmap(grad(lambda p, x, y: F.cross_entropy(functional_call(twin, p, (x[None],))[0], y)), (None, 0, 0))
        self.batch, self.every = batch, every
        self.truth: list[tuple[float, float]] = []
        with runs.watching() as watched:
            for step in range(steps):
                if step % every == 0:
                    weights = {name: p.detach() for name, p in model.named_parameters()}
                    self.truth.append(exact(each(weights, inputs, targets), batch))
                optimizer.zero_grad()
                for some in torch.randint(0, population, (batch,), generator=generator).chunk(4):
                    loss = F.cross_entropy(model(inputs[some]).flatten(0, -2), targets[some].flatten())
                    (loss / 4).backward()
                optimizer.step()
        self.samples = watched.samples  # of all steps but the first
        assert len(self.samples) == steps - 1

    def window(self, start: int, length: int) -> tuple[Any, float]:
        """The view of so many steps, and the true ratio over those that it rests on."""
        view = noise.estimate(self.samples[start : start + length], self.batch)
        first, last = start + 1 + length - (view.window or length), start + 1 + length
        within = self.truth[-(-first // self.every) : -(-last // self.every)]
        signal, spread = (sum(column) for column in zip(*within, strict=True))
        return view, spread / signal


def exact(gradients: dict[str, Any], batch: int) -> tuple[float, float]:
    """|G|^2 and tr Sigma / B from every sample's gradient."""
    squares = sum(g.flatten(1).square().sum(1) for g in gradients.values()).mean()
    signal = sum(g.mean(0).square().sum() for g in gradients.values())
    return float(signal), float(squares - signal) / batch


@pytest.fixture(scope="module")
def past_the_noise() -> Live:
    torch.set_num_threads(1)
    return Live(batch=128, steps=330, seed=0)


@pytest.fixture(scope="module")
def in_the_noise() -> Live:
    torch.set_num_threads(1)
    return Live(batch=16, steps=480, seed=0)


def test_a_training_that_learns_where_signal_and_noise_balance(past_the_noise: Live) -> None:
    for start in (100, 200):
        view, phi = past_the_noise.window(start, 128)
        assert 0.8 < phi < 2.2
        assert view.phi == pytest.approx(phi, rel=0.10)


def test_a_training_that_learns_in_much_noise(in_the_noise: Live) -> None:
    view, phi = in_the_noise.window(220, 256)
    assert 6 < phi < 9
    assert view.phi == pytest.approx(phi, rel=0.25)


def test_coverage_while_it_learns(past_the_noise: Live, in_the_noise: Live) -> None:
    """Windows that do not overlap, as each has its own chance."""
    held = []
    for live in (past_the_noise, in_the_noise):
        for start in range(0, len(live.samples) - 32, 32):
            view, phi = live.window(start, 32)
            assert view.state in ("number", "lower_bound")
            held.append(view.phi_low <= phi and (view.phi_high is None or phi <= view.phi_high))
    assert len(held) > 20
    assert sum(held) / len(held) >= 0.90 - 0.05  # 24 windows: one standard error
