"""The noise scale from squared norms: states, self-checks, verdicts, windows. No torch here."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmon.estimators import noise
from bsmon.estimators.student import quantile
from bsmon.model import Noise, NoiseSample, Record


def simulate(
    phi: float, n: int, parts: int = 4, width: int = 256, seed: int = 0, clip: float = 1.0
) -> list[NoiseSample]:
    """Steps whose gradient is a unit signal plus isotropic noise of tr Sigma / B = phi, in ``parts`` contributions.

    The squared norms are drawn, not the vectors: along the signal and across it (chi-square by its moments).
    """
    draw = random.Random(seed)
    each = math.sqrt(phi / parts / width)  # per coordinate, of one part's noise in g
    samples = []
    for _ in range(n):
        along = [1 / parts + draw.gauss(0, each) for _ in range(parts)]
        across = [draw.gammavariate((width - 1) / 2, 2) * each**2 for _ in range(parts)]
        cross = draw.gauss(0, 1) * each**2 * math.sqrt((width - 1) * parts * (parts - 1) * 2)
        total = sum(along) ** 2 + sum(across) + cross
        squares = [a * a + b for a, b in zip(along, across, strict=True)]
        samples.append(NoiseSample(total=max(0.0, total) * clip**2, parts=squares))
    return samples


def record(step: int, sample: NoiseSample | None = None, **fields: object) -> Record:
    given_fields = {"learning_rate": 0.1, "samples": 32, "optimizer": 0, **fields}
    sample = sample or NoiseSample(total=1.0, parts=[0.4, 0.4])
    return Record(seq=step, step=step, time=float(step), noise=sample, **given_fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("confidence", "dof", "value"),
    [(0.95, 1, 12.7062), (0.95, 2, 4.30265), (0.95, 7, 2.36462), (0.95, 23, 2.06866), (0.9, 60, 1.67065)],
)
def test_quantiles_of_student(confidence: float, dof: int, value: float) -> None:
    assert quantile(confidence, dof) == pytest.approx(value, rel=1e-5)


def test_pair_by_hand() -> None:
    """Two orthogonal unit contributions: no signal in common; two equal ones: no noise."""
    assert noise.pair(NoiseSample(total=2.0, parts=[1.0, 1.0])) == (0.0, 2.0)
    assert noise.pair(NoiseSample(total=4.0, parts=[1.0, 1.0])) == (4.0, 0.0)


def test_pair_of_unequal_weights() -> None:
    """g = G exactly, split 1:3: no noise is found only if the weights are used."""
    sample = NoiseSample(total=16.0, parts=[1.0, 9.0], weights=[0.25, 0.75])
    assert noise.pair(sample) == pytest.approx((16.0, 0.0))


@given(st.floats(1e-3, 1e3), st.lists(st.floats(0, 1e3), min_size=2, max_size=9), st.floats(-30, 30))
def test_a_common_factor_changes_nothing(total: float, parts: list[float], power: float) -> None:
    factor = 2.0 ** round(power)
    plain = noise.pair(NoiseSample(total=total, parts=parts))
    scaled = noise.pair(NoiseSample(total=total * factor, parts=[part * factor for part in parts]))
    assert plain and scaled
    assert scaled == (plain.signal * factor, plain.noise * factor)


numbers = st.floats(allow_nan=True, allow_infinity=True)
samples = st.builds(
    NoiseSample,
    total=numbers,
    parts=st.lists(numbers, max_size=5),
    weights=st.none() | st.lists(numbers, max_size=5),
    processes=st.integers(1, 9),
    residual=st.none() | numbers,
)


@given(st.lists(samples, max_size=5), st.integers(0, 60), st.none() | st.floats(0, 1e9))
def test_whatever_comes_in_a_view_comes_out(odd: list[NoiseSample], more: int, batch: float | None) -> None:
    view = noise.estimate(odd * 12 + simulate(2.0, more), batch, 64)
    assert view.state is not None
    assert (view.phi is None) == (view.state != "number")
    for value in (view.phi, view.phi_low, view.phi_high, view.signal, view.noise):
        assert value is None or math.isfinite(value)
    if view.phi_low is not None and view.phi_high is not None and view.phi is not None:
        assert 0 <= view.phi_low <= view.phi <= view.phi_high


def test_number_with_batch_and_tokens() -> None:
    view = noise.estimate(simulate(2.0, 256), 32, 64)
    assert view.state == "number"
    assert view.phi == pytest.approx(2.0, rel=0.15)
    assert view.b_noise_sequences == view.phi * 32
    assert view.b_noise_tokens == view.phi * 32 * 64
    assert (view.window, view.steps_measured, view.estimator) == (256, 256, "accumulation")
    assert view.signal == pytest.approx(1.0, rel=0.15)
    assert view.noise == pytest.approx(2.0, rel=0.1)


def test_without_a_batch_there_is_only_the_ratio() -> None:
    view = noise.estimate(simulate(2.0, 100))
    assert view.phi is not None
    assert view.b_noise_sequences is None
    assert view.b_noise_tokens is None


def test_measuring_until_24() -> None:
    assert noise.estimate([]).state == "measuring"
    short = noise.estimate(simulate(1.0, 23), 32)
    assert (short.state, short.reason) == ("measuring", "23 of 24 measured steps")
    assert noise.estimate(simulate(1.0, 24), 32).state == "number"


def test_unsupported_says_why() -> None:
    view = noise.estimate([], unsupported="BatchNorm")
    assert (view.state, view.reason) == ("unsupported", "BatchNorm")


def test_lower_bound_when_the_signal_drowns() -> None:
    view = noise.estimate(simulate(400.0, 64), 32)
    assert view.state == "lower_bound"
    assert view.phi is None
    assert view.phi_high is None
    assert view.phi_low is not None
    assert view.phi_low < 400
    assert view.verdict == "noise_limited"
    assert view.b_noise_sequences is None


def test_identical_parts_have_no_noise() -> None:
    view = noise.estimate([NoiseSample(total=4.0 + i * 1e-3, parts=[1.0 + i * 2.5e-4] * 2) for i in range(40)], 32)
    assert view.state == "number"
    assert view.phi == pytest.approx(0.0, abs=1e-9)
    assert view.verdict == "past_noise_scale"


def test_pure_zero_is_not_identifiable() -> None:
    view = noise.estimate([NoiseSample(total=0.0, parts=[0.0, 0.0])] * 40)
    assert view.state == "not_identifiable"


@pytest.mark.parametrize("clip", [0.0, 1e-3, 0.3])
def test_a_clipped_total_is_invalid(clip: float) -> None:
    """With the total clipped to nothing phi is -1: no number may come of it."""
    view = noise.estimate(simulate(3.0, 100, clip=clip), 32)
    assert (view.state, view.phi) == ("invalid", None)
    assert "clipped" in str(view.reason)


def test_a_total_too_large_for_its_parts_is_invalid() -> None:
    view = noise.estimate(simulate(1.0, 100, clip=3.0), 32)
    assert (view.state, view.phi) == ("invalid", None)
    assert noise.mismatch(NoiseSample(total=4.01, parts=[1.0, 1.0])) is None
    assert "larger than its parts allow" in str(noise.mismatch(NoiseSample(total=4.1, parts=[1.0, 1.0])))


def test_parts_that_do_not_add_up_are_invalid() -> None:
    good = simulate(1.0, 100)
    bad = [NoiseSample(total=s.total, parts=s.parts, residual=0.5) for s in good]
    assert noise.estimate(bad).state == "invalid"
    few = noise.estimate(good[:95] + bad[:5])
    assert (few.state, few.window) == ("number", 95)


def test_not_finite_steps_are_left_out() -> None:
    overflow = [NoiseSample(total=math.inf, parts=[math.nan, 1.0])] * 20
    view = noise.estimate(overflow + simulate(2.0, 60) + overflow, 32)
    assert (view.state, view.window, view.steps_measured) == ("number", 60, 100)


def test_a_drift_leaves_the_newest_half() -> None:
    view = noise.estimate(simulate(1.0, 128, seed=1) + simulate(8.0, 128, seed=2), 32)
    assert view.window is not None
    assert view.window <= 128
    assert view.phi == pytest.approx(8.0, rel=0.4)


def test_no_drift_keeps_the_window() -> None:
    kept = [noise.estimate(simulate(2.0, 256, seed=seed)).window for seed in range(60)]
    assert kept.count(256) >= 59


@pytest.mark.parametrize(
    ("phi", "n", "verdict"), [(8.0, 256, "noise_limited"), (1.4, 256, "efficient"), (0.1, 64, "past_noise_scale")]
)
def test_verdicts(phi: float, n: int, verdict: str) -> None:
    assert noise.estimate(simulate(phi, n), 32).verdict == verdict


@pytest.mark.parametrize("phi", [0.5, 4.0])
def test_no_verdict_across_a_limit(phi: float) -> None:
    assert noise.estimate(simulate(phi, 256, seed=1), 32).verdict is None


def test_steps_to_quarter_shrink_with_steps() -> None:
    early, late = (noise.estimate(simulate(6.0, n, seed=3)) for n in (24, 256))
    assert early.steps_to_quarter is not None
    assert early.steps_to_quarter > 0
    assert late.steps_to_quarter == 0
    assert noise.standing(early) == f"about {early.steps_to_quarter} more measured steps to ±25%"


def test_a_part_of_the_batch_is_brought_to_the_whole() -> None:
    """Two of eight processes' data in each measured gradient: the whole batch is four times less noisy."""
    seen = [NoiseSample(total=s.total, parts=s.parts[:2], processes=2) for s in simulate(4.0, 256)]
    alone, whole = (noise.estimate(seen, 64, data_parallel=n) for n in (2, 8))
    assert alone.phi is not None
    assert whole.phi == pytest.approx(alone.phi / 4)


