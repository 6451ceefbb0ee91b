"""Street tiles below a map: where they are requested from, and whom they are credited to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from covis.core.errors import InputError

NAMED = {"osm": "https://tile.openstreetmap.org/{z}/{x}/{y}.png"}
"""Short names of tile servers. This one's rules: credit, a referrer, no bulk downloads."""
_ADDRESS = re.compile(r"(https?://)((?:\{s\}\.)?[A-Za-z0-9.\-]+(?::\d+)?)/[!-~]*")
_OSM_HOST = re.compile(r"(?:^|\.)openstreetmap\.(?:org|fr|de)(?::\d+)?$")


@dataclass(frozen=True)
class Tiles:
    """A tile server."""

    address: str
    """With {z}, {x} and {y}."""
    credit: str
    """What the map says of them."""
    link: str
    origin: str
    """Scheme and host, as a content security policy names them."""


def parse_tiles(text: str) -> Tiles | None:
    """`osm`, or an address with {z}, {x} and {y}; None for no tiles."""
    if not text:
        return None
    address = NAMED.get(text, text)
    found = _ADDRESS.fullmatch(address)
    if found is None or not all(part in address for part in ("{z}", "{x}", "{y}")):
        raise InputError(f"--tiles is osm or an address with {{z}}, {{x}} and {{y}} in it, not {text!r}")
    scheme, host = found[1], found[2].replace("{s}", "*")
    if _OSM_HOST.search(host):
        return Tiles(
            address, "© OpenStreetMap contributors", "https://www.openstreetmap.org/copyright", f"{scheme}{host}"
        )
    plain = host.removeprefix("*.")
    return Tiles(address, f"tiles: {plain}", f"{scheme}{plain}", f"{scheme}{host}")
