"""From plain values to wire bytes. Nothing here raises: what cannot be packed is left out, field by field, and named.

A record is packed once; a ``steps`` payload is put together from packed records without packing them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgpack

from bsmon_agent import wire

ROOM = 256  # bytes a payload needs around its records: the keys, the session, the array header
LARGEST = wire.MAX_PAYLOAD - ROOM

_headers = msgpack.Packer()


def pack(value: Any) -> bytes:
    """One value. NaN and infinity are floats like any other; a lone surrogate in a text becomes a question mark."""
    packed: bytes = msgpack.packb(value, unicode_errors="replace")
    return packed


def fields(values: Mapping[str, Any], limit: int = LARGEST) -> tuple[bytes, list[str]]:
    """A map as msgpack of at most ``limit`` bytes, and the names of the fields that had to be left out."""
    try:
        packed = pack(values)
        if len(packed) <= limit:
            return packed, []
    except Exception:  # a tensor, an int beyond 64 bits, a list that holds itself: find out which field it is
        pass
    return _field_by_field(values, limit)


def _field_by_field(values: Mapping[str, Any], limit: int) -> tuple[bytes, list[str]]:
    parts: dict[str, bytes] = {}
    left_out: list[str] = []
    for name, value in list(values.items()):
        try:
            parts[str(name)] = pack(str(name)) + pack(value)
        except Exception:
            left_out.append(str(name))
    while sum(map(len, parts.values())) + 5 > limit:
        largest = max(parts, key=lambda name: len(parts[name]))
        del parts[largest]
        left_out.append(largest)
    return _headers.pack_map_header(len(parts)) + b"".join(parts.values()), left_out


def steps(session: str, records: Iterable[bytes], limit: int = wire.MAX_PAYLOAD) -> Iterator[bytes]:
    """Payloads that carry these packed records in order, each of at most ``limit`` bytes and ``MAX_RECORDS`` records.

    A record that alone is larger than ``limit`` travels alone; ``fields`` keeps it under ``MAX_PAYLOAD``.
    """
    head = _headers.pack_map_header(3) + pack("schema") + pack(wire.SCHEMA) + pack("session") + pack(session)
    batch: list[bytes] = []
    size = ROOM
    for record in records:
        if batch and (size + len(record) > limit or len(batch) == wire.MAX_RECORDS):
            yield _close(head, batch)
            batch, size = [], ROOM
        batch.append(record)
        size += len(record)
    if batch:
        yield _close(head, batch)


def _close(head: bytes, batch: list[bytes]) -> bytes:
    return b"".join((head, pack("records"), _headers.pack_array_header(len(batch)), *batch))
