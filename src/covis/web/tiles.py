"""Street tiles below a map: a tile server or an MBTiles file, and whom they are credited to."""

from __future__ import annotations

import base64
import html
import math
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covis.core.errors import InputError

NAMED = {"osm": "https://tile.openstreetmap.org/{z}/{x}/{y}.png"}
"""Short names of tile servers. This one's rules: credit, a referrer, no bulk downloads."""
SERVED = "tiles/{z}/{x}/{y}"
"""Where the service answers with the tiles of a file."""
_ADDRESS = re.compile(r"(https?://)((?:\{s\}\.)?[A-Za-z0-9.\-]+(?::\d+)?)/[!-~]*")
_OSM_HOST = re.compile(r"(?:^|\.)openstreetmap\.(?:org|fr|de)(?::\d+)?$")
_PICTURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
_EMBEDDED = 300
"""Most tiles that a page holds: those of its own extent, coarse ones first."""


@dataclass(frozen=True)
class Tiles:
    """A tile server, or a file of tiles."""

    address: str
    """With {z}, {x} and {y}."""
    credit: str
    """What the map says of them."""
    link: str
    origin: str
    """Scheme and host, as a content security policy names them; empty for a file."""
    file: Path | None = None
    """An MBTiles file."""
    finest: int = 19
    """The largest zoom there is."""

    def tile(self, z: int, x: int, y: int) -> tuple[bytes, str] | None:
        """A tile of the file and its media type; None where it has none."""
        assert self.file is not None
        content = _rows(self.file, _TILE, (z, x, 2**z - 1 - y))  # MBTiles counts rows from the south
        return (content[0][0], media_type(content[0][0])) if content else None

    def for_page(self, corners: Sequence[tuple[float, float]]) -> dict[str, Any]:
        """What a page's script needs; of a file the tiles around `corners` (latitude and longitude) themselves."""
        facts: dict[str, Any] = {
            "address": self.address,
            "credit": self.credit,
            "link": self.link,
            "finest": self.finest,
        }
        if self.file is None or not corners:
            return facts
        spans = {z: _extent(corners, z) for z in range(self.finest + 1)}
        coarsest = max(z for z, (columns, rows) in spans.items() if z == 0 or max(len(columns), len(rows)) <= 4)
        embedded: dict[str, str] = {}
        for z in range(coarsest, self.finest + 1):
            columns, rows = spans[z]
            if embedded and len(embedded) + len(columns) * len(rows) > _EMBEDDED:
                facts["finest"] = z - 1
                break
            for x in columns:
                for y in rows:
                    if (found := self.tile(z, x, y)) is not None:
                        embedded[f"{z}/{x}/{y}"] = f"data:{found[1]};base64,{base64.b64encode(found[0]).decode()}"
        return {**facts, "coarsest": coarsest, "embedded": embedded}


def parse_tiles(text: str) -> Tiles | None:
    """`osm`, an address with {z}, {x} and {y}, or an MBTiles file; None for no tiles."""
    if not text:
        return None
    if text.lower().endswith(".mbtiles"):
        return _open_file(Path(text))
    address = NAMED.get(text, text)
    found = _ADDRESS.fullmatch(address)
    if found is None or not all(part in address for part in ("{z}", "{x}", "{y}")):
        raise InputError(
            f"--tiles is osm, an address with {{z}}, {{x}} and {{y}} in it, or an .mbtiles file, not {text!r}"
        )
    scheme, host = found[1], found[2].replace("{s}", "*")
    if _OSM_HOST.search(host):
        return Tiles(
            address, "© OpenStreetMap contributors", "https://www.openstreetmap.org/copyright", f"{scheme}{host}"
        )
    plain = host.removeprefix("*.")
    return Tiles(address, f"tiles: {plain}", f"{scheme}{plain}", f"{scheme}{host}")


def media_type(content: bytes) -> str:
    """Of a picture, by its first bytes; empty where it is none (vector tiles)."""
    return next((kind for magic, kind in _PICTURES.items() if content.startswith(magic)), "")


_TILE = "SELECT tile_data FROM tiles WHERE zoom_level = ? AND tile_column = ? AND tile_row = ?"


def _rows(file: Path, query: str, values: Sequence[Any] = ()) -> list[Any]:
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(query, values).fetchall()


def _open_file(file: Path) -> Tiles:
    if not file.is_file():
        raise InputError(f"{file} does not exist; give an .mbtiles file of streets with --tiles")
    try:
        facts = dict(_rows(file, "SELECT name, value FROM metadata"))
        finest = _rows(file, "SELECT max(zoom_level) FROM tiles")[0][0]
        sample = _rows(file, "SELECT tile_data FROM tiles LIMIT 1")
    except sqlite3.DatabaseError as error:
        raise InputError(f"{file} is no MBTiles file ({error}); download or export it again") from None
    if not sample or not media_type(bytes(sample[0][0])):
        raise InputError(f"{file} has no tiles as PNG, JPEG or WebP pictures; export raster tiles, not vector ones")
    credit = html.unescape(re.sub(r"<[^>]*>", "", str(facts.get("attribution") or ""))) or f"tiles: {file.name}"
    link = "https://www.openstreetmap.org/copyright" if "openstreetmap" in credit.lower() else ""
    return Tiles(SERVED, credit, link, "", file, int(finest))


def _extent(corners: Sequence[tuple[float, float]], z: int) -> tuple[range, range]:
    """Columns and rows of the tiles that the corners lie in, and of one around them."""
    columns, rows, most = [], [], 2**z - 1
    for lat, lon in corners:
        angle = math.radians(max(-85.05, min(85.05, lat)))
        columns.append(math.floor((lon + 180) / 360 * 2**z))
        rows.append(math.floor((1 - math.asinh(math.tan(angle)) / math.pi) / 2 * 2**z))
    return (
        range(max(0, min(columns) - 1), min(most, max(columns) + 1) + 1),
        range(max(0, min(rows) - 1), min(most, max(rows) + 1) + 1),
    )
