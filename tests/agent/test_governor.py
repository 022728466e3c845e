"""One budget for the agent: what is measured, and who may look how often."""

from __future__ import annotations

import pytest

from bsmon_agent.governor import FLOOR, RAREST, Governor, Mean
from bsmon_agent.probes.base import Probe


class Looker(Probe):
    """An optional probe whose look costs so many microseconds."""

    optional = True

    def __init__(self, name: str, cost: float) -> None:
        self.name = name
        self.cost = cost
        self.looks = 0


def run(governor: Governor, probes: list[Looker], steps: int, step: float, base: float) -> float:
    """Steps of so many seconds, with so many microseconds of base cost. Returns the mean cost, microseconds a step,
    of the second half."""
    spent = 0.0
    for number in range(steps):
        for probe in probes:
            if probe.armed:
                probe.spent = int(probe.cost * 1e3)
                probe.looks += 1
        if number >= steps // 2:
            spent += base + sum(probe.spent for probe in probes) / 1e3
        governor.close(1, step, int(base * 1e3), probes)
    return spent / (steps - steps // 2)


@pytest.mark.parametrize("step", [0.0005, 0.0025, 0.05, 1.0])
def test_the_whole_stays_in_the_budget(step: float) -> None:
    governor = Governor(share=0.01)
    probes = [Looker("cheap", 3.0), Looker("router", 400.0), Looker("noise", 5000.0)]
    cost = run(governor, probes, 4000, step, base=12.0)
    budget = max(0.01 * step * 1e6, FLOOR)
    assert cost <= 1.05 * budget
    told = governor.cost()
    assert told["budget"] == pytest.approx(budget, rel=0.01)
    assert told["us_per_step"] == pytest.approx(cost, rel=0.2)
    assert told["share_of_step"] == pytest.approx(told["us_per_step"] / (step * 1e6))
    assert set(told["sampling"]) == {"cheap", "router", "noise"}


def test_what_a_cheap_probe_leaves_goes_to_the_dear_ones() -> None:
    governor = Governor(share=0.01)
    probes = [Looker("cheap", 1.0), Looker("dear", 400.0)]
    run(governor, probes, 2000, 0.03, base=10.0)  # a budget of 300 microseconds
    assert governor.cost()["sampling"] == {"cheap": 1.0, "dear": pytest.approx(1 / 2)}


def test_with_nothing_left_everyone_still_looks_now_and_then() -> None:
    governor = Governor(share=0.01)
    probes = [Looker("dear", 1e6)]
    run(governor, probes, 4 * RAREST, 0.001, base=40.0)
    assert governor.cost()["sampling"]["dear"] == pytest.approx(1 / RAREST)
    assert 5 <= probes[0].looks <= 8


def test_a_whole_budget_arms_all_always() -> None:
    governor = Governor(share=1.0)
    probes = [Looker("router", 400.0), Looker("noise", 50_000.0)]
    run(governor, probes, 200, 0.001, base=40.0)
    assert [probe.looks for probe in probes] == [200, 200]
    assert governor.cost()["sampling"] == {"router": 1.0, "noise": 1.0}


def test_the_first_look_pays_for_its_own_warm_up() -> None:
    governor = Governor(share=0.01)
    probe = Looker("router", 1e6)
    for _ in range(200):
        if probe.armed:
            probe.spent = int(probe.cost * 1e3)
            probe.cost = 5.0
        governor.close(1, 0.01, 10_000, [probe])
    assert governor.cost()["sampling"]["router"] == 1.0


def test_how_many_steps_may_be_read_together() -> None:
    governor = Governor(share=0.01)
    probe = Looker("dear", 300.0)
    armed = []
    for _ in range(400):
        armed.append(probe.armed)
        probe.spent = 300_000 if probe.armed else 0
        ahead = governor.ahead()
        governor.close(1, 0.001, 10_000, [probe])
        if len(armed) > 50 and not armed[-1] and ahead > 1:
            assert not probe.armed
    assert 0 < sum(armed[50:]) < 40


def test_one_preempted_callback_is_not_its_cost() -> None:
    mean = Mean()
    for value in [10.0] * 30 + [50_000.0] + [10.0] * 5:
        mean.add(value)
    assert mean.value < 15


@pytest.mark.parametrize(("given", "share"), [("0.05", 0.05), ("nonsense", 0.01), ("-1", 0.01), ("1", 1.0)])
def test_the_budget_from_the_environment(monkeypatch: pytest.MonkeyPatch, given: str, share: float) -> None:
    monkeypatch.setenv("BSMON_BUDGET", given)
    assert Governor().share == share
