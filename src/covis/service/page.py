"""The page of the service: three files of its own and Leaflet, all from this server."""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import FastAPI, Request, Response

_FILES = {
    "": ("service", "index.html", "text/html; charset=utf-8"),
    "assets/page.css": ("service", "page.css", "text/css; charset=utf-8"),
    "assets/page.js": ("service", "page.js", "text/javascript; charset=utf-8"),
    "assets/leaflet.css": ("report", "leaflet/leaflet.css", "text/css; charset=utf-8"),
    "assets/leaflet.js": ("report", "leaflet/leaflet.js", "text/javascript; charset=utf-8"),
    "assets/leaflet-license.txt": ("report", "leaflet/LICENSE", "text/plain; charset=utf-8"),
}
"""Address → folder of covis, file in its `assets`, type; found by path, for a report's package loads torch."""


def add_routes(app: FastAPI) -> None:
    """Adds the page at `/`."""
    for address, (folder, file, kind) in _FILES.items():
        content = resources.files("covis").joinpath(folder, "assets", file).read_bytes()
        app.get(f"/{address}", include_in_schema=False)(_file(content, kind))


def _file(content: bytes, kind: str):  # type: ignore[no-untyped-def]
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    head = {"ETag": tag, "Cache-Control": "no-cache"}

    async def asset(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=head)
        return Response(content, media_type=kind, headers=head)

    return asset
