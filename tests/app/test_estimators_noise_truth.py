"""The noise scale of linear regression, where it is known in closed form; and why nothing temporal is used.

y = x.w* + e with x ~ N(0, 1)^d and error d = w - w*: a sample's gradient is x (x.d - e), so that G = d and
tr Sigma = (width + 1) |d|^2 + width Var e.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from bsmon.estimators import noise
from bsmon.model import NoiseSample

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WIDTH = 256
PARTS = 4


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def regression(phi: float, n: int, generator: Any, width: int = WIDTH, parts: int = PARTS) -> list[NoiseSample]:
    """n batches of the regression at |d| = 1, its noise set so that B_noise / B is ``phi`` exactly."""
    batch = max(32, parts * math.ceil((width + 1) / phi / parts))
    error = math.sqrt((phi * batch - (width + 1)) / width)
    samples = []
    for start in range(0, n, 50):
        count = min(50, n - start)
        x = torch.randn(count, parts, batch // parts, width, generator=generator)
        slip = x[..., 0] - error * torch.randn(x.shape[:-1], generator=generator)
        h = torch.einsum("nrb,nrbd->nrd", slip, x) / batch
        totals, squares = h.sum(1).square().sum(-1).tolist(), h.square().sum(-1).tolist()
        samples += [NoiseSample(total, part) for total, part in zip(totals, squares, strict=True)]
    return samples


@pytest.mark.parametrize(("phi", "tolerance"), [(1.0, 0.06), (4.0, 0.06), (16.0, 0.15)])
def test_error_at_a_thousand_steps(phi: float, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(5)
    view = noise.estimate(regression(phi, 1000, generator), 32, ring=1000)
    assert view.state == "number"
    assert view.phi == pytest.approx(phi, rel=tolerance)


def test_a_weak_signal_is_a_lower_bound() -> None:
    """phi = 64 at 32 steps: what is known is that the noise scale is large."""
    generator = torch.Generator().manual_seed(6)
    views = [noise.estimate(regression(64.0, 32, generator)) for _ in range(100)]
    assert sum(view.state == "lower_bound" for view in views) >= 80
    assert sum(view.phi_low is not None and view.phi_low <= 64 for view in views) >= 90


@pytest.mark.parametrize("n", [24, 32, 63, 64, 128, 256])
@pytest.mark.parametrize("phi", [1.0, 4.0, 16.0, 64.0])
def test_coverage_of_the_interval(phi: float, n: int) -> None:
    """Nominally .95; at least .90 over repeated windows (200 of them, whose own error is .02)."""
    generator = torch.Generator().manual_seed(n)
    windows = 200
    pool = regression(phi, n * windows if n < 64 else 12800, generator, width=64)
    covered = tried = 0
    for start in range(0, len(pool) - n + 1, n):
        view = noise.estimate(pool[start : start + n])
        low = view.phi_low if view.phi_low is not None else math.inf
        high = view.phi_high if view.phi_high is not None else math.inf
        covered += low <= phi <= high
        tried += 1
    assert covered / tried >= 0.90 - (0.02 if tried < 100 else 0), f"{covered} of {tried}"


class Descent:
    """SGD on the same regression, at a share of the learning rate that is best for one step."""

    def __init__(self, share: float, phi: float, width: int = 64) -> None:
        self.share, self.phi, self.width = share, phi, width
        self.generator = torch.Generator().manual_seed(3)
        self.offset = torch.zeros(width)
        self.offset[0] = 1.0

    def steps(self, count: int) -> tuple[list[float], list[NoiseSample], list[Any]]:
        """True |G|^2, split gradients, and the gradient itself, with isotropic noise of tr Sigma / B = phi |G|^2."""
        truths, samples, gradients = [], [], []
        for _ in range(count):
            squared = float(self.offset.square().sum())
            each = math.sqrt(self.phi * squared / self.width / PARTS)
            h = self.offset / PARTS + each * torch.randn(PARTS, self.width, generator=self.generator)
            g = h.sum(0)
            truths.append(squared)
            samples.append(NoiseSample(float(g.square().sum()), h.square().sum(1).tolist()))
            gradients.append(g)
            best = 1 / (1 + self.phi)  # of a unit curvature: lr* = |G|^2 / (|G|^2 + tr Sigma / B)
            self.offset = self.offset - self.share * best * g
        return truths, samples, gradients


def temporal(gradients: list[Any]) -> float:
    """The estimator that is not used: products of successive gradients as the squared signal, hence phi."""
    signal = sum(float(a @ b) for a, b in itertools.pairwise(gradients))
    total = sum(float(g.square().sum()) for g in gradients[1:])
    return (total - signal) / signal


def test_at_fixed_weights_the_temporal_estimator_looks_right() -> None:
    truths, samples, gradients = Descent(0.0, 3.0).steps(2000)
    assert noise.estimate(samples, ring=2000).phi == pytest.approx(3.0, rel=0.1)
    assert temporal(gradients) == pytest.approx(3.0, rel=0.1)
    assert truths[0] == truths[-1]


@pytest.mark.parametrize("share", [0.5, 0.9, 1.2])
def test_in_training_the_temporal_estimator_is_wrong(share: float) -> None:
    """E[g_t . g_t+1] = |G|^2 (1 - lr/lr*): half the signal at half the best rate, none at the best, then negative."""
    truths, samples, gradients = Descent(share, 3.0).steps(200)
    scaled = [
        NoiseSample(s.total / truth, [part / truth for part in s.parts])
        for s, truth in zip(samples, truths, strict=True)
    ]
    unit = [g / math.sqrt(truth) for g, truth in zip(gradients, truths, strict=True)]
    assert noise.estimate(scaled).phi == pytest.approx(3.0, rel=0.15)
    assert abs(temporal(unit) / 3.0 - 1) > 0.8
