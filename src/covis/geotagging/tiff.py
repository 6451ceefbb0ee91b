"""GPS tags put into an EXIF block (a TIFF header and its tags) whose bytes all stay where they are.

Makers' notes and thumbnails are found by their offset from the block's start, so a block is never written anew: its
GPS directory, and where it has none the first directory with a pointer to one, are appended.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from covis.core.errors import InputError

_GPS_POINTER = 0x8825
_EMPTY = b"MM\0*\0\0\0\x08\0\0\0\0\0\0"
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
"""Kind of a value → its bytes."""


class Entry(NamedTuple):
    """A tag of a directory as it stands in the file."""

    tag: int
    kind: int
    length: int
    value: bytes
    """Four bytes: the value, or the offset of a longer one."""


class Directory(NamedTuple):
    """A directory of a TIFF file."""

    entries: list[Entry]
    following: int
    """Offset of the next one; 0 for none."""


def byte_order(tiff: bytes) -> str:
    """`<` or `>`, as `struct` has it; an error where the data is no TIFF."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        raise InputError("its EXIF block is damaged")
    return order


def directory(tiff: bytes, at: int, order: str) -> Directory:
    """The directory at an offset."""
    try:
        (count,) = struct.unpack_from(f"{order}H", tiff, at)
        entries = [Entry(*struct.unpack_from(f"{order}HHI4s", tiff, at + 2 + 12 * i)) for i in range(count)]
        return Directory(entries, struct.unpack_from(f"{order}I", tiff, at + 2 + 12 * count)[0])
    except struct.error:
        raise InputError("its EXIF block is damaged") from None


def number(entry: Entry, order: str) -> int:
    """The value of a tag that holds one short or long number."""
    return int(
        struct.unpack(f"{order}H" if entry.kind == 3 else f"{order}I", entry.value[: 2 if entry.kind == 3 else 4])[0]
    )


def with_gps(tiff: bytes, tags: Mapping[int, Any], gone: tuple[int, ...] = ()) -> bytes:
    """The block with GPS `tags` (text, bytes, or numbers) set and those of `gone` removed; an empty block is made anew."""
    tiff = tiff or _EMPTY
    order = byte_order(tiff)
    (first,) = struct.unpack_from(f"{order}I", tiff, 4)
    root = directory(tiff, first, order)
    pointer = next((e for e in root.entries if e.tag == _GPS_POINTER), None)
    before = [] if pointer is None else directory(tiff, number(pointer, order), order).entries
    have = {e.tag: _content(tiff, e, order) for e in before}
    if all(have.get(tag) == _encoded(value, order)[2] for tag, value in tags.items()) and not ({*gone} - {*tags}) & {
        *have
    }:
        return tiff
    kept = [e for e in before if e.tag not in tags and e.tag not in gone]
    out = bytearray(tiff + b"\0" * (len(tiff) % 2))
    gps = _appended(out, kept, tags, 0, order)
    if pointer is not None:
        at = first + 2 + 12 * root.entries.index(pointer)
        struct.pack_into(f"{order}HHII", out, at, _GPS_POINTER, 4, 1, gps)
        return bytes(out)
    entry = Entry(_GPS_POINTER, 4, 1, struct.pack(f"{order}I", gps))
    struct.pack_into(f"{order}I", out, 4, _appended(out, [*root.entries, entry], {}, root.following, order))
    return bytes(out)


def _content(tiff: bytes, entry: Entry, order: str) -> bytes:
    """The bytes of a value."""
    size = _SIZES.get(entry.kind, 1) * entry.length
    at = 0 if size <= 4 else struct.unpack(f"{order}I", entry.value)[0]
    return entry.value[:size] if size <= 4 else tiff[at : at + size]


def _appended(out: bytearray, entries: list[Entry], tags: Mapping[int, Any], following: int, order: str) -> int:
    """Appends a directory of entries and tags, values first; returns its offset."""
    for tag, value in tags.items():
        kind, count, data = _encoded(value, order)
        if len(data) > 4:
            at = len(out)
            out += data + b"\0" * (len(data) % 2)
            data = struct.pack(f"{order}I", at)
        entries = [*entries, Entry(tag, kind, count, data.ljust(4, b"\0"))]
    at = len(out)
    out += struct.pack(f"{order}H", len(entries))
    out += b"".join(struct.pack(f"{order}HHI4s", *entry) for entry in sorted(entries))
    out += struct.pack(f"{order}I", following)
    return at


def _encoded(value: Any, order: str) -> tuple[int, int, bytes]:
    """Kind, count and bytes of a value: text, undefined bytes, four version bytes, or rational numbers."""
    if isinstance(value, str):
        data = value.encode("ascii", "replace") + b"\0"
        return 2, len(data), data
    if isinstance(value, bytes):
        return (1 if len(value) == 4 else 7), len(value), value
    numbers = value if isinstance(value, tuple) else (value,)
    parts = [part for n in numbers for part in (round(n * 10_000), 10_000)]
    return 5, len(numbers), struct.pack(f"{order}{len(parts)}I", *parts)
