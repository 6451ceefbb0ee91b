"""The HTTP interface: routes, who may use them, and in which format they answer."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from covis import __version__
from covis.core.artifacts import InUse
from covis.core.errors import InputError
from covis.core.progress import warn
from covis.geotagging import memory_of
from covis.geotagging.review import SCRIPTS as REVIEW_SCRIPTS
from covis.geotagging.review import STYLES as REVIEW_STYLES
from covis.geotagging.review import TITLE, StoredReview
from covis.maps.outputs.geopose import MEDIA_TYPE as GEOPOSE
from covis.maps.storage.engine import Unavailable
from covis.reading.decoding import Reject
from covis.service.additions import added_images, read_positions
from covis.service.batching import Batcher, Unusable
from covis.service.forms import FIELD, Form, Upload, read_form
from covis.service.guard import Guard
from covis.service.keys import Key, Keys
from covis.service.limits import Budget, Limits, Rate, TooBusy
from covis.service.locating import ANSWER_FORMATS, GEOJSON, LocateRequest, accepted, answer, search_area
from covis.service.map_cache import MapCache, MapSnapshot
from covis.service.schemas import ChangedOut, CoverageOut, LocatedOut, MapOut, MapsOut, PhotosOut, StatusOut, problems
from covis.web.page import MAP_SCRIPTS, MAP_STYLES, asset_text, rendered
from covis.web.tiles import Tiles, parse_tiles


@dataclass(eq=False)
class Server:
    """What all requests share."""

    cache: MapCache
    limits: Limits
    keys: Keys | None
    batcher: Batcher
    rate: Rate
    bodies: Budget

    def __post_init__(self) -> None:
        self.writing = {name: asyncio.Lock() for name in self.cache.names}

    async def snapshot(self, name: str | None) -> MapSnapshot:
        """The newest state of a map; without a name the only one."""
        if name is None:
            if len(self.cache.names) > 1:
                raise HTTPException(422, f"map: several are served, say which: {', '.join(self.cache.names)}")
            name = self.cache.names[0]
        if name not in self.cache.names:
            raise HTTPException(404, f"there is no map {name[:80]!r}; there are: {', '.join(self.cache.names)}")
        try:
            return await run_in_threadpool(self.cache.now, name)
        except (InputError, OSError) as error:
            warn(f"the map {name!r} cannot be read now: {error}")
            raise TooBusy(f"the map {name!r} cannot be read now", 5) from None

    def allow(self, request: Request, role: str) -> Key | None:
        """Lets a request pass, or raises 401, 403 or 429; 503 while the keys cannot be read."""
        given = request.headers.get("x-api-key", "")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = token.strip()
        try:
            key = self.keys.find(given) if self.keys is not None and given else None
        except InputError:
            raise TooBusy("the server's file of keys cannot be read now", 5) from None
        client = f"key {key.name}" if key else request.client.host if request.client else "?"
        request.state.client = client
        self.rate.take(client)
        if key is None and (self.keys is not None or role == "write"):
            why = "this key is not known" if given and self.keys else "this needs a key"
            hint = "send Authorization: Bearer KEY" if self.keys else "start the server with --keys FILE"
            raise HTTPException(401, f"{why}; {hint}", {"WWW-Authenticate": "Bearer"})
        if key is not None and role == "write" and key.role != "write":
            raise HTTPException(403, f"the key {key.name!r} may read, not change; use one with the role write")
        return key


def _server(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


def _reader(request: Request) -> Server:
    server = _server(request)
    server.allow(request, "read")
    return server


def _writer(request: Request) -> Server:
    server = _server(request)
    server.allow(request, "write")
    return server


ReadAccess = Annotated[Server, Depends(_reader)]
WriteAccess = Annotated[Server, Depends(_writer)]


def create_app(
    maps: Sequence[Path],
    *,
    limits: Limits | None = None,
    keys: Keys | None = None,
    hosts: frozenset[str] | None = None,
    pictures: Sequence[Path] = (),
    tiles: str = "",
) -> FastAPI:
    """The application over maps; `hosts` are names it may be addressed by (None: any).

    pictures: folders of photos to show beside those that were given to the maps on this machine. tiles: streets below
    the page's map, `osm` or an address.
    """
    below = parse_tiles(tiles)
    limits = limits or Limits()
    cache = MapCache(maps, pictures)
    batcher = Batcher(limits.queue, limits.answer_s)
    bodies = Budget(limits.total_bytes, "too many uploads at once")
    server = Server(cache, limits, keys, batcher, Rate(limits.per_minute), bodies)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    app = FastAPI(
        title="covis", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Where a photo was taken: maps of photos over HTTP.",
    )  # fmt: skip
    app.state.server = server
    _add_routes(app)
    _add_page(app, below)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(InputError, _bad_input)
    app.add_exception_handler(Unavailable, _unavailable)
    app.add_exception_handler(OSError, _disk_failure)
    app.add_middleware(Guard, limits=limits, budget=bodies, hosts=hosts, tiles=below.origin if below else "")
    return app


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": _sentence(error.errors())}, 422)


async def _bad_input(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": _without_paths(str(error), _server(request).cache)}, 422)


def _without_paths(text: str, cache: MapCache) -> str:
    """What the command line says, without this machine's paths and in the words of this interface."""
    for name, path in cache.paths.items():
        inside = re.escape(str(path.parent.resolve())) + r"[^\s;,)'\"]*"
        text = re.sub(rf" \({inside}\)", "", text)
        text = re.sub(inside, name, text)
    return text.replace("add these under --prefix NAME/", "send it with another name or a `prefix`")


