"""Packing: whatever a record holds, bytes come out that a reader can take, and what was left out is named."""

from __future__ import annotations

import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmon_agent import packing, wire

SESSION = "0123456789abcdef"


def unpack(payload: bytes):
    return msgpack.unpackb(payload, strict_map_key=False)


def test_nan_and_infinity_are_packed_as_they_are():
    packed, left_out = packing.fields({"loss": math.nan, "grad_norm": math.inf, "learning_rate": -math.inf})
    found = unpack(packed)
    assert left_out == []
    assert math.isnan(found["loss"])
    assert (found["grad_norm"], found["learning_rate"]) == (math.inf, -math.inf)


class Strange:
    def __len__(self):
        raise RuntimeError("no length")


def circle():
    items: list = []
    items.append(items)
    return items


HOPELESS = [object(), Strange(), 1 << 70, {1, 2}, circle(), 1j, {"a": object()}]


@pytest.mark.parametrize("value", HOPELESS, ids=lambda value: type(value).__name__)
def test_what_cannot_be_packed_is_left_out_and_named(value):
    packed, left_out = packing.fields({"seq": 1, "user": value, "loss": 2.5})
    assert unpack(packed) == {"seq": 1, "loss": 2.5}
    assert left_out == ["user"]


def test_a_broken_text_does_not_take_the_record_with_it():
    packed, left_out = packing.fields({"user": {"a\udcff": 1.0}})
    assert unpack(packed) == {"user": {"a?": 1.0}}
    assert left_out == []


def test_a_record_that_is_too_large_loses_its_largest_field():
    packed, left_out = packing.fields({"seq": 1, "moe": bytes(wire.MAX_PAYLOAD), "noise": bytes(1000)})
    assert unpack(packed) == {"seq": 1, "noise": bytes(1000)}
    assert left_out == ["moe"]


def test_the_limit_holds_exactly():
    room = 200
    overhead = len(packing.fields({"a": bytes(100)})[0]) - 100
    assert packing.fields({"a": bytes(room - overhead)}, room)[1] == []
    assert packing.fields({"a": bytes(room - overhead + 1)}, room)[1] == ["a"]


@given(st.lists(st.binary(max_size=300), max_size=1200), st.integers(600, 20_000))
def test_payloads_carry_every_record_once_in_order_and_keep_both_limits(contents, limit):
    records = [packing.pack({"seq": seq, "x": content}) for seq, content in enumerate(contents)]
    payloads = list(packing.steps(SESSION, records, limit))
    messages = [unpack(payload) for payload in payloads]
    assert [record["x"] for message in messages for record in message["records"]] == contents
    assert all(len(payload) <= limit for payload in payloads)
    assert all(1 <= len(message["records"]) <= wire.MAX_RECORDS for message in messages)


def test_a_payload_is_what_packing_the_whole_message_would_give():
    for count in (1, 15, 16, 512):
        records = [{"seq": seq, "loss": 0.5} for seq in range(count)]
        [payload] = packing.steps(SESSION, map(packing.pack, records))
        assert payload == packing.pack({"schema": 1, "session": SESSION, "records": records})


def test_the_largest_record_still_fits_in_a_payload():
    largest, left_out = packing.fields({"seq": 1, "moe": bytes(packing.LARGEST - 16)})
    assert left_out == []
    [payload] = packing.steps("f" * 64, [largest])
    assert len(payload) <= wire.MAX_PAYLOAD
