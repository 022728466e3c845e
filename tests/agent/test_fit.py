"""Whatever stands in a record, a reader takes what is sent of it: one bad value must not cost the others."""

from __future__ import annotations

import math
import time

import pytest
import viewers
from hypothesis import given
from hypothesis import strategies as st

from bsmon.sources.decode import decode
from bsmon_agent import fit, wire
from bsmon_agent.bulletin import Bulletin
from bsmon_agent.ledger import Ledger

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(), st.one_of(st.floats(), st.none(), st.integers()), max_size=70),
)
NESTED = {"moe", "noise"}  # made by probes alone


def sent(*records):
    """What a reader gets of these, and the bulletin that sent them."""
    ledger = Ledger()
    said = viewers.hello()
    bulletin = Bulletin(ledger, lambda: said, dict)
    bulletin.describe()
    for record in records:
        ledger.push(record)
    return [record for payload in bulletin.fresh() for record in decode([wire.STEPS, payload]).records], bulletin


@given(st.dictionaries(st.sampled_from([name for name in wire.RECORD_FIELDS if name not in NESTED]), ANYTHING))
def test_a_reader_takes_whatever_is_sent(junk):
    good = {"step": 2, "time": time.time(), "loss": 0.5}
    records, _ = sent({"step": 1, "time": 1.0, **junk}, good)
    assert records[-1].step == 2
    assert records[-1].loss == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_wait", math.nan),
        ("duration", -0.1),
        ("tokens", -1),
        ("tokens", 2.0),
        ("samples", True),
        ("skipped", 1),
        ("user", {"a": None}),
        ("user", dict.fromkeys(map(str, range(65)), 1.0)),
        ("moe", {}),
        ("noise", []),
    ],
)
def test_what_a_reader_would_refuse_is_left_out_and_said(name, value):
    [record], bulletin = sent({"step": 1, "time": 1.0, name: value, "loss": 0.5})
    assert record.loss == 0.5
    assert getattr(record, name) in (None, False)
    assert any(note.startswith(f"{name}:") for note in bulletin.notes)


@pytest.mark.parametrize(
    "fields", [{"loss": math.nan}, {"grad_norm": math.inf}, {"forward": math.inf}, {"tokens": 0}, {"user": {"a": 1}}]
)
def test_what_a_reader_takes_is_sent(fields):
    [record], bulletin = sent({"step": 1, "time": 1.0, **fields})
    assert bulletin.notes == []
    assert all(getattr(record, name) is not None for name in fields)


@pytest.mark.parametrize("essential", [{"step": None}, {"step": 1.5}, {"time": math.nan}, {"time": -1.0}])
def test_a_record_without_its_essentials_is_not_sent(essential):
    records, bulletin = sent({"step": 1, "time": 1.0, **essential})
    assert records == []
    assert bulletin.history.seq == 0


def test_every_field_of_the_schema_has_its_bounds():
    assert set(fit.FITS) == set(wire.RECORD_FIELDS)
