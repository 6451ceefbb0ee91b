"""The API: photos located, maps listed and changed, reviews of photo libraries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from covis.core.artifacts import InUse
from covis.core.errors import InputError
from covis.geotagging import memory_of
from covis.geotagging.review import StoredReview
from covis.maps.map import Map
from covis.maps.outputs import GEOJSON, GEOPOSE
from covis.maps.storage.engine import Unavailable
from covis.reading.decoding import Reject
from covis.service.additions import addition, read_positions
from covis.service.batching import Unusable
from covis.service.limits import TooBusy
from covis.service.locating import ANSWER_FORMATS, LocateRequest, accepted
from covis.service.locating import locate as locate_in
from covis.service.map_cache import MapSnapshot
from covis.service.schemas import ChangedOut, LocatedOut, MapOut, MapsOut, PhotosOut, StatusOut
from covis.service.server import Server
from covis.service.uploads import FIELD, Form, Upload, read_form

router = APIRouter()


def _server(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


def _reader(request: Request) -> Server:
    _server(request).allow(request, "read")
    return _server(request)


def _writer(request: Request) -> Server:
    _server(request).allow(request, "write")
    return _server(request)


ReadAccess = Annotated[Server, Depends(_reader)]
WriteAccess = Annotated[Server, Depends(_writer)]


async def _form(request: Request) -> AsyncIterator[Form]:
    """The body, which counts as in memory until the request is answered."""
    server = _server(request)
    with server.bodies.share() as take:
        yield await read_form(request, server.limits, take)


Photos = Annotated[Form, Depends(_form)]
Missing = Annotated[str, Query(description="`ok`: 204 instead of 404 where a photo has no picture")]
_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {}}, "description": "a small picture"},
    204: {"description": "no picture, and `missing=ok` was said; the header X-Covis-Reason says why"},
}
_POSITIONS = (
    'JSON list, one object per photo: {"lat", "lon"} or {"easting", "northing"}, optional "heading" and "group"; '
    "left out, positions are read from EXIF"
)


def _body(**fields: Any) -> dict[str, Any]:
    """The body of a request with photos, for OpenAPI."""
    binary = {"type": "string", "format": "binary"}
    photo = {"type": "array", "minItems": 1, "items": binary, "description": "one photo or several: JPEG, PNG, …"}
    form = {"type": "object", "required": [FIELD], "properties": {FIELD: photo, **fields}}
    content = {"multipart/form-data": {"schema": form}, "image/*": {"schema": binary}}
    return {"requestBody": {"required": True, "content": content}}


_OPTIONS = {
    name: {key: value for key, value in schema.items() if key in ("type", "description", "anyOf", "minimum", "maximum")}
    for name, schema in LocateRequest.model_json_schema()["properties"].items()
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


@router.get("/healthz", response_model=StatusOut, tags=["server"])
async def healthz() -> dict[str, str]:
    """The process runs."""
    return {"status": "ok"}


@router.get("/readyz", response_model=StatusOut, tags=["server"])
async def readyz(request: Request) -> dict[str, str]:
    """At least one map can be asked: an engine that is away stops only its own."""
    server = _server(request)
    asked = await asyncio.gather(*map(server.snapshot, server.cache.names), return_exceptions=True)
    if all(isinstance(one, BaseException) for one in asked):
        raise TooBusy("no map can be read now", 5)
    if server.batcher.slots.used >= server.batcher.slots.most:
        raise TooBusy("the queue is full")
    return {"status": "ready"}


@router.post(
    "/v1/locate", response_model=LocatedOut, responses=_LOCATED, tags=["locate"], openapi_extra=_body(**_OPTIONS)
)
async def locate(
    request: Request, server: ReadAccess, query: Annotated[LocateRequest, Query()], form: Photos
) -> Response:
    """Say where photos were taken.

    Send one photo or several as multipart fields named `photo`, or one as the body. `Accept` chooses the format:
    `application/json`, `application/geo+json` or `application/geopose+json`. A photo that cannot be used gets an answer
    without matches; if none can be used, the request is refused with 415.
    """
    kind = accepted(request.headers.get("accept", ""))
    options = LocateRequest.model_validate({**query.model_dump(exclude_unset=True), **form.fields})
    snapshot = await server.snapshot(options.map)
    if kind != ANSWER_FORMATS[0] and not snapshot.map.frame:
        raise HTTPException(406, f"the map {snapshot.name!r} is not on Earth; ask for application/json")
    if not len(snapshot.map):
        raise HTTPException(409, f"the map {snapshot.name!r} is empty; add photos first")
    described = await _described(request, server, snapshot, form.photos)
    return await run_in_threadpool(locate_in, snapshot, options, form.photos, described, kind)


async def _described(
    request: Request, server: Server, snapshot: MapSnapshot, photos: Sequence[Upload]
) -> Sequence[Any]:
    """A descriptor of each photo, or why it has none; raises 413 or 415 if no photo can be used."""
    client = request.state.client
    described = await server.batcher.describe(snapshot.network, [photo.data for photo in photos], client)
    why = described[0]
    if isinstance(why, Unusable) and all(isinstance(one, Unusable) for one in described):
        if why.reason == "too-large":
            raise HTTPException(413, f"{photos[0].name}: {why.detail}, more than a photo may have; send a smaller one")
        raise HTTPException(415, f"{photos[0].name}: {why.detail}; send a photo that can be opened")
    return described


@router.get("/v1/maps", response_model=MapsOut, tags=["maps"])
async def maps(server: ReadAccess) -> dict[str, Any]:
    """All maps; one that does not answer now is as it was last seen, with a warning."""
    return {"maps": await asyncio.gather(*(one_map(name, server) for name in server.cache.names))}


@router.get("/v1/maps/{name}", response_model=MapOut, tags=["maps"])
async def one_map(name: str, server: ReadAccess) -> dict[str, Any]:
    """One map: its photos, model and calibration."""
    try:
        return await run_in_threadpool(lambda snapshot: snapshot.summary, await server.snapshot(name))
    except (TooBusy, Unavailable):
        last = server.cache.last(name)
        known = last.__dict__.get("summary") or {"name": name, "version": last.map.version, "photos": len(last.map)}
        return {**known, "warning": "the map does not answer now; this is its last known state"}


@router.get("/v1/maps/{name}/photos", response_model=PhotosOut, tags=["maps"])
async def photos(
    name: str,
    server: ReadAccess,
    offset: Annotated[int, Query(ge=0, le=10**12)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """Photos of a map, a page at a time."""
    snapshot = await server.snapshot(name)
    total = len(snapshot.map)
    rows = await run_in_threadpool(snapshot.photos, np.arange(offset, min(offset + limit, total)))
    more = offset + limit if offset + limit < total else None
    return {"version": snapshot.map.version, "total": total, "next": more, "photos": rows}


@router.get("/v1/maps/{name}/thumbnails/{image:path}", response_class=Response, responses=_PICTURE, tags=["maps"])
async def thumbnail(
    name: str, image: str, server: ReadAccess, size: Annotated[int, Query(ge=16, le=1024)] = 320, missing: Missing = ""
) -> Response:
    """A photo of the map, small."""
    snapshot = await server.snapshot(name)
    rounded = next(step for step in (64, 160, 320, 640, 1024) if size <= step)
    return await _picture(partial(server.cache.thumbnail, snapshot, image, rounded), image, missing)


async def _picture(make: Callable[[], bytes], image: str, missing: str) -> Response:
    try:
        picture = await run_in_threadpool(make)
    except KeyError:
        raise HTTPException(404, f"there is no photo {image[:80]!r}") from None
    except Reject as reject:
        if missing == "ok":  # a browser would note a 404 as an error on its console
            return Response(status_code=204, headers={"X-Covis-Reason": reject.reason})
        raise HTTPException(404, f"the photo cannot be shown: {reject.reason}") from None
    return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})


@router.get("/v1/maps/{name}/review", tags=["review"])
async def review(name: str, server: ReadAccess) -> dict[str, Any]:
    """Positions that `covis geotag` suggests for a library, what they rest on, and the decisions made so far."""
    return await run_in_threadpool(_stored_review(server, name).read)


@router.get(
    "/v1/maps/{name}/review/pictures/{image:path}", response_class=Response, responses=_PICTURE, tags=["review"]
)
async def review_picture(name: str, image: str, server: ReadAccess, missing: Missing = "") -> Response:
    """A photo of the review, small."""
    stored = _stored_review(server, name)
    return await _picture(lambda: server.cache.small(stored.picture(image), 320), image, missing)


def _stored_review(server: Server, name: str) -> StoredReview:
    stored = StoredReview(memory_of(server.cache.paths[server.known(name)]))
    if not stored.file.is_file():
        raise HTTPException(404, f"the map {name!r} has no suggestions to review; run covis geotag")
    return stored


@router.put("/v1/maps/{name}/review/decisions", tags=["review"])
async def decide(request: Request, name: str, server: WriteAccess) -> dict[str, Any]:
    """Keep the decisions of a review, for `covis geotag --decisions saved`; needs a key with the role `write`."""
    stored = _stored_review(server, name)
    try:
        record = await request.json()
    except (ValueError, RecursionError):
        raise HTTPException(422, "the body is no JSON") from None
    async with server.writing[name]:
        return {"map": name, "saved": await run_in_threadpool(stored.save, record)}


@router.post(
    "/v1/maps/{name}/photos",
    response_model=ChangedOut,
    status_code=201,
    tags=["maps"],
    openapi_extra=_body(positions={"type": "string", "description": _POSITIONS}, prefix={"type": "string"}),
)
async def add_photos(request: Request, name: str, server: WriteAccess, form: Photos) -> dict[str, Any]:
    """Add photos to a map: all that can be used, in one change.

    Needs a key with the role `write`. The map keeps name, position and descriptor; the photo itself is not kept. Sending
    the same photo again replaces it; another photo of a name that is taken is refused with 409.
    """
    snapshot = await server.snapshot(name)
    positions = await run_in_threadpool(read_positions, form, snapshot.map.frame)
    described = await _described(request, server, snapshot, form.photos)
    given = addition(snapshot.map, form, positions, described)
    changed = await _change(server, name, partial(given.add_to, snapshot.map))
    names = [given.prefix + given.images.name(i) for i in range(len(given.images))]
    return {**changed, "added": names, "rejected": given.rejected}


@router.delete("/v1/maps/{name}/photos/{image:path}", response_model=ChangedOut, tags=["maps"])
async def remove_photo(name: str, image: str, server: WriteAccess) -> dict[str, Any]:
    """Remove a photo from a map; needs a key with the role `write`."""
    snapshot = await server.snapshot(name)
    if image not in snapshot.places:
        raise HTTPException(404, f"the map {name!r} has no photo {image[:80]!r}")
    raw = bytes(snapshot.map.images.names[snapshot.places[image]])
    changed = await _change(server, name, partial(snapshot.map.remove, [raw]))
    return {**changed, "removed": [image]}


async def _change(server: Server, name: str, change: Callable[[], Map]) -> dict[str, Any]:
    """One change of a map at a time; others wait their turn."""
    async with server.writing[name]:
        try:
            after = await run_in_threadpool(change)
        except InUse:
            raise TooBusy(f"another process is changing the map {name!r}", 5) from None
        except Unavailable:
            raise
        except InputError as error:
            raise HTTPException(409, server.without_paths(error)) from None
    return {"map": name, "version": after.version, "photos": len(after)}
