"""EXIF of one photo: position, heading, height and time; NaN and empty where it does not say."""

from __future__ import annotations

import io
import json
import math
import warnings
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from covis.reading.decoding import MAX_PIXELS, Reject, call_decoder, is_plain, open_image
from covis.reading.screening import look

_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_ORIENTATION, _DESCRIPTION, _TAKEN, _OFFSETS = 0x0112, 0x010E, 0x9003, (0x9011, 0x9010)
_MAKE, _MODEL, _SERIAL = 0x010F, 0x0110, 0xA431
_LAT_REF, _LAT, _LON_REF, _LON, _ALT_REF, _ALT, _CLOCK = 1, 2, 3, 4, 5, 6, 7
_DIRECTION_REF, _DIRECTION, _METHOD, _DATE = 16, 17, 27, 29


class ExifData(NamedTuple):
    """NaN and empty mean unknown."""

    lat: float = math.nan
    lon: float = math.nan
    heading: float = math.nan
    """Degrees clockwise from the north that `reference` names."""
    reference: str = ""
    """`true`, `magnetic`, or empty."""
    altitude: float = math.nan
    """Metres above the sea."""
    orientation: int = 1
    taken: str = ""
    """Local time, ISO 8601, with its offset where the photo gives one."""
    utc_s: float = math.nan
    """Seconds since 1970, where the photo gives the offset or has a GPS clock."""
    method: str = ""
    """How the position was found, where the photo says so."""
    panorama: bool = False
    camera: str = ""
    """Its make, model and serial number, as far as they are known."""
    damaged: bool = False
    """Whether the EXIF block could not be read."""


def read_photo(path: Path | str) -> ExifData:
    """Reads a photo's own data, not its pixels; raises `Reject` for a file that is no usable image."""
    verdict = look(path)
    if verdict is not None:
        raise verdict
    with Path(path).open("rb") as file:
        plain = is_plain(file.read(16))
    return call_decoder(str(path), plain, _read, path, str(path))


def photo_of(data: bytes, name: str = "image") -> ExifData:
    """Like `read_photo`, from a file's content; `name` is what a `Reject` calls it."""
    return call_decoder(name, is_plain(data), _read, io.BytesIO(data), name)


def photo_of_block(tiff: bytes) -> ExifData:
    """What an EXIF block says, or a raw photo that is a TIFF file; nothing where it is damaged."""
    exif = Image.Exif()
    try:
        exif.load(tiff)
        return _photo(exif, exif.get_ifd(_EXIF_IFD), exif.get_ifd(_GPS_IFD))
    except Exception:  # a damaged block raises anything
        return ExifData(damaged=True)


def _read(source: Path | str | io.BytesIO, name: str) -> ExifData:
    try:
        with warnings.catch_warnings(record=True) as caught, open_image(source) as image:
            warnings.simplefilter("always")
            if image.width * image.height > MAX_PIXELS:
                raise Reject("too-large", name, f"{image.width}×{image.height} pixels")
            panorama = _is_panorama(image)
            try:
                exif = image.getexif()
                photo = _photo(exif, exif.get_ifd(_EXIF_IFD), exif.get_ifd(_GPS_IFD))
            except Exception:  # a damaged block raises anything; the pixels are still good
                return ExifData(panorama=panorama, damaged=True)
    except Reject:
        raise
    except Exception as error:
        raise Reject("corrupt", name, str(error)) from None
    damaged = any("EXIF" in str(w.message) for w in caught)
    return photo._replace(panorama=panorama, damaged=damaged)


def _photo(main: Any, exif: dict[int, Any], gps: dict[int, Any]) -> ExifData:
    lat, lon = _position(gps)
    heading, reference = _heading(gps, main.get(_DESCRIPTION))
    orientation = main.get(_ORIENTATION, 1)
    taken, utc = _time(exif, gps)
    return ExifData(
        lat,
        lon,
        heading,
        reference,
        _altitude(gps),
        orientation if orientation in range(1, 9) else 1,
        taken,
        utc,
        camera=" ".join(filter(None, (_text(main.get(_MAKE)), _text(main.get(_MODEL)), _text(exif.get(_SERIAL))))),
        method=_text(gps.get(_METHOD)),
    )