class TestWords:
    def test_doubling_and_halving(self) -> None:
        """phi = 1: twice the batch takes 3/4 of the steps for 3/2 of the tokens."""
        assert noise.change(1.0, 2) == pytest.approx((0.75, 1.5))
        assert noise.change(1.0, 0.5) == pytest.approx((1.5, 0.75))
        assert noise.trade(Noise(phi=1.0))[0] == "twice the batch: 25% fewer steps for 50% more tokens"

    @given(st.floats(0, 1e6), st.floats(1 / 64, 64))
    def test_no_batch_is_better_in_both(self, phi: float, factor: float) -> None:
        steps, tokens = noise.change(phi, factor)
        assert (steps <= 1 + 1e-9 <= tokens + 2e-9) or (tokens <= 1 + 1e-9 <= steps + 2e-9)

    def test_past_is_worded_as_a_suspicion(self) -> None:
        assert noise.meaning(Noise(verdict="past_noise_scale")) == (
            "may be past the critical batch; verify with a branch"
        )
        assert noise.meaning(Noise()) is None


class TestWindow:
    def test_reset_on_learning_rate_batch_and_parts(self) -> None:
        old = [record(step) for step in range(50)]
        for change in ({"learning_rate": 0.01}, {"samples": 64}, {"optimizer": 1}):
            new = [record(step, **change) for step in range(50, 60)]
            assert len(noise.window(old + new)) == 10
        third = NoiseSample(total=1.0, parts=[0.3] * 3)
        assert len(noise.window(old + [record(step, third) for step in range(50, 60)])) == 10

    def test_a_schedule_keeps_the_neighbours(self) -> None:
        decay = [record(step, learning_rate=0.1 * 0.999**step) for step in range(400)]
        assert 150 < len(noise.window(decay)) < 256

    def test_the_rest_of_an_epoch_is_passed_over(self) -> None:
        records = [record(step, samples=9 if step % 20 == 19 else 32) for step in range(100)]
        assert len(noise.window(records)) == 95

    def test_skipped_and_unmeasured_steps_are_left_out(self) -> None:
        plain = [Record(seq=1, step=1, time=0.0), record(2, skipped=True), record(3)]
        assert len(noise.window(plain)) == 1
        assert noise.window(plain[:1]) == []

    def test_at_most_a_ring(self) -> None:
        assert len(noise.window([record(step) for step in range(1000)])) == 256

    def test_unknown_learning_rate_is_no_change(self) -> None:
        assert len(noise.window([record(step, learning_rate=None) for step in range(30)])) == 30


