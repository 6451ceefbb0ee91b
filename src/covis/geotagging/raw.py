"""Raw photos that are TIFF files inside: their EXIF, and the largest JPEG preview in them."""

from __future__ import annotations

import struct
from pathlib import Path

from covis.core.errors import InputError
from covis.geotagging.tiff import byte_order, directory, number
from covis.reading.decoding import Reject, read
from covis.reading.exif import ExifData, photo_of_block
from covis.reading.inputs import Photo

RAW_SUFFIXES = frozenset({".dng", ".cr2", ".nef", ".arw", ".pef", ".srw"})
"""Others (CR3, RAF, ORF, RW2) are no plain TIFF files, and are not read."""
_SUB_IFDS, _STRIPS, _STRIP_BYTES, _JPEG, _JPEG_BYTES, _COMPRESSION = 0x014A, 0x0111, 0x0117, 0x0201, 0x0202, 0x0103
_MOST_DIRECTORIES = 32


def picture_of(path: Path) -> Photo:
    """A photo to be described or shown; raises `Reject` for a raw photo without a preview."""
    return Photo(path, _preview(read(path), str(path)) if path.suffix.lower() in RAW_SUFFIXES else None)


def read_raw(path: Path | str) -> ExifData:
    """What the EXIF of a raw photo says; raises `Reject` where it has no preview that can be described."""
    data = read(path)
    _preview(data, str(path))
    return photo_of_block(data)


def _preview(data: bytes, name: str) -> bytes:
    """The largest JPEG in it."""
    try:
        found = [data[at : at + size] for at, size in _pictures(data)]
    except (InputError, struct.error):
        raise Reject("corrupt", name, "its directories cannot be read") from None
    jpegs = [part for part in found if part.startswith(b"\xff\xd8\xff")]
    if not jpegs:
        raise Reject("not-an-image", name, "the raw file has no JPEG preview")
    return max(jpegs, key=len)


def _pictures(data: bytes) -> list[tuple[int, int]]:
    """Offset and length of what may be a JPEG: of all directories, in a chain or below another."""
    order = byte_order(data)
    waiting, seen, found = [struct.unpack_from(f"{order}I", data, 4)[0]], set[int](), list[tuple[int, int]]()
    while waiting and len(seen) < _MOST_DIRECTORIES:
        at = waiting.pop()
        if not at or at in seen:
            continue
        seen.add(at)
        entries, following = directory(data, at, order)
        tags = {entry.tag: entry for entry in entries}
        waiting.append(following)
        below = tags.get(_SUB_IFDS)
        if below is not None and below.length < _MOST_DIRECTORIES:
            inside = (number(below, order),) if below.length == 1 else struct.unpack_from(
                f"{order}{below.length}I", data, struct.unpack(f"{order}I", below.value)[0]
            )  # fmt: skip
            waiting += inside
        if _JPEG in tags and _JPEG_BYTES in tags:
            found.append((number(tags[_JPEG], order), number(tags[_JPEG_BYTES], order)))
        one_strip = _STRIPS in tags and tags[_STRIPS].length == 1 and _STRIP_BYTES in tags
        if one_strip and _COMPRESSION in tags and number(tags[_COMPRESSION], order) in (6, 7):
            found.append((number(tags[_STRIPS], order), number(tags[_STRIP_BYTES], order)))
    return found
