"""From bytes to typed, bounded values: the edge at which nothing hostile or foreign gets further.

The size is checked before anything is parsed, the schema number before any field, and every field against its type
and bounds by ``msgspec``. Whatever text comes through is stripped of terminal control sequences and markup here, so
that everything behind may print it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from bsmon.model import Beat, End, Event, Gone, GpuSample, Hello, Record, Steps
from bsmon_agent import wire

Message = Hello | Steps | Beat | End
Cleaned = TypeVar("Cleaned")


class RefusedError(ValueError):
    """Bytes that are no message of ours; the text names cause and cure."""


class _Head(msgspec.Struct):
    schema: int = 0


_TYPES: dict[bytes, Any] = {wire.HELLO: Hello, wire.STEPS: Steps, wire.BEAT: Beat, wire.END: End}
_DECODERS: dict[bytes, Any] = {topic: msgspec.msgpack.Decoder(kind) for topic, kind in _TYPES.items()}
_HEAD = msgspec.msgpack.Decoder(_Head)
# What a recording holds besides what agents send: the words of its sources.
KEPT: dict[str, Any] = {"gone": Gone, "gpus": GpuSample}
_KEPT_DECODERS: dict[str, Any] = {topic: msgspec.msgpack.Decoder(kind) for topic, kind in KEPT.items()}
# What msgspec raises, plus what deep nesting (RecursionError) and broken UTF-8 (ValueError) come to.
MALFORMED = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)


def decode(frames: Sequence[bytes]) -> Message:
    """One message of an agent. Raises ``RefusedError`` for anything else."""
    if len(frames) != 2:
        raise RefusedError(f"a message of {len(frames)} frames, where an agent sends 2: not an agent's socket")
    topic, payload = frames
    decoder = _DECODERS.get(topic)
    if decoder is None:
        raise RefusedError(f"an unknown topic {topic[:20]!r}: not an agent's socket, or a newer agent (update bsmon)")
    _check_size(payload)
    with _refusing(topic.decode()):
        check_schema(_HEAD.decode(payload).schema)
        message: Message = decoder.decode(payload)
    return _cleaned_steps(message) if isinstance(message, Steps) else clean(message)


def decode_kept(topic: str, payload: bytes) -> Event:
    """One event of a recording, as carefully as from a socket. Raises ``RefusedError``."""
    decoder = _KEPT_DECODERS.get(topic)
    if decoder is None:
        return decode([topic.encode(), payload])
    _check_size(payload)
    with _refusing(topic):
        event: Event = decoder.decode(payload)
    return clean(event)


def _check_size(payload: bytes) -> None:
    if len(payload) > wire.MAX_PAYLOAD:
        raise RefusedError(f"a message of {len(payload)} bytes, where at most {wire.MAX_PAYLOAD} are allowed")


@contextmanager
def _refusing(topic: str) -> Iterator[None]:
    try:
        yield
    except RefusedError:
        raise
    except MALFORMED as error:
        raise RefusedError(f"a broken {topic} message ({str(error)[:200]})") from None


def check_schema(schema: int) -> None:
    """Refuse a message whose fields may mean something else than what we take them for."""
    if schema == wire.SCHEMA:
        return
    if schema > wire.SCHEMA:
        cure = "the agent is newer: update bsmon"
    elif schema > 0:
        cure = "the agent is older: update bsmon-agent where the training runs"
    else:
        cure = "no schema number: not an agent's message"
    raise RefusedError(f"schema {schema}, where this bsmon reads schema {wire.SCHEMA}: {cure}")


_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS …: titles, clipboard
    r"|\x1b[ -/]*[0-~]?"
)
_BRACKETS = re.compile(r"(\[\d+\])|\[|\]")  # an index stays; any other bracket may be markup
_ROUND = {"[": "(", "]": ")"}


def clean_text(text: str) -> str:
    """Text that does nothing to a terminal and means nothing to a markup parser; printable text stays as it is."""
    if text.isascii() and text.isprintable() and "[" not in text and "]" not in text:
        return text
    text = _ESCAPES.sub("", text)
    text = "".join(" " if char in "\t\n\r\v\f\x85\u2028\u2029" else char for char in text)
    text = "".join(char for char in text if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn"))
    return _BRACKETS.sub(lambda found: found[1] or _ROUND[found[0]], text)


def clean(value: Cleaned) -> Cleaned:
    """The same value with every text in it cleaned, dict keys too."""
    return _clean(value)  # type: ignore[no-any-return]


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: _clean(getattr(value, name)) for name in value.__struct_fields__})
    if isinstance(value, list):
        return [_clean(item) for item in value] if value and not isinstance(value[0], (int, float)) else value
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _cleaned_steps(steps: Steps) -> Steps:
    """Records carry text in two places only, and there are many of them."""
    if any(record.user or record.noise for record in steps.records):
        records = [_cleaned_record(record) for record in steps.records]
        return msgspec.structs.replace(steps, records=records)
    return steps


def _cleaned_record(record: Record) -> Record:
    if record.user is None and record.noise is None:
        return record
    return msgspec.structs.replace(record, user=clean(record.user), noise=clean(record.noise))
