"""Numbers from tensors, at once or some steps later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bsmon_agent.reductions import INTERVAL, WAITING, Lagged, sum_of_squares  # noqa: E402


def test_sum_of_squares() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(5, 3), torch.randn(7), torch.randn(4).to(torch.bfloat16), torch.randn(2).double()]
    whole = sum(float(tensor.double().square().sum()) for tensor in tensors)
    assert float(sum_of_squares(tensors)) == pytest.approx(whole, rel=1e-5)
    assert sum_of_squares([]) is None


def test_narrow_floats_are_summed_in_float32() -> None:
    tensor = torch.full((1 << 16,), 1.0, dtype=torch.bfloat16)
    assert float(sum_of_squares([tensor])) == pytest.approx(1 << 16)


def test_sparse_gradients_count_by_their_coalesced_values() -> None:
    twice = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([3.0, 1.0]), (4,))
    assert float(sum_of_squares([twice])) == 16.0


class Radio:
    """Stands for a device: copies land when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.landed_up_to = -1
        self.flights: list[list[Any]] = []
        self.delivered: list[dict[str, Any]] = []
        self.lagged = Lagged(self.delivered.append, self.fly, lambda tensor: tensor.dtype != torch.float64, self.clock)

    def clock(self) -> float:
        return self.now

    def fly(self, tensors: Sequence[Any]) -> Any:
        self.flights.append([tensor.tolist() for tensor in tensors])
        number, radio = len(self.flights) - 1, self

        class Flight:
            def landed(self) -> bool:
                return number <= radio.landed_up_to

            def values(self) -> list[Any]:
                return radio.flights[number]

        return Flight()


def test_what_is_here_is_read_at_once() -> None:
    radio = Radio()
    near = {"step": 1, "loss": torch.tensor(2.5, dtype=torch.float64), "user": {"a": torch.ones(2).double()}}
    radio.lagged.add(near)
    assert radio.delivered == [{"step": 1, "loss": 2.5, "user": {"a": [1.0, 1.0]}}]
    assert radio.flights == []


def test_records_keep_their_order_and_share_a_copy() -> None:
    radio = Radio()
    for step in range(4):
        radio.lagged.add({"step": step, "loss": torch.tensor(float(step)), "moe": [{"kept": torch.tensor([step, 7])}]})
        radio.now += INTERVAL / 4
    radio.lagged.add({"step": 4})
    assert radio.delivered == []
    radio.landed_up_to = 0
    radio.lagged.add({"step": 5})
    assert [record["step"] for record in radio.delivered] == [0], "the first copy took the first record alone"
    radio.now += INTERVAL
    radio.lagged.add({"step": 6})
    radio.landed_up_to = 1
    radio.lagged.add({"step": 7})
    assert [record["step"] for record in radio.delivered] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [record.get("loss") for record in radio.delivered[:5]] == [0.0, 1.0, 2.0, 3.0, None]
    assert radio.delivered[2]["moe"] == [{"kept": [2, 7]}]
    assert len(radio.flights) == 2


def test_at_most_one_copy_in_an_interval() -> None:
    radio = Radio()
    radio.landed_up_to = 10**9
    for step in range(1000):
        radio.lagged.add({"step": step, "loss": torch.tensor(1.0)})
        radio.now += 0.001
    assert 9 <= len(radio.flights) <= 11


def test_a_device_that_never_answers_loses_values_not_records() -> None:
    radio = Radio()
    for step in range(WAITING + 10):
        radio.lagged.add({"step": step, "loss": torch.tensor(1.0)})
    assert [record["step"] for record in radio.delivered] == list(range(1, 10))
    assert "loss" not in radio.delivered[0]
    radio.lagged.close()
    assert sorted(record["step"] for record in radio.delivered) == list(range(WAITING + 10))


def test_not_a_number_is_passed_on() -> None:
    radio = Radio()
    radio.lagged.add({"loss": torch.tensor(math.nan, dtype=torch.float64)})
    assert math.isnan(radio.delivered[0]["loss"])
