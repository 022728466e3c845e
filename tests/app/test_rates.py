"""Rates, step times, phases and the batch from step records."""

from __future__ import annotations

import math

import pytest
from agents import START, record
from hypothesis import given
from hypothesis import strategies as st

from bsmon.estimators import rates
from bsmon.model import Batch, Phases, StepTime


def test_a_rate_is_the_sum_of_counts_over_the_sum_of_durations():
    records = [record(1, duration=0.1, tokens=10), record(2, duration=0.9, tokens=10)]
    assert rates.rate(records, "tokens") == pytest.approx(20.0)  # the mean of rates would say 55.6
    assert rates.rate(records, "samples") == pytest.approx(8.0)


def test_what_has_no_duration_or_no_count_is_left_out_of_both_sums():
    first = record(1, duration=None, tokens=1000)
    unknown = record(2, duration=5.0, tokens=None)
    assert rates.rate([first, unknown, record(3)], "tokens") == pytest.approx(128.0)
    assert rates.rate([first, unknown], "tokens") is None
    assert rates.rate([record(1, duration=0.0)], "tokens") is None
    assert rates.rate([], "tokens") is None


def test_a_window_is_the_longer_of_twenty_steps_and_ten_seconds():
    slow = [record(seq, time=START + 5.0 * seq) for seq in range(100)]
    assert [one.seq for one in rates.recent(slow)] == list(range(80, 100))
    quick = [record(seq, time=START + 0.1 * seq) for seq in range(1000)]
    assert len(rates.recent(quick)) == 101
    assert len(rates.recent(slow[:7])) == 7
    assert len(rates.recent([record(seq, time=START + 0.001 * seq) for seq in range(5000)])) == 1000
    assert rates.recent([]) == []


def test_step_time_is_median_and_nearest_rank():
    records = [record(seq, duration=float(seq)) for seq in range(1, 101)]
    assert rates.step_time(records) == StepTime(median=50.5, p95=95.0)
    assert rates.step_time([record(1, duration=2.0)]) == StepTime(median=2.0, p95=2.0)
    assert rates.step_time([record(1, duration=None)]) == StepTime()


def test_phases_are_means_and_other_is_the_rest():
    told = record(1, duration=1.0, data_wait=0.2, forward=0.3, backward=0.4)
    found = rates.phases([told, record(2, duration=1.0, data_wait=0.0, forward=0.3, backward=0.4)])
    assert found.data_wait == pytest.approx(0.1)
    assert found.other == pytest.approx(0.2)
    assert (found.optimizer, found.communication) == (None, None)
    assert rates.phases([record(1, duration=0.1, forward=0.2)]).other == 0.0
    assert rates.phases([record(1)]) == Phases()


def test_the_share_of_waiting_is_never_over_one():
    assert rates.data_wait_share(record(1, duration=0.5, data_wait=0.1)) == pytest.approx(0.2)
    assert rates.data_wait_share(record(1, duration=0.5, data_wait=0.6)) == 1.0
    assert rates.data_wait_share(record(1, duration=None, data_wait=0.6)) is None


def test_the_batch_is_what_most_steps_have():
    records = [record(seq) for seq in range(1, 10)] + [record(10, accumulation=1, samples=2, tokens=32)]
    found = rates.batch(records, data_parallel=8)
    assert (found.micro, found.accumulation, found.data_parallel, found.global_samples) == (2, 2, 8, 32)
    assert found.global_tokens == round((9 * 64 + 32) / 10 * 8)
    assert found.sequence_length == 16


def test_the_batch_without_a_data_parallel_size_is_not_guessed():
    found = rates.batch([record(1)], None)
    assert (found.micro, found.global_samples, found.global_tokens) == (2, None, None)
    assert rates.batch([], 1) == Batch(data_parallel=1)


def test_padding_is_a_share_of_the_tokens_that_tell():
    records = [record(1, padding=16), record(2, padding=None), record(3, padding=0)]
    assert rates.batch(records, 1).padding_share == pytest.approx(16 / 128)


def test_the_time_to_the_end():
    assert rates.eta(100, 40, 0.5) == 30.0
    assert rates.eta(100, 120, 0.5) == 0.0
    assert rates.eta(None, 40, 0.5) is None
    assert rates.eta(100, 40, None) is None


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.integers(0, 10**9)), min_size=1, max_size=30))
def test_a_rate_lies_between_the_slowest_and_the_fastest_step(steps):
    records = [record(index, duration=took, tokens=tokens) for index, (took, tokens) in enumerate(steps, 1)]
    each = [tokens / took for took, tokens in steps]
    found = rates.rate(records, "tokens")
    assert min(each) * (1 - 1e-9) <= found <= max(each) * (1 + 1e-9)
    times = rates.step_time(records)
    assert min(took for took, _ in steps) <= times.median <= max(took for took, _ in steps)
    assert times.p95 in [took for took, _ in steps]
    assert math.isfinite(found)
