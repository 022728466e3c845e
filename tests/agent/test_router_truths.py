"""The few formulas that both sides have are one; and forecasts hold on a real run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from bsmon.estimators import routers  # noqa: E402
from bsmon.estimators.routers import balance  # noqa: E402
from bsmon.model import MoeCounts, RouterInfo  # noqa: E402
from bsmon_agent.routers import statistics, watch  # noqa: E402
from tests.agent.moe_models import EXPERTS, TOP_K, WIDTH, CapacityBlock  # noqa: E402


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=64), st.integers(0, 10**6))
def test_both_sides_work_out_the_same(load, tokens):
    assert statistics.variance(load) == balance.variance(load)
    assert statistics.variation(load) == balance.variation(load)
    assert statistics.max_over_mean(load) == balance.max_over_mean(load)
    assert statistics.load_entropy(load) == balance.load_entropy(load)
    assert statistics.sampling_variation(tokens, len(load), 1) == balance.null_cv(tokens, len(load), 1)
    assert statistics.dead_experts(load, tokens, sum(load)) == balance.dead_experts(load, tokens, sum(load))
    assert statistics.IMPROBABLE == balance.IMPROBABLE


def test_watch_and_the_app_show_the_same_layer():
    torch.manual_seed(0)
    block = CapacityBlock()
    seen = watch(block)
    block(torch.randn(4, 16, WIDTH))
    (layer,) = seen.read()
    one = MoeCounts(
        layer=0,
        tokens=64,
        calls=1,
        assignments=layer["assignments"],
        assigned=layer["tokens_per_expert"],
        kept=layer["kept_per_expert"],
        dropped=layer["dropped_assignments"],
        fully_dropped=layer["tokens_fully_dropped"],
        policy_skipped=layer["policy_skipped"],
    )
    info = RouterInfo(
        layer["name"], layer["router"], EXPERTS, TOP_K, layer["capacity_factor"], layer["capacity"], False, "derived"
    )
    view = routers.layer_view(info, [one])
    for name, value in layer.items():
        if name not in ("entropy", "padding_per_expert"):
            assert getattr(view, name) == pytest.approx(value), name


def test_a_backtest_on_a_real_run():
    """A router whose load is uneven is trained; what its earlier steps forecast is what its later steps drop."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    block = CapacityBlock(factor=1.25)
    centre = torch.randn(WIDTH) * 0.3
    optimizer = torch.optim.SGD(block.parameters(), lr=1e-3)
    seen, steps = watch(block), []
    for _ in range(80):
        x = torch.randn(4, 64, WIDTH) + centre
        block(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        (layer,) = seen.read()
        seen.reset()
        steps.append(
            MoeCounts(
                layer=0,
                tokens=256,
                calls=1,
                assignments=layer["assignments"],
                assigned=layer["tokens_per_expert"],
                dropped=layer["dropped_assignments"],
            )
        )
    test = routers.backtest(steps, capacity_factor=1.25)
    assert test.measured > 0.03
    assert test.predicted == pytest.approx(test.measured, abs=0.01)