async def _unavailable(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "the engine of the map does not answer; try again"}, 503, {"Retry-After": "5"})


async def _disk_failure(request: Request, error: Exception) -> Response:
    """The map's disk is full or cannot be written; nothing has changed."""
    assert isinstance(error, OSError)
    warn(f"{request.method} {request.url.path}: {error}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JSONResponse({"detail": "the server's disk is full; nothing was changed"}, 507)
    detail = "the server cannot read or write its files now; nothing was changed"
    return JSONResponse({"detail": detail}, 503, {"Retry-After": "30"})


def _sentence(errors: Sequence[Any]) -> str:
    return "; ".join(f"{'.'.join(str(p) for p in e['loc'] if p not in ('query', 'path'))}: {e['msg']}" for e in errors)


def _form_schema(fields: dict[str, Any]) -> dict[str, Any]:
    """The body of a request with photos, for OpenAPI."""
    photo = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"},
             "description": "one photo or several: JPEG, PNG, TIFF, WebP, …"}  # fmt: skip
    schema = {"type": "object", "required": [FIELD], "properties": {FIELD: photo, **fields}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


_OPTION_FIELDS = {
    name: {key: value for key, value in schema.items() if key in ("type", "description", "anyOf", "minimum", "maximum")}
    for name, schema in LocateRequest.model_json_schema()["properties"].items()
}


def _add_routes(app: FastAPI) -> None:
    app.get("/healthz", response_model=StatusOut, tags=["server"], responses=problems())(healthz)
    app.get("/readyz", response_model=StatusOut, tags=["server"], responses=problems(503))(readyz)
    app.post(
        "/v1/locate", response_model=LocatedOut, tags=["locate"], openapi_extra=_form_schema(_OPTION_FIELDS),
        responses=problems(400, 404, 406, 408, 409, 413, 415, 503) | _LOCATED, summary="Say where photos were taken",
    )(locate)  # fmt: skip
    app.get("/v1/maps", response_model=MapsOut, tags=["maps"], responses=problems(503))(maps)
    app.get("/v1/maps/{name}", response_model=MapOut, tags=["maps"], responses=problems(404, 503))(one_map)
    app.get("/v1/maps/{name}/photos", response_model=PhotosOut, tags=["maps"], responses=problems(404, 503))(photos)
    app.get("/v1/maps/{name}/coverage", response_model=CoverageOut, tags=["maps"], responses=problems(404, 503))(gaps)
    app.get(
        "/v1/maps/{name}/thumbnails/{image:path}", tags=["maps"], response_class=Response,
        responses=problems(404, 503) | _PICTURE,
    )(thumbnail)  # fmt: skip
    app.get("/v1/maps/{name}/review", tags=["review"], responses=problems(404))(review)
    app.put("/v1/maps/{name}/review/decisions", tags=["review"], responses=problems(403, 404, 413, 503, 507))(decide)
    app.get(
        "/v1/maps/{name}/review/pictures/{image:path}", tags=["review"], response_class=Response,
        responses=problems(404) | _PICTURE,
    )(review_picture)  # fmt: skip
    fields = {"positions": {"type": "string", "description": _POSITIONS}, "prefix": {"type": "string"}}
    app.post(
        "/v1/maps/{name}/photos", response_model=ChangedOut, status_code=201, tags=["maps"],
        openapi_extra=_form_schema(fields), responses=problems(400, 403, 404, 408, 409, 413, 415, 503, 507),
    )(add_photos)  # fmt: skip
    app.delete(
        "/v1/maps/{name}/photos/{image:path}", response_model=ChangedOut, tags=["maps"],
        responses=problems(403, 404, 409, 503, 507),
    )(remove_photo)  # fmt: skip


_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {}}, "description": "a small picture"},
    204: {"description": "the photo has no picture, and `missing=ok` was said; the header X-Covis-Reason says why"},
}
_LOCATED: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            GEOJSON: {"schema": {"type": "object", "description": "a FeatureCollection"}},
            GEOPOSE: {"schema": {"description": "OGC GeoPose Basic-YPR: one object, or a list for several photos"}},
        },
        "description": "one answer for each photo",
    }
}
_POSITIONS = (
    'JSON list, one object per photo: {"lat", "lon"} or {"easting", "northing"}, optional "heading" and "group"; '
    "left out, positions are read from EXIF"
)