class TestRanks:
    def split(self, ranks: int, n: int, phi: float) -> list[list[Record]]:
        whole = simulate(phi, n, parts=ranks)
        return [
            [
                record(t, NoiseSample(s.total, [s.parts[rank]], estimator="ranks", processes=ranks))
                for t, s in enumerate(whole)
            ]
            for rank in range(ranks)
        ]

    def test_one_rank_alone_and_all_joined(self) -> None:
        ranks = self.split(4, 256, 2.0)
        alone = noise.estimate(noise.window(noise.join_ranks(ranks[:1])), 32, data_parallel=4)
        joined = noise.estimate(noise.window(noise.join_ranks(ranks)), 32, data_parallel=4)
        assert alone.phi == pytest.approx(2.0, rel=0.25)
        assert joined.phi == pytest.approx(2.0, rel=0.15)
        assert joined.estimator == "ranks"
        assert noise.window(noise.join_ranks(ranks))[0].seen == 4

    def test_a_rank_that_looked_at_other_steps(self) -> None:
        first, second = self.split(2, 100, 2.0)
        joined = noise.join_ranks([first[::2], second[::4]])
        assert [r.noise.seen for r in joined if r.noise] == [2, 1] * 25
        assert noise.estimate(noise.window(joined), 32, data_parallel=2).state == "number"

    def test_ranks_that_disagree_on_the_total_are_invalid(self) -> None:
        first, second = self.split(2, 40, 2.0)
        other = [
            record(r.step, NoiseSample(9.0, r.noise.parts, processes=2, estimator="ranks")) for r in second if r.noise
        ]
        assert noise.estimate(noise.window(noise.join_ranks([first, other]))).state == "invalid"

    def test_gradients_of_their_own_are_averaged(self) -> None:
        ranks = [[record(t, s) for t, s in enumerate(simulate(2.0, 100, seed=seed))] for seed in (1, 2)]
        joined = noise.window(noise.join_ranks(ranks))
        assert joined[0].total == pytest.approx((ranks[0][0].noise.total + ranks[1][0].noise.total) / 2)  # type: ignore[union-attr]
        view = noise.estimate(joined, 32, data_parallel=2)
        assert view.phi == pytest.approx(1.0, rel=0.25)
