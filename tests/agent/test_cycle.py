"""When a record closes, as a pure state machine."""

from __future__ import annotations

import pytest

from bsmon_agent.cycle import LONGEST, PATIENCE, Cycle


def play(cycle: Cycle, script: str) -> list[str]:
    """Letters are optimizers, each after a backward of its own unless a '+' stands before it; '!' skips.

    Says for each: '.' nothing closes, 'n' a record that counts, 'j' one that does not, with '!' if it was skipped.
    """
    said = []
    steps = iter(script)
    for letter in steps:
        joined = letter == "+"
        if joined:
            letter = next(steps)
        else:
            cycle.backward()
        skipped = letter == "!"
        closed = cycle.step(ord(next(steps) if skipped else letter), skipped)
        said.append("." if closed is None else ("n" if closed.counted else "j") + "!" * closed.skipped)
    return said


def test_one_optimizer_closes_at_every_step() -> None:
    cycle = Cycle()
    assert play(cycle, "AAAA") == ["n"] * 4
    assert cycle.count == 4


def test_two_optimizers_on_one_gradient_are_one_step() -> None:
    cycle = Cycle()
    assert play(cycle, "A+BA+BA+B") == ["n", ".", ".", "n", ".", "n"]
    assert cycle.count == 3


def test_two_optimizers_in_turn_are_one_step() -> None:
    cycle = Cycle()
    assert play(cycle, "ABABAB") == ["n", "j", ".", "n", ".", "n"]
    assert cycle.count == 3


@pytest.mark.parametrize("critic", [2, 5, 8])
def test_many_steps_of_a_critic_are_one_step(critic: int) -> None:
    cycle = Cycle()
    first = play(cycle, "C" * critic + "G")
    assert first == ["n"] * critic + ["j"]
    later = play(cycle, ("C" * critic + "G") * 3)
    assert later == (["."] * critic + ["n"]) * 3


def test_a_long_cycle_is_learned_from_the_return_of_who_was_expelled() -> None:
    cycle = Cycle()
    play(cycle, ("C" * 20 + "G") * 3)
    assert play(cycle, ("C" * 20 + "G") * 2) == (["."] * 20 + ["n"]) * 2


def test_an_optimizer_that_no_longer_steps_is_expelled() -> None:
    cycle = Cycle()
    play(cycle, "ABABAB")
    said = play(cycle, "A" * (PATIENCE + 4))
    assert said == ["."] * PATIENCE + ["n"] * 4
    assert cycle.members == {ord("A")}


def test_phases_that_alternate_never_fall_silent_for_long() -> None:
    cycle = Cycle()
    for letter in "ABABAB":
        said = "".join(play(cycle, letter * 500))
        assert "." * (2 * LONGEST + 2) not in said


def test_a_skipped_step_closes_without_counting() -> None:
    cycle = Cycle()
    assert play(cycle, "A!AA") == ["n", "j!", "n"]
    assert cycle.count == 2


def test_one_of_two_skipped_counts_and_is_told() -> None:
    cycle = Cycle()
    assert play(cycle, "A+BA+B") == ["n", ".", ".", "n"]
    cycle.backward()
    assert cycle.step(ord("A"), skipped=True) is None
    closed = cycle.step(ord("B"))
    assert closed is not None and closed.counted and closed.skipped