async def healthz() -> dict[str, str]:
    """The process runs."""
    return {"status": "ok"}


async def readyz(request: Request) -> dict[str, str]:
    """At least one map can be asked: an engine that is away stops only its own."""
    server = _server(request)
    asked = await asyncio.gather(*map(server.snapshot, server.cache.names), return_exceptions=True)
    if all(isinstance(one, BaseException) for one in asked):
        raise TooBusy("no map can be read now", 5)
    if server.batcher.slots.used >= server.batcher.slots.most:
        raise TooBusy("the queue is full")
    return {"status": "ready"}


async def locate(request: Request, server: ReadAccess, query: Annotated[LocateRequest, Query()]) -> Response:
    """Say where photos were taken.

    Send one photo or several as multipart fields named `photo`. `Accept` chooses the format: `application/json`,
    `application/geo+json` or `application/geopose+json`. A photo that cannot be used gets an answer without matches; if
    none can be used, the request is refused with 415.
    """
    kind = accepted(request.headers.get("accept", ""))
    form = await read_form(request, server.limits)
    options = _options(request, query, form)
    snapshot = await server.snapshot(options.map)
    if kind != ANSWER_FORMATS[0] and not snapshot.map.frame:
        raise HTTPException(406, f"the map {snapshot.name!r} is not on Earth; ask for application/json")
    if not len(snapshot.map):
        raise HTTPException(409, f"the map {snapshot.name!r} is empty; add photos first")
    area = search_area(options, snapshot.map.frame)
    photos = [photo.data for photo in form.photos]
    described = await server.batcher.describe(snapshot.network, photos, request.state.client)
    _refuse_if_none(form.photos, described)
    answered = await run_in_threadpool(answer, snapshot, options, area, form.photos, described)
    return answered.response(kind, snapshot)


def _options(request: Request, query: LocateRequest, form: Form) -> LocateRequest:
    """The options in the query parameters, overridden by the fields of the form."""
    fields = {key: value for key, value in form.fields.items() if key in LocateRequest.model_fields}
    unknown = {*form.fields, *request.query_params} - LocateRequest.model_fields.keys()
    if unknown:
        raise HTTPException(
            422, f"unknown parameter {sorted(unknown)[0][:40]!r}; known: {', '.join(LocateRequest.model_fields)}"
        )
    try:
        return LocateRequest.model_validate({**query.model_dump(exclude_unset=True), **fields})
    except ValidationError as error:
        raise HTTPException(422, _sentence(error.errors())) from None


def _refuse_if_none(uploads: Sequence[Upload], described: Sequence[Any]) -> None:
    bad = [(u, d) for u, d in zip(uploads, described, strict=True) if isinstance(d, Unusable)]
    if len(bad) == len(uploads):
        upload, why = bad[0]
        if why.reason == "too-large":
            raise HTTPException(413, f"{upload.name}: {why.detail}, more than a photo may have; send a smaller one")
        raise HTTPException(415, f"{upload.name}: {why.detail}; send a photo that can be opened")


