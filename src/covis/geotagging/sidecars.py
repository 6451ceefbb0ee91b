"""XMP files beside photos: which one belongs to a photo, the position in it, and putting one in without losing a field."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

from covis.core.errors import InputError
from covis.core.foreign import read_bounded
from covis.core.listings import Listing
from covis.geotagging.raw import RAW_SUFFIXES
from covis.geotagging.xmp import to_xmp
from covis.maps.answers import Answer

_EXIF = "http://ns.adobe.com/exif/1.0/"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_SET = r"GPS(?:VersionID|MapDatum|ProcessingMethod|Latitude|Longitude|ImgDirection|ImgDirectionRef|HPositioningError)"
"""Properties that a position is made of."""
_MOST_BYTES = 16_000_000


def sidecar_of(name: str, listing: Listing) -> str | None:
    """The sidecar of a photo, `IMG.JPG.xmp` or `IMG.xmp`, among the files of its folder; None where there is none.

    A sidecar without the photo's ending is that of the raw photo, where there is one.
    """
    path = PurePosixPath(name)
    beside = listing.folder("" if str(path.parent) == "." else str(path.parent))
    others = (PurePosixPath(other) for other in beside)
    alone = path.suffix.lower() in RAW_SUFFIXES or not any(
        other.stem == path.stem and other.suffix.lower() in RAW_SUFFIXES for other in others
    )
    for stem in (path.name, path.stem) if alone else (path.name,):
        for ending in (".xmp", ".XMP"):
            if stem + ending in beside:
                return str(path.with_name(stem + ending))
    return None


def new_sidecar(name: str) -> str:
    """The name of a sidecar that does not exist yet: raw photos have it without their ending, as Lightroom reads it."""
    path = PurePosixPath(name)
    return str(path.with_suffix(".xmp")) if path.suffix.lower() in RAW_SUFFIXES else f"{name}.xmp"


def read_position(path: Path) -> tuple[float, float, str] | None:
    """Latitude, longitude and how they were found; None where the sidecar has no position or cannot be read."""
    try:
        fields = _fields(read_bounded(path, _MOST_BYTES))
    except (OSError, InputError):
        return None
    exif = {tag: text for (tag, text) in fields if tag.startswith(f"{{{_EXIF}}}")}
    lat, lon = (_degrees(exif.get(f"{{{_EXIF}}}GPS{name}", "")) for name in ("Latitude", "Longitude"))
    return None if lat is None or lon is None else (lat, lon, exif.get(f"{{{_EXIF}}}GPSProcessingMethod", ""))


def _degrees(text: str) -> float | None:
    """`55,42.2796N` or `55,42,16.8N`; None for anything else."""
    found = re.fullmatch(r"\s*(\d{1,3}),(\d{1,2}(?:\.\d+)?)(?:,(\d{1,2}(?:\.\d+)?))?([NSEW])\s*", text)
    if not found:
        return None
    value = float(found[1]) + float(found[2]) / 60 + float(found[3] or 0) / 3600
    return -value if found[4] in "SW" else value


def merged(old: bytes, answer: Answer, name: str) -> bytes:
    """A sidecar's content with the answer's position: one more description, all other bytes as they were.

    Refused where anything but the position would change.
    """
    new = to_xmp(answer).encode()
    if not old.strip():
        return new
    before = _fields(old)
    text = old.decode("utf-8")
    prefix = next((m[1] for m in re.finditer(rf'xmlns:([\w.-]+)\s*=\s*["\']{re.escape(_EXIF)}["\']', text)), "exif")
    bare = re.sub(rf"\s{prefix}:{_SET}\s*=\s*(\"[^\"]*\"|'[^']*')", "", text)
    bare = re.sub(rf"\s*<{prefix}:{_SET}(?:\s[^>]*)?(?:/>|>[^<]*</{prefix}:{_SET}\s*>)", "", bare)
    about = re.search(r"""rdf:about\s*=\s*("[^"]*"|'[^']*')""", bare)
    inserted = re.search(r"<rdf:Description.*</rdf:Description>", new.decode(), re.DOTALL)
    end = bare.rfind("</rdf:RDF>")
    if end < 0 or inserted is None:
        raise InputError(f"{name} is no XMP file that a position can be put into; move it away")
    part = inserted[0].replace('rdf:about=""', f"rdf:about={about[1] if about else chr(34) * 2}", 1)
    result = (bare[:end] + part + bare[end:]).encode()
    position = {f for f in _fields(result) if re.fullmatch(rf"\{{{re.escape(_EXIF)}\}}{_SET}", f[0])}
    rest = [f for f in before if not re.fullmatch(rf"\{{{re.escape(_EXIF)}\}}{_SET}", f[0])]
    if sorted(rest) != sorted(f for f in _fields(result) if f not in position) or position != set(_fields(new)):
        raise InputError(f"{name} has fields that would be lost with a position; write with --write csv instead")
    return result


def _fields(xmp: bytes) -> list[tuple[str, str]]:
    """Every property and value of an XMP file, as (name, text); `rdf` names and empty descriptions left out."""
    if b"<!DOCTYPE" in xmp or b"<!ENTITY" in xmp:
        raise InputError("an XMP file with a document type is not read")
    try:
        root = ElementTree.fromstring(xmp.decode("utf-8").strip("\ufeff\0 \r\n\t"))
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"the XMP file cannot be read ({error})") from None
    texts = [(e.tag, "".join(e.itertext()).strip()) for e in root.iter() if e.tag.startswith("{")]
    attributes = [attribute for element in root.iter() for attribute in element.attrib.items()]
    return [(tag, text) for tag, text in texts + attributes if not tag.startswith((f"{{{_RDF}}}", "{adobe:ns:meta/}"))]
