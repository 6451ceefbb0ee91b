"""The pages at `/`, `/review` and `/docs`, and the files that they load from this server."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response

from covis.geotagging.review import SCRIPTS as REVIEW_SCRIPTS
from covis.geotagging.review import STYLES as REVIEW_STYLES
from covis.geotagging.review import TITLE
from covis.service.schemas import PROBLEMS
from covis.web.page import MAP_SCRIPTS, MAP_STYLES, asset_text, rendered
from covis.web.tiles import Tiles

_FILES = {
    "leaflet/LICENSE": "text/plain",
    **dict.fromkeys((*MAP_STYLES, "service.css", "report.css", *REVIEW_STYLES), "text/css"),
    **dict.fromkeys((*MAP_SCRIPTS, "server.js", "service.js", *REVIEW_SCRIPTS), "text/javascript"),
}
"""Files of `covis.web` → their type."""


def add_pages(app: FastAPI, tiles: Tiles | None) -> None:
    """Adds the pages with all that they load; `tiles` are streets below their maps."""
    service = rendered(
        "service.html",
        title="covis: where was this photo taken?",
        styles=(*MAP_STYLES, "service.css"),
        scripts=(*MAP_SCRIPTS, "server.js", "service.js"),
        tiles=tiles,
    )
    review = rendered(
        "geotag.html",
        frame="served.html",
        title=TITLE,
        styles=REVIEW_STYLES,
        scripts=(*MAP_SCRIPTS, "server.js", "geotag.js"),
        tiles=tiles,
    )
    api = app.openapi()
    interface = rendered(
        "interface.html",
        title="covis: the HTTP interface",
        styles=("base.css", "report.css"),
        scripts=(),
        api=api,
        curl=_curl,
        problems=PROBLEMS,
    )
    files = {"/docs": (interface, "text/html")}
    files |= {"/": (service, "text/html"), "/review": (review, "text/html")}
    files |= {f"/assets/{name}": (asset_text(name), kind) for name, kind in _FILES.items()}
    for path, (text, kind) in files.items():
        app.get(path, include_in_schema=False)(_file(text.encode(), f"{kind}; charset=utf-8"))
    if tiles is not None and tiles.file is not None:
        app.get("/tiles/{z}/{x}/{y}", include_in_schema=False)(_tile_of(tiles))


def _tile_of(tiles: Tiles) -> Callable[[int, int, int], Response]:
    def tile(z: int, x: int, y: int) -> Response:
        found = tiles.tile(z, x, y) if 0 <= z <= tiles.finest and min(x, y) >= 0 and max(x, y) < 2**z else None
        if found is None:  # a browser would note a 404 as an error
            return Response(status_code=204)
        return Response(found[0], media_type=found[1], headers={"Cache-Control": "max-age=86400"})

    return tile


def _curl(method: str, path: str, about: dict[str, Any]) -> str:
    """A request to try, with the address of this machine."""
    sent = about.get("requestBody", {}).get("content", {})
    verb = "" if method == "get" or (method == "post" and sent) else f" -X {method.upper()}"
    form = " -F photo=@photo.jpg" if "multipart/form-data" in sent else ""
    return f"curl{verb}{form} http://127.0.0.1:8765{path}"


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    head = {"ETag": tag, "Cache-Control": "no-cache"}

    async def asset(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=head)
        return Response(content, media_type=kind, headers=head)

    # FastAPI reads the annotations, which name what this module imports
    return asset