def _position(gps: dict[int, Any]) -> tuple[float, float]:
    """Degrees; both unknown where a number or hemisphere is missing or makes no sense."""
    lat = _degrees(gps.get(_LAT), gps.get(_LAT_REF), "NS", 90.0)
    lon = _degrees(gps.get(_LON), gps.get(_LON_REF), "EW", 180.0)
    if math.isnan(lat) or math.isnan(lon) or (lat == 0 and lon == 0):
        return math.nan, math.nan
    return lat, lon


def _degrees(parts: Any, reference: Any, letters: str, limit: float) -> float:
    letter = _text(reference).upper()[:1]
    if letter not in tuple(letters) or not isinstance(parts, tuple) or len(parts) != 3:
        return math.nan
    degrees, minutes, seconds = (_number(p) for p in parts)
    value = degrees + minutes / 60 + seconds / 3600
    if not 0 <= value <= limit:  # also NaN, from a rational such as 0/0
        return math.nan
    return -value if letter == letters[1] else value


def _heading(gps: dict[int, Any], description: Any) -> tuple[float, str]:
    """Degrees in [0, 360) and what they are measured from; −1 is how some cameras say that they do not know."""
    value = _number(gps.get(_DIRECTION))
    if not math.isnan(value) and value >= 0:
        letter = _text(gps.get(_DIRECTION_REF)).upper()[:1]
        return value % 360.0, {"T": "true", "M": "magnetic"}.get(letter, "")
    try:  # Mapillary's app writes its compass into the description
        compass = json.loads(description)["MAPCompassHeading"]["TrueHeading"]
    except (TypeError, ValueError, KeyError):
        return math.nan, ""
    value = _number(compass)
    return (value % 360.0, "true") if value >= 0 else (math.nan, "")


def _altitude(gps: dict[int, Any]) -> float:
    """Metres; the reference byte 1 means below the sea, and its absence above, as EXIF defines."""
    value, reference = _number(gps.get(_ALT)), gps.get(_ALT_REF, b"\0")
    below = reference in (1, b"\x01", "1")
    return -value if below else value


def _time(exif: dict[int, Any], gps: dict[int, Any]) -> tuple[str, float]:
    """Local time as text, and seconds since 1970 where that can be known."""
    offset = next(filter(None, (_offset(_text(exif.get(tag))) for tag in _OFFSETS)), None)
    try:
        local = datetime.strptime(_text(exif.get(_TAKEN)), "%Y:%m:%d %H:%M:%S").replace(tzinfo=offset)
    except ValueError:
        local = None
    utc = local.timestamp() if local is not None and offset is not None else _gps_clock(gps)
    return (local.isoformat() if local is not None else ""), utc


def _offset(text: str) -> timezone | None:
    """`+02:00` → a time zone."""
    try:
        hours, minutes = text[1:].split(":")
        turn = timedelta(hours=int(hours), minutes=int(minutes))
    except ValueError:
        return None
    return timezone(-turn if text[0] == "-" else turn) if text[:1] in ("+", "-") else None


def _gps_clock(gps: dict[int, Any]) -> float:
    try:
        day = datetime.strptime(_text(gps.get(_DATE)), "%Y:%m:%d").replace(tzinfo=UTC)
        hours, minutes, seconds = (_number(p) for p in gps[_CLOCK])
    except (KeyError, TypeError, ValueError):
        return math.nan
    return day.timestamp() + 3600 * hours + 60 * minutes + seconds


def _is_panorama(image: Image.Image) -> bool:
    """Whether the photo declares itself a full panorama (GPano), which has no one heading."""
    xmp = image.info.get("xmp", b"")
    text = xmp if isinstance(xmp, bytes) else str(xmp).encode(errors="replace")
    return b"ProjectionType" in text and b"equirectangular" in text


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("ascii", errors="replace")
    return value.strip("\0 ") if isinstance(value, str) else ""
