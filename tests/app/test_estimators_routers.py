"""Router statistics: against the given cases, against simulation, and over the ranks of a job."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmon.estimators import routers
from bsmon.estimators.routers import balance
from bsmon.model import Hello, MoeCounts, RankWindow, Record, RouterInfo

DATA = Path(__file__).parents[1] / "data" / "routers"
CASES = sorted(path.stem for path in DATA.glob("*.json") if "training_semantics" not in path.stem)
FAIRSCALE = {"fairscale_top2", "st_moe_capacity_only", "st_moe_random_policy"}  # show only what was kept


def info(**more) -> RouterInfo:
    return RouterInfo(**{"name": "layers.0.router", "router": "TopKRouter", "experts": 8, "top_k": 2} | more)


def counts(load, tokens=None, **more) -> MoeCounts:
    total = sum(load)
    known = {"tokens": tokens or total // 2, "assignments": total, "assigned": load, "dropped": 0, "calls": 1}
    return MoeCounts(**{"layer": 0} | known | more)


@pytest.mark.parametrize("case", CASES)
def test_the_given_cases(case):
    want = json.loads((DATA / f"{case}.json").read_text())
    hidden = case in FAIRSCALE
    one = MoeCounts(
        layer=0,
        tokens=want["tokens"],
        assignments=sum(want["assigned"]["counts"]),
        assigned=None if hidden else want["assigned"]["counts"],
        kept=want["kept"]["counts"],
        dropped=want["dropped_assignments"],
        fully_dropped=want["tokens_fully_dropped"],
        entropy=want["router_entropy_mean_nats"],
        calls=1,
    )
    layer = routers.layer_view(info(experts=want["experts"], top_k=want["top_k"]), [one])
    assert layer.kept_per_expert == want["kept"]["counts"]
    assert layer.dropped_rate == want["assignment_drop_rate"]
    assert layer.tokens_fully_dropped == want["tokens_fully_dropped"]
    assert layer.cv_sampling == pytest.approx(want["load_cv_null"])
    assert layer.entropy == pytest.approx(want["router_entropy_normalized"])
    if hidden:
        assert layer.tokens_per_expert is layer.load_cv is layer.dead_experts is None
        assert "only what was kept" in layer.reason
        return
    load = want["assigned"]
    assert layer.tokens_per_expert == load["counts"]
    assert layer.load_variance == pytest.approx(load["variance"])
    assert layer.load_cv == pytest.approx(load["cv"])
    assert layer.max_over_mean == pytest.approx(load["max_over_mean"])
    assert layer.load_entropy == pytest.approx(load["load_entropy_normalized"])
    assert len(layer.dead_experts) == load["dead_experts"]


def test_a_window_is_summed():
    layer = routers.layer_view(
        info(),
        [
            counts([8] * 8, entropy=1.0, padding=[1] * 8, policy_skipped=0),
            counts([24, *[8] * 7], entropy=2.0, padding=[0] * 8, policy_skipped=3),
        ],
    )
    assert (layer.tokens_per_expert, layer.padding_per_expert) == ([32, *[16] * 7], [1] * 8)
    assert (layer.assignments, layer.sampled_steps, layer.policy_skipped) == (144, 2, 3)
    assert layer.entropy == pytest.approx((32 * 1.0 + 40 * 2.0) / 72 / math.log(8))
    assert (layer.kept_per_expert, layer.dropped_rate) == (layer.tokens_per_expert, 0.0)


def test_what_is_not_known_stays_none():
    hidden = counts([8] * 8, dropped=None)
    layer = routers.layer_view(info(), [hidden, counts([8] * 8, assigned=None, dropped=None)])
    assert layer.tokens_per_expert is layer.dropped_rate is layer.kept_per_expert is layer.load_cv is None
    broken = routers.layer_view(info(tag="unsupported", reason="NaN in its output"), [counts([8] * 8)])
    assert broken.tokens_per_expert is broken.assignments is None and broken.reason == "NaN in its output"
    empty = routers.layer_view(info(), [])
    assert empty.assignments is None and empty.sampled_steps == 0
    assert routers.layer_view(info(), [counts([0] * 8, tokens=0)]).load_cv is None
    assert routers.layer_view(info(), [counts([8] * 8, entropy=math.nan)]).entropy is None


def test_skip_experts_widen_what_the_entropy_is_measured_by():
    layer = routers.layer_view(info(classes=9), [counts([8] * 8, entropy=math.log(9))])
    assert layer.entropy == pytest.approx(1.0)


def test_dead_only_where_it_is_improbable():
    load = [0, *[10] * 7]
    assert routers.layer_view(info(), [counts(load, tokens=35)]).dead_experts == [0]
    assert routers.layer_view(info(), [counts([0, 1, 1, 1, 1, 1, 1, 0], tokens=3)]).dead_experts == []


# ---------------------------------------------------------------- what balance would show


def draw(rng: random.Random, tokens: int, experts: int, per_token: int) -> list[int]:
    load = [0] * experts
    for _ in range(tokens):
        for expert in rng.sample(range(experts), per_token):
            load[expert] += 1
    return load


@pytest.mark.parametrize(("tokens", "experts", "per_token"), [(2048, 8, 2), (1024, 64, 8), (512, 64, 1)])
def test_nulls_agree_with_simulation(tokens, experts, per_token):
    rng = random.Random(0)
    loads = [draw(rng, tokens, experts, per_token) for _ in range(60)]
    spread = sum(balance.variance(load) for load in loads) / len(loads)
    expected = balance.null_cv(tokens, experts, per_token)
    assert math.sqrt(spread) * experts / (tokens * per_token) == pytest.approx(expected, rel=0.12)
    busiest = sum(balance.max_over_mean(load) for load in loads) / len(loads)
    assert busiest <= balance.expected_max_over_mean(tokens, experts, per_token) * 1.02
    for factor in (1.0, 1.25):
        capacity = math.ceil(factor * tokens * per_token / experts)
        lost = sum(max(0, count - capacity) for load in loads for count in load)
        measured = lost / (len(loads) * tokens * per_token)
        assert balance.expected_drop(tokens, experts, per_token, capacity) == pytest.approx(measured, abs=0.006)


def test_expected_drop_of_the_published_table():
    """Gauss formula at capacity factor 1.0: 14.0 % at T=512, E=64, k=1; 1.17 % at 8192, 64, 8."""
    assert balance.expected_drop(512, 64, 1, 8) == pytest.approx(0.140, abs=0.001)
    assert balance.expected_drop(512, 64, 1, 10) == pytest.approx(0.049, abs=0.001)
    assert balance.expected_drop(8192, 64, 8, 1024) == pytest.approx(0.0117, abs=0.0001)


def test_a_layer_says_what_balance_would_drop():
    one = counts([64] * 8, tokens=256, groups=4)
    layer = routers.layer_view(info(capacity_factor=1.0), [one])
    assert layer.expected_drop == pytest.approx(balance.expected_drop(64, 8, 2, 16))
    seen = routers.layer_view(info(capacity=20, capacity_factor=1.0), [one])
    assert seen.expected_drop == pytest.approx(balance.expected_drop(64, 8, 2, 20))
    assert routers.layer_view(info(), [one]).expected_drop is None
    assert routers.layer_view(info(dropless=True, capacity_factor=1.0), [one]).expected_drop is None


@given(st.lists(st.integers(0, 10**9), max_size=64), st.integers(0, 10**6))
def test_formulas_take_any_counts(load, tokens):
    for value in (balance.variation(load), balance.max_over_mean(load), balance.load_entropy(load)):
        assert value is None or math.isfinite(value)
    assert balance.dead_experts(load, tokens, sum(load)) in (None, []) or 0 in load
    drop = balance.expected_drop(tokens, len(load), 1, max(load, default=0))
    assert drop is None or 0 <= drop <= 1 + 1e-9


# ---------------------------------------------------------------- ranks


def window(rank: int, steps: dict[int, list[MoeCounts]], world: int, parallel: int | None, *infos) -> RankWindow:
    hello = Hello(
        schema=1,
        session=f"{rank:08x}",
        pid=rank,
        host="h",
        name="n",
        job="j",
        started=0.0,
        rank=rank,
        world_size=world,
        data_parallel=parallel,
        routers=list(infos or (info(),)),
    )
    records = [Record(seq=step, step=step, time=float(step), moe=moe) for step, moe in steps.items()]
    return RankWindow(hello, None, records)


A, B = [16, 8, 8, 8, 8, 8, 8, 0], [8, 8, 8, 8, 8, 8, 8, 8]


def total(windows) -> list[int]:
    return routers.moe(windows).layers[0].tokens_per_expert


def test_data_parallel_ranks_add_up():
    windows = [window(0, {1: [counts(A)]}, 2, 2), window(1, {1: [counts(B)]}, 2, 2)]
    assert total(windows) == [24, 16, 16, 16, 16, 16, 16, 8]
    assert routers.moe(windows).layers[0].sampled_steps == 1


def test_tensor_parallel_siblings_count_once():
    told = [{1: [counts(A)]}, {1: [counts(A)]}, {1: [counts(B)]}, {1: [counts(B)]}]
    for parallel in (2, None):
        windows = [window(rank, steps, 4, parallel) for rank, steps in enumerate(told)]
        assert total(windows) == [24, 16, 16, 16, 16, 16, 16, 8]


def test_ranks_known_to_have_data_of_their_own_add_up_even_if_equal():
    assert total([window(rank, {1: [counts(A)]}, 2, 2) for rank in range(2)]) == [2 * count for count in A]


def test_siblings_that_looked_at_other_steps():
    windows = [window(rank, {rank + 1: [counts(A)]}, 4, 2) for rank in range(4)]
    assert total(windows) == [2 * count for count in A]
    overlapping = [window(0, {1: [counts(A)], 2: [counts(B)]}, 2, 1), window(1, {2: [counts(B)]}, 2, 1)]
    assert total(overlapping) == [24, 16, 16, 16, 16, 16, 16, 8]


def test_pipeline_stages_have_layers_of_their_own():
    first, second = info(name="layers.0.router"), info(name="layers.1.router")
    windows = [window(0, {1: [counts(A)]}, 2, 1, first), window(1, {1: [counts(B)]}, 2, 1, second)]
    moe = routers.moe(windows)
    assert [layer.name for layer in moe.layers] == ["layers.0.router", "layers.1.router"]
    assert [layer.tokens_per_expert for layer in moe.layers] == [A, B]


def test_the_whole_job():
    layers = [info(name=f"layers.{number}.router") for number in range(2)]
    moe = routers.moe(
        [
            window(
                0,
                {
                    1: [
                        counts(A, dropped=4, kept=A),
                        counts(B, layer=1, dropped=0),
                    ]
                },
                1,
                1,
                *layers,
            )
        ]
    )
    assert moe.dropped_rate == pytest.approx(4 / 128)
    assert moe.load_cv == moe.layers[0].load_cv > moe.layers[1].load_cv == 0
    assert (moe.max_over_mean, moe.expected_tokens_per_expert) == (2.0, 8.0)
    assert routers.moe([window(0, {}, 1, 1)]).layers[0].assignments is None
    assert routers.moe([]) is None


def test_what_the_busiest_rank_costs():
    assert routers.rank_cost([100, 100]) == 0
    assert routers.rank_cost([300, 100]) == pytest.approx(1 / 3)
    assert routers.rank_cost([]) is routers.rank_cost([0, 0]) is None


# ---------------------------------------------------------------- forecast


def simulated(shares: list[float], steps: int, tokens: int, capacity: int, clump: int = 1, seed: int = 0):
    """Top-1 routing by these shares; ``clump`` tokens in a row choose alike, as those of one topic do."""
    rng = random.Random(seed)
    found = []
    for _ in range(steps):
        load = [0] * len(shares)
        for expert in rng.choices(range(len(shares)), shares, k=tokens // clump):
            load[expert] += clump
        dropped = sum(max(0, count - capacity) for count in load)
        found.append(counts(load, tokens=tokens, dropped=dropped, groups=1))
    return found


SHARES = [0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05]


@pytest.mark.parametrize("clump", [1, 8])
def test_dispersion_is_that_of_the_clumps(clump):
    found = simulated(SHARES, 200, 512, 64, clump)
    assert routers.dispersion(found) == pytest.approx(clump, rel=0.15)
    drifting = [
        counts([count + 3 * number for count in one.assigned[:4]] + one.assigned[4:], tokens=512 + 12 * number)
        for number, one in enumerate(simulated(SHARES, 200, 512, 64, clump))
    ]
    assert routers.dispersion(drifting) < 1.3 * clump


@pytest.mark.parametrize("clump", [1, 8])
@pytest.mark.parametrize(("tokens", "factor"), [(128, 1.0), (512, 1.0), (512, 2.0), (2048, 1.25)])
def test_forecast_at_another_batch_and_capacity(tokens, factor, clump):
    found = simulated(SHARES, 100, 512, 64, clump)
    guess = routers.forecast(found, tokens, capacity_factor=factor)
    truth = simulated(SHARES, 200, tokens, guess.capacity, clump, seed=1)
    measured = sum(one.dropped for one in truth) / sum(one.assignments for one in truth)
    assert guess.capacity == math.ceil(factor * tokens / 8)
    assert guess.dropped_rate == pytest.approx(measured, abs=0.012)
    assert guess.balanced < guess.dropped_rate


def test_backtest():
    found = simulated(SHARES, 60, 512, 64)
    test = routers.backtest(found, capacity_factor=1.0)
    assert test.steps == 30 and test.predicted == pytest.approx(test.measured, abs=0.01) and test.measured > 0.2
    assert routers.backtest(found[:1], 1.0) is None
    assert routers.backtest([counts([8] * 8, dropped=None)] * 4, 1.0) is None
    assert routers.forecast([], 512, 1.0) is routers.forecast(found, 0, 1.0) is routers.forecast(found, 512) is None
