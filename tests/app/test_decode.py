"""The edge where bytes become typed values."""

from __future__ import annotations

import json
import math
import os
import time

import msgpack
import msgspec
import pytest
from agents import SESSION, hello
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmon.model import Beat, End, Hello, Steps
from bsmon.sources import discovery
from bsmon.sources.decode import RefusedError, clean_text, decode
from bsmon_agent import wire

HELLO = {"schema": 1, "session": SESSION, "pid": 7, "host": "h", "name": "n", "job": "j", "started": 1.0}
RECORD = {"seq": 1, "step": 1, "time": 1.0}


def packed(**fields):
    return msgpack.packb({"schema": 1, "session": SESSION, **fields})


def test_each_topic_has_its_type():
    assert isinstance(decode([wire.HELLO, msgpack.packb(HELLO)]), Hello)
    assert isinstance(decode([wire.STEPS, packed(records=[RECORD])]), Steps)
    assert isinstance(decode([wire.BEAT, packed(time=1.0)]), Beat)
    assert isinstance(decode([wire.END, packed(seq=4)]), End)


def test_fields_that_are_not_known_are_ignored():
    assert decode([wire.HELLO, msgpack.packb({**HELLO, "mood": ["good"]})]).name == "n"
    assert decode([wire.STEPS, packed(records=[{**RECORD, "aura": 1}])]).records[0].seq == 1


def test_nan_and_infinity_pass_as_numbers():
    record = decode([wire.STEPS, packed(records=[{**RECORD, "loss": math.nan, "grad_norm": -math.inf}])]).records[0]
    assert math.isnan(record.loss)
    assert record.grad_norm == -math.inf


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ([], "0 frames"),
        ([wire.BEAT], "1 frames"),
        ([wire.BEAT, b"", b""], "3 frames"),
        ([b"kittens", b"\x80"], "unknown topic"),
        ([wire.BEAT, b""], "broken beat"),
        ([wire.BEAT, b"\xc1"], "broken beat"),
        ([wire.BEAT, msgpack.packb([1, 2])], "broken beat"),
        ([wire.BEAT, b"\x81\xa1a" + b"\x91" * 100_000], "broken beat"),
        ([wire.BEAT, b"\xdf\xff\xff\xff\xff"], "broken beat"),
        ([wire.BEAT, packed(time=math.nan)], "broken beat"),
        ([wire.BEAT, packed(time=1e300)], "broken beat"),
        ([wire.HELLO, msgpack.packb({**HELLO, "pid": -1})], "broken hello"),
        ([wire.HELLO, msgpack.packb({**HELLO, "session": "../../etc/passwd"})], "broken hello"),
        ([wire.HELLO, msgpack.packb({**HELLO, "world_size": 0})], "broken hello"),
        ([wire.HELLO, msgpack.packb({**HELLO, "name": "n" * 401})], "broken hello"),
        ([wire.STEPS, packed(records=[RECORD] * 513)], "broken steps"),
        ([wire.STEPS, packed(records=[{**RECORD, "duration": -1.0}])], "broken steps"),
        ([wire.STEPS, b"x" * (wire.MAX_PAYLOAD + 1)], "at most"),
    ],
)
def test_anything_else_is_refused_with_a_cause(frames, told):
    with pytest.raises(RefusedError, match=told):
        decode(frames)


@pytest.mark.parametrize(
    ("schema", "cure"), [(2, "the agent is newer: update bsmon"), (-1, "no schema number"), (0, "no schema number")]
)
def test_the_schema_is_looked_at_before_any_field(schema, cure):
    with pytest.raises(RefusedError, match=cure):
        decode([wire.BEAT, msgpack.packb({"schema": schema, "session": 5, "time": {}})])


@given(st.binary(max_size=300), st.sampled_from([*wire.TOPICS, wire.END]))
def test_no_bytes_do_more_than_be_refused(payload, topic):
    with pytest.raises(RefusedError):
        decode([topic, payload])


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from([*wire.RECORD_FIELDS, "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=5,
        ),
    )
)
def test_no_record_does_more_than_be_refused(fields):
    try:
        steps = decode([wire.STEPS, packed(records=[{**RECORD, **fields}])])
    except RefusedError:
        return
    assert math.isfinite(steps.records[0].time)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("gpt2-xl_ref.v1", "gpt2-xl_ref.v1"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("title\x1b]0;owned\x07!", "title!"),
        ("clip\x1b]52;c;AAAA\x1b\\board", "clipboard"),
        ("a\x00b\x7fc\x08d", "abcd"),
        ("two\nlines\tand\r\nmore", "two lines and  more"),
        ("\u202egnp.exe", "gnp.exe"),
        ("zero\u200bwidth", "zerowidth"),
        ("[bold]loud[/bold]", "(bold)loud(/bold)"),
        ("[@click=app.quit]x[/]", "(@click=app.quit)x(/)"),
        ("[bo[0]ld]x", "(bo[0]ld)x"),
        ("layers[12].mlp", "layers[12].mlp"),
        ("größe 模型", "größe 模型"),
    ],
)
def test_text_is_made_harmless(text, clean):
    assert clean_text(text) == clean


@given(st.text())
def test_no_text_keeps_a_control_or_markup(text):
    cleaned = clean_text(text)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in cleaned)
    assert not any(part[:1].isalpha() or part[:1] in "/@#" for part in cleaned.split("[")[1:] if part)
    assert clean_text(cleaned) == cleaned


