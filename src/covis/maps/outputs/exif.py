"""Copies of photos with the located position in their EXIF block (JPEG, PNG, WebP) or in an XMP file beside them."""

from __future__ import annotations

import io
import itertools
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covis.core.errors import InputError
from covis.core.files import write_bytes
from covis.core.progress import warn
from covis.core.tables import counted
from covis.maps.answers import Answer, printable
from covis.maps.outputs.tiff import with_gps
from covis.maps.outputs.xmp import METHOD, method, to_xmp
from covis.reading.decoding import open_image

_EXIF_HEAD, _PNG_HEAD = b"Exif\0\0", b"\x89PNG\r\n\x1a\n"
_FIX_TAGS = (*range(8, 12), 16, 17, 27, 28, 30, 31)
"""GPS tags about the previous position: satellites, status, mode, DOP, direction, method, area, differential, error."""


def check_folder(folder: Path, photos: Sequence[Path]) -> None:
    """Refuses the folder of the photos themselves, which their copies would overwrite."""
    resolved = folder.resolve()
    original = next((p for p in photos if resolved in (p.parent.resolve(), p.resolve().parent)), None)
    if original is not None:
        raise InputError(f"{folder} holds the original {original}, which stays unchanged; give another folder")


def write_copies(folder: Path, answers: Sequence[Answer]) -> str:
    """Writes a copy of each photo that has a position on Earth in the map, pixels untouched, and says how many.

    JPEG, PNG and WebP carry the position inside; copies of other formats (HEIC, TIFF) get an XMP file beside them.
    """
    located = [a for a in answers if a.position is not None and a.position.place.lat is not None and not a.absent]
    check_folder(folder, [a.photo for a in located])
    files = _unique_files(folder, [a.photo.name for a in located])
    foreign = next((file for file in files if file.exists() and not _is_own_copy(file)), None)
    if foreign is not None:
        raise InputError(f"{foreign} already exists and was not written by covis; give another folder for the copies")
    sidecars = sum(_write_copy(answer, file) for answer, file in zip(located, files, strict=True))
    left_out = [printable(a.photo) for a in answers if a not in located]
    if left_out:
        warn(f"{counted(len(left_out), 'photo')} left out because no position could be written, such as {left_out[0]}")
    summary = f"{counted(len(located), 'photo')} with GPS"
    if sidecars:
        summary += f" ({sidecars} not in JPEG, PNG or WebP: an XMP file beside the copy)"
    doubtful = sum(not a.confident for a in located)
    return f"{summary}, {doubtful} of the positions not confident," if doubtful else summary


def _write_copy(answer: Answer, file: Path) -> bool:
    """Writes one copy; returns whether its position is in an XMP file."""
    data = answer.photo.read_bytes()
    changed = with_position(data, answer)
    write_bytes(file, data if changed is None else changed)
    shutil.copystat(answer.photo, file)
    if changed is None:
        write_bytes(file.with_name(f"{file.name}.xmp"), to_xmp(answer).encode())
    return changed is None


def _is_own_copy(file: Path) -> bool:
    """Whether a file was written by `write_copies`: it, or the XMP file beside it, says so."""
    files = (file, file.with_name(f"{file.name}.xmp"))
    return any(part.is_file() and METHOD.encode() in part.read_bytes() for part in files)


