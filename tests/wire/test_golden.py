"""Schema 1 on the wire: what the agent writes is what is stored, and the app reads what is stored."""

from __future__ import annotations

import math
import re
from pathlib import Path

import golden
import msgpack
import msgspec
import pytest

from bsmon import model
from bsmon.sources.decode import decode
from bsmon_agent import wire
from bsmon_agent.sockets import _after

NAMES = list(golden.frames())


def test_all_are_stored_and_nothing_else():
    assert {path.stem for path in golden.FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_agent_of_today_writes_the_stored_frame(name):
    assert golden.frames()[name][1] == golden.stored(name)


def read(name):
    topic, _ = golden.frames()[name]
    return decode([topic, golden.stored(name)])


def test_hello():
    found = read("hello")
    assert found == msgspec.convert(golden.HELLO, model.Hello)
    assert found.routers[0].capacity_factor == 1.25
    assert found.routers[1].reason == "no counts"


def test_steps():
    [record] = read("steps").records
    assert record == msgspec.convert(golden.RECORD, model.Record)
    assert record.moe[0].dropped == 616
    assert record.noise.parts == [0.25, 0.125, 0.125, 0.25]
    assert record.user == {"reward": 0.5}


def test_steps_with_nan_and_infinity():
    _, record = read("steps_not_finite").records
    assert math.isnan(record.loss)
    assert record.grad_norm == math.inf
    assert record.skipped


def test_a_full_payload():
    assert [record.seq for record in read("steps_many").records] == list(range(1, 513))
    assert len(golden.SHORT) == wire.MAX_RECORDS


@pytest.mark.parametrize(("name", "sent"), [("beat", golden.BEAT), ("beat_finished", golden.FINISHED)])
def test_beats(name, sent):
    assert read(name) == msgspec.convert(sent, model.Beat)


def test_end():
    assert read("end") == model.End(schema=1, session=golden.SESSION, seq=18)


def test_a_request():
    assert _after([wire.HISTORY, golden.stored("request")]) == 17


@pytest.mark.parametrize("name", [name for name in NAMES if name != "request"])
def test_keys_that_a_reader_does_not_know_are_passed_over(name):
    topic, payload = golden.frames()[name]
    later = {**msgpack.unpackb(payload), "added_later": [1, {"x": None}]}
    assert decode([topic, msgpack.packb(later)]) == read(name) or name == "steps_not_finite"


def names(kind):
    return {field.name for field in msgspec.structs.fields(kind)}


def test_the_model_knows_the_fields_of_the_schema_and_the_frames_have_no_others():
    assert names(model.Record) == set(wire.RECORD_FIELDS) >= set(golden.RECORD)
    assert names(model.MoeCounts) == set(wire.MOE_FIELDS) >= set(golden.RECORD["moe"][0])
    joined = {"seen"}  # the app fills it in when it joins ranks
    assert names(model.NoiseSample) - joined == set(wire.NOISE_FIELDS) >= set(golden.RECORD["noise"])
    assert names(model.Hello) >= set(golden.HELLO)
    assert names(model.ModelInfo) == set(wire.MODEL_FIELDS) >= set(golden.HELLO["model"])
    assert names(model.Beat) >= set(golden.BEAT)


def test_the_schema_number_is_the_one_of_the_folder():
    assert golden.FOLDER.name == f"schema{wire.SCHEMA}"
    assert re.fullmatch(r"schema\d+", Path(golden.FOLDER).name)