def test_every_text_of_a_message_is_cleaned():
    evil = "\x1b[2J[red]x"
    routers = [{"name": evil, "reason": evil}]
    raw = {**HELLO, "name": evil, "command": [evil], "routers": routers, "unavailable": {evil: evil}}
    found = decode([wire.HELLO, msgpack.packb({**raw, "device": {"type": evil}})])
    assert b"\\u001b" not in msgspec.json.encode(found)
    assert found.name == found.command[0] == found.routers[0].reason == found.device.type == "(red)x"
    assert found.unavailable == {"(red)x": "(red)x"}
    steps = decode([wire.STEPS, packed(records=[RECORD, {**RECORD, "seq": 2, "user": {evil: 1.0}}])])
    assert steps.records[1].user == {"(red)x": 1.0}
    assert decode([wire.BEAT, packed(time=1.0, notes=[evil])]).notes == ["(red)x"]


# ------------------------------------------------------------------ entries


@pytest.fixture
def place(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def write(place, name="7.json", **changes):
    entry = {**HELLO, "live": f"ipc://{place}/7.live", "history": f"ipc://{place}/7.history", "state": "live"}
    (place / name).write_text(json.dumps({**entry, **changes}))
    return place / name


def test_an_entry_is_read(place):
    write(place, last={"hello": HELLO, "record": {**RECORD, "loss": None}}, state="finished", exit_code=1, ended=5.0)
    scan = discovery.Scanner().scan([place])
    assert [found.entry.exit_code for found in scan.found] == [1]
    assert scan.looked_at == [f"{place}: 1 process"]
    assert not scan.refused


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://10.0.0.1:5555",
        "ipc:///tmp/elsewhere/7.live",
        "ipc://{place}/../7.live",
        "ipc://{place}/sub/7.live",
        "ipc://@abstract",
        "ipc://{place}/",
        "ipc://{place}/..",
        "inproc://x",
        "",
    ],
)
def test_an_entry_that_points_elsewhere_is_refused(place, endpoint):
    write(place, history=endpoint.format(place=place))
    scan = discovery.Scanner().scan([place])
    assert not scan.found
    assert "forged" in scan.refused[str(place / "7.json")]


def test_a_directory_may_lie_behind_a_link_but_not_be_one(place):
    inner = place / "real" / "inner"
    inner.mkdir(mode=0o700, parents=True)
    (place / "link").symlink_to(place / "real")
    write(inner)  # the agent was told the real path
    assert len(discovery.Scanner().scan([place / "link" / "inner"]).found) == 1
    assert discovery.Scanner().scan([place / "link"]).looked_at == [f"{place / 'link'}: it is not a directory"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "not an agent's entry"),
        (b"[" * 100_000, "not an agent's entry"),
        (b"\xff\xfe", "not an agent's entry"),
        (b" " * ((1 << 20) + 1), "longer than"),
        (b'{"schema": 2}', "update bsmon"),
        (b"{}", "no schema"),
    ],
)
def test_an_entry_that_is_none_is_refused(place, content, told):
    (place / "7.json").write_bytes(content)
    assert told in discovery.Scanner().scan([place]).refused[str(place / "7.json")]


def test_links_pipes_and_other_names_are_not_followed(place):
    write(place, "secret.json")
    (place / "8.json").symlink_to(place / "secret.json")
    os.mkfifo(place / "9.json")
    begin = time.monotonic()
    scan = discovery.Scanner().scan([place])
    assert time.monotonic() - begin < 1
    assert not scan.found
    assert sorted(scan.refused) == [str(place / "8.json"), str(place / "9.json")]


def test_a_directory_that_others_may_enter_is_passed_over_and_said(place):
    write(place)
    place.chmod(0o755)
    scan = discovery.Scanner().scan([place, place / "none"])
    assert not scan.found
    assert "chmod 700" in scan.looked_at[0]
    assert "No such file" in scan.looked_at[1]


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root (to become somebody else)")
def test_a_directory_of_somebody_else_is_passed_over_and_said(place):
    write(place)
    os.chown(place, 12345, 12345)
    scan = discovery.Scanner().scan([place])
    assert not scan.found
    assert scan.looked_at == [f"{place}: it belongs to uid 12345"]


def test_only_so_many_entries_are_read(place):
    for pid in range(1, 12):
        write(place, f"{pid}.json")
    scan = discovery.Scanner(limit=10).scan([place])
    assert len(scan.found) == 10
    assert "first 10" in scan.refused[str(place)]


def test_what_did_not_change_is_not_read_again(place, monkeypatch):
    path = write(place)
    scanner = discovery.Scanner()
    read = discovery.read
    reads = []
    monkeypatch.setattr(discovery, "read", lambda path: reads.append(path) or read(path))
    scanner.scan([place])
    scanner.scan([place])
    assert len(reads) == 1
    write(place, state="finished", exit_code=0)
    assert scanner.scan([place]).found[0].entry.state == "finished"
    path.unlink()
    assert not scanner.scan([place]).found


def test_a_made_up_hello_is_what_an_agent_sends():
    assert decode([wire.HELLO, msgspec.msgpack.encode(hello())]) == hello()