def _unique_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Files in `folder`; where a name occurs again, a number that makes it unique is added."""
    taken, seen = set(names), set[str]()
    files = []
    for name in names:
        stem, dot, ending = name.partition(".")
        numbered = (f"{stem}-{count}{dot}{ending}" for count in itertools.count(2))
        unique = name if name not in seen else next(other for other in numbered if other not in taken)
        seen.add(name)
        taken.add(unique)
        files.append(folder / unique)
    return files


def with_position(data: bytes, answer: Answer) -> bytes | None:
    """A photo's content with the answer's position in its EXIF block, all else unchanged; None if no JPEG, PNG or WebP."""
    if data[:3] == b"\xff\xd8\xff":
        return _jpeg_with_position(data, answer)
    if data.startswith(_PNG_HEAD):
        return _png_with_position(data, answer)
    if (data[:4], data[8:12]) == (b"RIFF", b"WEBP"):
        return _webp_with_position(data, answer)
    return None


def _exif_block(before: bytes, answer: Answer) -> bytes:
    """The EXIF block with the position; every other byte of it stays where it was."""
    try:
        return with_gps(before.removeprefix(_EXIF_HEAD), _gps_tags(answer), _FIX_TAGS)
    except InputError as error:
        raise InputError(f"{answer.photo}: {error}; write .csv or .geojson instead") from None


def _gps_tags(answer: Answer) -> dict[int, Any]:
    """GPS tags by number, as EXIF 2.3 defines them."""
    assert answer.position is not None
    place, radius = answer.position.place, answer.position.radius_m
    assert place.lat is not None
    assert place.lon is not None
    tags: dict[int, Any] = {0: b"\2\3\0\0", 1: "N" if place.lat >= 0 else "S", 2: _degrees_minutes_seconds(place.lat)}
    tags |= {3: "E" if place.lon >= 0 else "W", 4: _degrees_minutes_seconds(place.lon), 18: "WGS-84"}
    if place.heading is not None:
        tags |= {16: "T", 17: round(place.heading % 360.0, 2)}
    if radius is not None:
        tags[31] = round(radius, 1)
    return tags | {27: b"ASCII\0\0\0" + method(answer).encode("ascii", "replace")}


def _degrees_minutes_seconds(value: float) -> tuple[float, float, float]:
    seconds = round(abs(value) * 3600, 4)
    return float(seconds // 3600), float(seconds % 3600 // 60), round(seconds % 60, 4)


def _jpeg_with_position(jpeg: bytes, answer: Answer) -> bytes:
    start, stop = _exif_segment(jpeg)
    block = _EXIF_HEAD + _exif_block(jpeg[start + 10 : stop], answer)
    if len(block) + 2 > 0xFFFF:
        raise InputError(f"{answer.photo}: its EXIF block has no room for a position; write .csv or .geojson instead")
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


def _png_with_position(png: bytes, answer: Answer) -> bytes:
    """The chunk eXIf goes behind the header, before the pixels."""
    chunks: list[bytes] = []
    at, before = len(_PNG_HEAD), b""
    while at + 12 <= len(png):
        chunk = png[at : at + 12 + int.from_bytes(png[at : at + 4], "big")]
        if chunk[4:8] == b"eXIf":
            before = chunk[8:-4]
        else:
            chunks.append(chunk)
        at += len(chunk)
    body = b"eXIf" + _exif_block(before, answer)
    exif = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return b"".join((_PNG_HEAD, chunks[0], exif, *chunks[1:], png[at:]))


def _webp_with_position(webp: bytes, answer: Answer) -> bytes:
    """The chunk EXIF goes to the end of the file, whose header (VP8X, made where there is none) says so."""
    chunks: list[tuple[bytes, bytes]] = []
    at = 12
    while at + 8 <= len(webp):
        size = int.from_bytes(webp[at + 4 : at + 8], "little")
        chunks.append((webp[at : at + 4], webp[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    if chunks[0][0] != b"VP8X":
        alpha = chunks[0][0] == b"VP8L" and bool(chunks[0][1][4] & 0x10)
        canvas = b"".join((side - 1).to_bytes(3, "little") for side in open_image(io.BytesIO(webp)).size)
        chunks.insert(0, (b"VP8X", bytes([0x10 * alpha, 0, 0, 0]) + canvas))
    before = next((body for kind, body in chunks if kind == b"EXIF"), b"")
    head = chunks[0][1]
    kept = [(b"VP8X", bytes([head[0] | 0x08]) + head[1:]), *(c for c in chunks[1:] if c[0] != b"EXIF")]
    kept.append((b"EXIF", _exif_block(before, answer)))
    body = b"".join(kind + len(d).to_bytes(4, "little") + d + b"\0" * (len(d) % 2) for kind, d in kept)
    return b"RIFF" + (len(body) + 4).to_bytes(4, "little") + b"WEBP" + body
