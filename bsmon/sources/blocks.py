"""The format of a recording: blocks, one after another, each whole in itself.

A block is a header and its payload. The payload is zlib-compressed msgpack: a list of ``[arrival, topic, event]``,
where an event is the map that came over the wire (topics ``hello``, ``steps``, ``beat``) or that a source made
(``gone``, ``gpus``). The header, little-endian:

========= ====== =======================================================================================
bytes     type   field
========= ====== =======================================================================================
0         4s     magic
4         u16    schema of the format
6         u16    flags: 1 ``KEY``, what follows can be understood without what came before; 2 ``END``, the
                 recorder was asked to end
8         u64    recording: a random number that all its files share
16        u64    number of the block in the recording, from 0: a gap is a loss
24, 32    f64    first and last moment that it tells of, Unix seconds
40        u32    length of the payload in bytes
44        u32    size of the payload before compression
48        u32    crc32 of the payload
52        u32    crc32 of the header up to here
========= ====== =======================================================================================

Nothing is ever changed in place, so all blocks up to the last complete one can be read whatever happens to the writer.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from bsmon.model import Beat, End, Event, Gone, GpuSample, Hello, Moment, Steps
from bsmon.sources.decode import MALFORMED, RefusedError

MAGIC = b"\x89BSM"
SCHEMA = 1
KEY, END = 1, 2
MAX_BLOCK = 4 << 20  # bytes of a payload, compressed or not
MOST_ENTRIES = 65536  # in one block
_LAST_MOMENT = 2.0**33

_FIELDS = struct.Struct("<4sHHQQddIII")
_CRC = struct.Struct("<I")
HEADER = _FIELDS.size + _CRC.size  # bytes

Topic = Literal["hello", "steps", "beat", "gone", "gpus"]
_TOPICS: dict[type, Topic] = {Hello: "hello", Steps: "steps", Beat: "beat", Gone: "gone", GpuSample: "gpus"}


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One event, still packed, and when it arrived."""

    arrival: Moment
    topic: Topic
    event: msgspec.Raw


_ENTRIES = msgspec.msgpack.Decoder(Annotated[list[Entry], msgspec.Meta(max_length=MOST_ENTRIES)])


class Head(NamedTuple):
    """A block's header, without what only guards it."""

    schema: int
    flags: int
    recording: int
    number: int
    first: float
    last: float
    length: int
    size: int
    crc: int


def entry(arrival: float, event: Event) -> Entry | None:
    """An event as it is kept; None for what says nothing outside a connection."""
    if isinstance(event, End):
        return None
    return Entry(arrival, _TOPICS[type(event)], msgspec.Raw(msgspec.msgpack.encode(event)))


def pack(recording: int, number: int, flags: int, span: tuple[float, float], entries: Sequence[Entry]) -> bytes:
    """One block."""
    whole = msgspec.msgpack.encode(entries)
    payload = zlib.compress(whole)
    head = (SCHEMA, flags, recording, number, *span, len(payload), len(whole), zlib.crc32(payload))
    fields = _FIELDS.pack(MAGIC, *head)
    return fields + _CRC.pack(zlib.crc32(fields)) + payload


def head_of(data: bytes) -> Head | None:
    """The header that ``data`` begins with, if it is one and is whole."""
    if len(data) < HEADER or not data.startswith(MAGIC):
        return None
    fields = data[: _FIELDS.size]
    if _CRC.unpack_from(data, _FIELDS.size)[0] != zlib.crc32(fields):
        return None
    head = Head(*_FIELDS.unpack(fields)[1:])
    fits = 0 <= head.first <= head.last <= _LAST_MOMENT and max(head.length, head.size) <= MAX_BLOCK
    return head if fits else None


def unpack(head: Head, payload: bytes) -> list[Entry]:
    """The events of a block. Raises ``RefusedError`` for a payload that is not what its header says."""
    check_schema(head)
    if zlib.crc32(payload) != head.crc:
        raise RefusedError("its checksum is wrong")
    try:
        unzip = zlib.decompressobj()
        whole = unzip.decompress(payload, head.size + 1)
        if len(whole) != head.size or not unzip.eof:
            raise RefusedError("it is not as long as it says")
        return _ENTRIES.decode(whole)
    except zlib.error as error:
        raise RefusedError(f"it can't be decompressed ({error})") from None
    except RefusedError:
        raise
    except MALFORMED as error:
        raise RefusedError(f"it holds no events ({str(error)[:100]})") from None


def check_schema(head: Head) -> None:
    if head.schema != SCHEMA:
        raise RefusedError(f"a recording of schema {head.schema}, where this bsmon reads {SCHEMA}: update bsmon")
