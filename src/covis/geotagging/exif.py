"""JPEG photos with a located position in their EXIF block, everything else in the file as it was."""

from __future__ import annotations

from typing import Any

from covis.core.errors import InputError
from covis.geotagging.tiff import with_gps
from covis.geotagging.xmp import method
from covis.maps.answers import Answer

_EXIF_HEAD = b"Exif\0\0"
_FIX_TAGS = (*range(8, 12), 16, 17, 27, 28, 30, 31)
"""GPS tags about the previous position: satellites, status, mode, DOP, direction, method, area, differential, error."""


def with_position(jpeg: bytes, answer: Answer) -> bytes | None:
    """The content of a photo with the answer's position; None if it is no JPEG."""
    if jpeg[:3] != b"\xff\xd8\xff":
        return None
    start, stop = _exif_segment(jpeg)
    try:
        block = _EXIF_HEAD + with_gps(jpeg[start + 10 : stop], _gps_tags(answer), _FIX_TAGS)
    except InputError as error:
        raise InputError(f"{answer.photo}: {error}; write XMP files instead") from None
    if len(block) + 2 > 0xFFFF:
        raise InputError(f"{answer.photo}: its EXIF block has no room for a position; write XMP files instead")
    segment = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
    return jpeg[:start] + segment + jpeg[stop:]


def _exif_segment(jpeg: bytes) -> tuple[int, int]:
    """Where a JPEG's EXIF segment begins and ends; an empty span after the header where it has none."""
    at = 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] != 0xDA:
        size = int.from_bytes(jpeg[at + 2 : at + 4], "big") + 2
        if jpeg[at + 1] == 0xE1 and jpeg[at + 4 : at + 10] == _EXIF_HEAD:
            return at, at + size
        at += size
    behind = 2
    if jpeg[2:4] == b"\xff\xe0":  # JFIF stays in front
        behind += int.from_bytes(jpeg[4:6], "big") + 2
    return behind, behind


def _gps_tags(answer: Answer) -> dict[int, Any]:
    """GPS tags by number, as EXIF 2.3 defines them."""
    assert answer.position is not None
    place, radius = answer.position.place, answer.position.radius_m
    assert place.lat is not None
    assert place.lon is not None
    tags: dict[int, Any] = {0: b"\2\3\0\0", 1: "N" if place.lat >= 0 else "S", 2: _degrees_minutes_seconds(place.lat)}
    tags |= {3: "E" if place.lon >= 0 else "W", 4: _degrees_minutes_seconds(place.lon), 18: "WGS-84"}
    if radius is not None:
        tags[31] = round(radius, 1)
    return tags | {27: b"ASCII\0\0\0" + method(answer).encode("ascii", "replace")}


def _degrees_minutes_seconds(value: float) -> tuple[float, float, float]:
    seconds = round(abs(value) * 3600, 4)
    return float(seconds // 3600), float(seconds % 3600 // 60), round(seconds % 60, 4)