async def maps(server: ReadAccess) -> dict[str, Any]:
    """All maps; one that does not answer now is as it was last seen, with a warning."""
    return {"maps": await asyncio.gather(*(_summary(server, name) for name in server.cache.names))}


async def one_map(name: str, server: ReadAccess) -> dict[str, Any]:
    """One map: its photos, model and calibration."""
    return await _summary(server, name)


async def _summary(server: Server, name: str) -> dict[str, Any]:
    try:
        return await run_in_threadpool(lambda snapshot: snapshot.summary, await server.snapshot(name))
    except (TooBusy, Unavailable):
        last = server.cache.last(name)
        known = last.__dict__.get("summary") or {"name": name, "version": last.map.version, "photos": len(last.map)}
        return {**known, "warning": "the map does not answer now; this is its last known state"}


BoxQuery = Annotated[str, Query(description="WEST,SOUTH,EAST,NORTH in degrees (metres if not on Earth)")]


async def photos(
    name: str,
    server: ReadAccess,
    bbox: BoxQuery = "",
    group: str | None = None,
    offset: Annotated[int, Query(ge=0, le=10**12)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """Photos of a map, in a bounding box if one is given, a page at a time."""
    snapshot = await server.snapshot(name)
    box = _box(bbox)

    def look() -> dict[str, Any]:
        ids = snapshot.inside(box, group)
        more = offset + limit if offset + limit < len(ids) else None
        rows = snapshot.photos(ids[offset : offset + limit])
        return {"version": snapshot.map.version, "total": len(ids), "next": more, "photos": rows}

    return await run_in_threadpool(look)


def _box(text: str) -> list[float] | None:
    if not text:
        return None
    try:
        box = [float(part) for part in text.split(",")]
    except ValueError:
        box = []
    if len(box) != 4 or not np.isfinite(box).all() or box[1] > box[3]:
        raise HTTPException(422, "bbox: WEST,SOUTH,EAST,NORTH, four numbers, SOUTH at most NORTH")
    return box


async def gaps(name: str, server: ReadAccess) -> dict[str, Any]:
    """Where the map has photos, and where it lacks them."""
    snapshot = await server.snapshot(name)
    return await run_in_threadpool(lambda: snapshot.gaps)


async def thumbnail(
    name: str,
    image: str,
    server: ReadAccess,
    size: Annotated[int, Query(ge=16, le=1024)] = 320,
    missing: Annotated[str, Query(description="`ok`: 204 instead of 404 where a photo has no picture")] = "",
) -> Response:
    """A photo of the map, small."""
    snapshot = await server.snapshot(name)
    rounded = next(step for step in (64, 160, 320, 640, 1024) if size <= step)
    try:
        picture = await run_in_threadpool(server.cache.thumbnail, snapshot, image, rounded)
    except KeyError:
        raise HTTPException(404, f"the map {name!r} has no photo {image[:80]!r}") from None
    except Reject as reject:
        if missing == "ok":  # a browser would note a 404 as an error on its console
            return Response(status_code=204, headers={"X-Covis-Reason": reject.reason})
        raise HTTPException(404, f"the photo cannot be shown: {reject.reason}") from None
    return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})


async def review(name: str, server: ReadAccess) -> dict[str, Any]:
    """Positions that `covis geotag` suggests for a library, what they rest on, and the decisions made so far."""
    return await run_in_threadpool(_stored_review(server, name).read)


async def review_picture(
    name: str,
    image: str,
    server: ReadAccess,
    missing: Annotated[str, Query()] = "",
) -> Response:
    """A photo of the review, small."""
    stored = _stored_review(server, name)
    try:
        picture = await run_in_threadpool(lambda: server.cache.small(stored.picture(image), 320))
    except KeyError:
        raise HTTPException(404, f"the review of {name!r} has no photo {image[:80]!r}") from None
    except Reject as reject:
        if missing == "ok":
            return Response(status_code=204, headers={"X-Covis-Reason": reject.reason})
        raise HTTPException(404, f"the photo cannot be shown: {reject.reason}") from None
    return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})


def _stored_review(server: Server, name: str) -> StoredReview:
    if name not in server.cache.names:
        raise HTTPException(404, f"there is no map {name[:80]!r}; there are: {', '.join(server.cache.names)}")
    stored = StoredReview(memory_of(server.cache.paths[name]))
    if not stored.file.is_file():
        raise HTTPException(404, f"the map {name!r} has no suggestions to review; run covis geotag")
    return stored


# Changing


async def decide(request: Request, name: str, server: WriteAccess) -> dict[str, Any]:
    """Keep the decisions of a review, for `covis geotag --decisions saved`; needs a key with the role `write`."""
    stored = _stored_review(server, name)
    try:
        record = await request.json()
    except (ValueError, RecursionError):
        raise HTTPException(422, "the body is no JSON") from None
    async with server.writing[name]:
        return {"map": name, "saved": await run_in_threadpool(stored.save, record)}


async def add_photos(request: Request, name: str, server: WriteAccess) -> dict[str, Any]:
    """Add photos to a map: all that can be used, in one change.

    Needs a key with the role `write`. The map keeps name, position and descriptor; the photo itself is not kept. Sending
    the same photo again replaces it; another photo of a name that is taken is refused with 409.
    """
    snapshot = await server.snapshot(name)
    form = await read_form(request, server.limits)
    positions = await run_in_threadpool(read_positions, form, snapshot.map.frame)
    photos = [photo.data for photo in form.photos]
    described = await server.batcher.describe(snapshot.network, photos, request.state.client)
    _refuse_if_none(form.photos, described)
    given = added_images(snapshot.map, form, positions, described)

    def add() -> Any:
        return snapshot.map.add(given.images, prefix=form.fields.get("prefix", ""), descriptors=given.store)

    changed = await _change(server, name, add)
    return {**changed, "added": given.names, "rejected": given.rejected}


async def remove_photo(name: str, image: str, server: WriteAccess) -> dict[str, Any]:
    """Remove a photo from a map; needs a key with the role `write`."""
    snapshot = await server.snapshot(name)
    if image not in snapshot.places:
        raise HTTPException(404, f"the map {name!r} has no photo {image[:80]!r}")
    raw = bytes(snapshot.map.images.names[snapshot.places[image]])
    changed = await _change(server, name, partial(snapshot.map.remove, [raw]))
    return {**changed, "removed": [image]}


async def _change(server: Server, name: str, change: Callable[[], Any]) -> dict[str, Any]:
    """One change of a map at a time; others wait their turn."""
    async with server.writing[name]:
        try:
            after = await run_in_threadpool(change)
        except InUse:
            raise TooBusy(f"another process is changing the map {name!r}", 5) from None
        except Unavailable:
            raise
        except InputError as error:
            raise HTTPException(409, _without_paths(str(error), server.cache)) from None
    return {"map": name, "version": after.version, "photos": len(after)}


_PAGE_FILES = {
    "leaflet/LICENSE": "text/plain",
    **dict.fromkeys((*MAP_STYLES, "service.css", *REVIEW_STYLES), "text/css"),
    **dict.fromkeys((*MAP_SCRIPTS, "server.js", "service.js", *REVIEW_SCRIPTS), "text/javascript"),
}
"""Files of `covis.web` that the page loads from this server → their type."""


def _add_page(app: FastAPI, tiles: Tiles | None) -> None:
    """Adds the pages at `/` and `/review`."""
    page = rendered(
        "service.html",
        title="covis: where was this photo taken?",
        styles=(*MAP_STYLES, "service.css"),
        scripts=(*MAP_SCRIPTS, "server.js", "service.js"),
        tiles=tiles,
    )
    scripts = (*MAP_SCRIPTS, "server.js", "geotag.js")
    review = rendered(
        "geotag.html", frame="served.html", title=TITLE, styles=REVIEW_STYLES, scripts=scripts, tiles=tiles
    )
    app.get("/", include_in_schema=False)(_file(page.encode(), "text/html; charset=utf-8"))
    app.get("/review", include_in_schema=False)(_file(review.encode(), "text/html; charset=utf-8"))
    for name, kind in _PAGE_FILES.items():
        serve = _file(asset_text(name).encode(), f"{kind}; charset=utf-8")
        app.get(f"/assets/{name}", include_in_schema=False)(serve)


def _file(content: bytes, kind: str):  # type: ignore[no-untyped-def]
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    head = {"ETag": tag, "Cache-Control": "no-cache"}

    async def asset(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=head)
        return Response(content, media_type=kind, headers=head)

    return asset
