"""Requests to the service, its answers (the fields of `covis locate --json`), and its metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from fastapi import Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covis.maps.answers import Answer
from covis.maps.calibration import RATE
from covis.maps.locating import LocateOptions
from covis.maps.outputs import to_geojson, to_geopose
from covis.maps.outputs.geopose import MEDIA_TYPE as GEOPOSE
from covis.maps.walks import locate_walk
from covis.search import Area, area
from covis.service.shelf import Shown
from covis.service.uploads import Unusable, Upload

if TYPE_CHECKING:
    from covis.service.limits import Budget
    from covis.service.shelf import Shelf
    from covis.service.uploads import Batcher


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str = Field(examples=["the form has no photo; send at least one file in a field named 'photo'"])


class PlaceOut(BaseModel):
    """A pose: degrees where the map is on Earth, metres in its own frame always."""

    model_config = ConfigDict(extra="allow")
    lat: float | None = Field(None, examples=[55.7113])
    lon: float | None = Field(None, examples=[13.2101])
    easting: float = Field(examples=[12.5])
    northing: float = Field(examples=[-3.25])
    heading: float | None = Field(None, description="degrees clockwise from true north", examples=[87.5])


class PositionOut(PlaceOut):
    """Where a photo was taken, fused from the matches at one place."""

    radius_m: float | None = Field(None, description="the true position lies within it at `rate`", examples=[11.8])
    rate: float = Field(examples=[0.9])
    fused: int = Field(description="matches that it was fused from", examples=[4])


class MatchOut(PlaceOut):
    """A photo of the map that looks like the query."""

    image: str = Field(examples=["walk-3/0041.jpg"])
    distance: float = Field(description="of the descriptors", examples=[0.4123])
    overlap: float | None = Field(None, description="estimated share of the view in common", examples=[0.71])
    probability: float | None = Field(None, description="that the photo was taken here", examples=[0.93])
    group: str = Field("", examples=["walk-3"])
    thumbnail: str = Field(description="address of a small picture", examples=["/v1/maps/town/thumbnails/0041.jpg"])


class AnswerOut(BaseModel):
    """What the map says of one photo."""

    model_config = ConfigDict(extra="allow")
    photo: str = Field(description="the file name that was sent", examples=["IMG_2041.jpg"])
    confident: bool
    probability: float | None = Field(None, examples=[0.93])
    position: PositionOut | None = Field(None, description="the best guess, also where it is not confident")
    matches: list[MatchOut]
    note: str = Field("", description="why it is not confident, or has no position")


class LocatedOut(BaseModel):
    """The answers to one request."""

    map: str = Field(examples=["town"])
    version: int = Field(description="state of the map that answered", examples=[3])
    answers: list[AnswerOut] = Field(description="one for each photo, in the order they were sent")
    walk: dict[str, Any] | None = Field(None, description="with `sequence`: the verdict on all photos together")


class MapOut(BaseModel):
    """A map."""

    name: str = Field(examples=["town"])
    version: int = Field(examples=[3])
    photos: int = Field(examples=[412])
    groups: int = Field(examples=[12])
    model: str = Field(description="fingerprint of the model", examples=["9f1c0a5e77d2b3c4"])
    dim: int = Field(examples=[1280])
    index: str = Field(examples=["exact"])
    on_earth: bool = Field(description="whether positions have latitude and longitude")
    bounds: list[float] | None = Field(None, description="west, south, east, north (metres if not on Earth)")
    calibration: dict[str, Any] | None = None


class MapsOut(BaseModel):
    """All maps of the server."""

    maps: list[MapOut]


class PhotoOut(PlaceOut):
    """A photo of a map."""

    image: str = Field(examples=["walk-3/0041.jpg"])
    group: str = ""


class PhotosOut(BaseModel):
    """A page of photos."""

    version: int
    total: int = Field(description="photos that fit the question", examples=[412])
    next: int | None = Field(None, description="`offset` of the next page; null on the last")
    photos: list[PhotoOut]


class ChangedOut(BaseModel):
    """A map after a change."""

    map: str
    version: int
    photos: int = Field(description="in the map now")
    added: list[str] = []
    removed: list[str] = []
    rejected: dict[str, str] = Field({}, description="photo → why it was left out")


class CoverageOut(BaseModel):
    """Where a map has photos and where it lacks them."""

    model_config = ConfigDict(extra="allow")
    cell_m: float | None
    cells: list[dict[str, Any]]
    photograph_next: list[dict[str, Any]]


class StatusOut(BaseModel):
    """Whether the server works."""

    status: str = Field(examples=["ok"])


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses for OpenAPI."""
    says = {
        400: "the request cannot be read", 401: "no key, or a wrong one", 403: "the key may not do this",
        404: "no such map or photo", 406: "no such format, or the map is not on Earth", 408: "the body came too slowly",
        409: "the map is empty, or has another photo of that name", 413: "the request or a photo is too large",
        415: "not an image, or not multipart/form-data", 421: "addressed to another name",
        422: "a parameter is wrong", 429: "too many requests of this client", 503: "the server is busy",
    }  # fmt: skip
    after = {"Retry-After": {"description": "seconds to wait", "schema": {"type": "string"}}}
    return {
        status: {"model": Problem, "description": says[status], **({"headers": after} if status in (429, 503) else {})}
        for status in sorted({*statuses, 401, 421, 422, 429})
    }


# What is asked, and the formats of an answer

GEOJSON = "application/geo+json"
ANSWER_FORMATS = ("application/json", GEOJSON, GEOPOSE)
MOST_MATCHES = 1000


class Question(BaseModel):
    """What is asked of photos; as query parameters or as fields of the form."""

    map: str | None = Field(None, description="name of the map; may be left out where only one is served")
    k: int = Field(
        5,
        ge=1,
        le=2**31 - 1,
        description=f"matches per photo; as many as the map has are given, {MOST_MATCHES} at most",
    )
    near: str = Field("", description="LAT,LON,RADIUS_M: only places this near", examples=["55.711,13.21,500"])
    inside: str = Field(
        "", description="only places in a polygon: corners 'LAT,LON LAT,LON LAT,LON', or GeoJSON as text"
    )
    sequence: bool = Field(False, description="the photos are one walk, in order")
    precision: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of confident answers that shall be right; the highest promised one if left out",
    )
    rate: float = Field(RATE, gt=0, lt=1, description="share of true positions that shall lie within the radius")


def asked_area(question: Question, frame: str) -> Area | None:
    """Where the photos may be; None: anywhere."""
    if question.near and question.inside:
        raise HTTPException(422, "near and inside are both given; give one area")
    if question.near:
        return area.circle(question.near, frame, "near")
    return area.polygon(question.inside, frame, "inside") if question.inside else None


@dataclass(frozen=True, eq=False)
class Answered:
    """The answers to one request."""

    answers: list[Answer]
    walk: dict[str, Any] | None

    def response(self, kind: str, shown: Shown) -> Response:
        """In the format that was asked for."""
        if kind == GEOJSON:
            return JSONResponse(to_geojson(self.answers), media_type=GEOJSON)
        if kind == GEOPOSE:
            return JSONResponse(to_geopose(self.answers), media_type=GEOPOSE)
        rows = [_answer_row(a, shown.name) for a in self.answers]
        return JSONResponse({"map": shown.name, "version": shown.map.version, "answers": rows, "walk": self.walk})


def _answer_row(given: Answer, name: str) -> dict[str, Any]:
    """An answer without paths of this machine, its matches with addresses of their thumbnails."""
    row = given.to_dict()
    row["matches"] = [
        {key: value for key, value in match.items() if key != "file"}
        | {"thumbnail": f"/v1/maps/{quote(name)}/thumbnails/{quote(match['image'])}"}
        for match in row["matches"]
    ]
    return row


def answer(
    shown: Shown, question: Question, area: Area | None, uploads: Sequence[Upload], described: Sequence[Any]
) -> Answered:
    """Searches and judges; `described` has a descriptor or the reason why there is none for each photo."""
    bad = {i: d.detail for i, d in enumerate(described) if isinstance(d, Unusable)}
    rows = [d for d in described if not isinstance(d, Unusable)]
    vectors = np.stack(rows) if rows else np.zeros((0, shown.map.dim), np.float32)
    names = [Path(upload.name) for upload in uploads]
    k = min(question.k, MOST_MATCHES)
    judge = shown.map.judge_for(vectors, k, LocateOptions(area, question.precision, question.rate))
    if not question.sequence:
        return Answered(judge.answers(names, vectors, bad, k), None)
    walk = locate_walk(judge, names, vectors, bad, k)
    verdict = {"confident": walk.confident, "note": walk.note, "agreement": round(walk.agreement, 4)}
    return Answered(list(walk.answers), verdict)


def accepted(header: str) -> str:
    """The best of our formats that `Accept` takes: by weight, then by how exactly it is named; raises 406."""
    ranges: dict[str, float] = {}
    for part in header.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = next((v for k, _, v in (p.partition("=") for p in parameters) if k.strip() == "q"), "1")
        if kind:
            try:
                ranges[kind] = float(weight)
            except ValueError:
                ranges[kind] = 0.0
    given, wishes = list(ranges), []
    for at, known in enumerate(ANSWER_FORMATS):
        named = next((r for r in (known, "application/*", "*/*") if r in ranges), None)
        if ranges and named is not None and ranges[named] > 0:
            wishes.append((-ranges[named], "*" in named, given.index(named), at))
    if ranges and not wishes:
        raise HTTPException(406, f"Accept one of: {', '.join(ANSWER_FORMATS)}")
    return ANSWER_FORMATS[min(wishes)[-1]] if wishes else ANSWER_FORMATS[0]


# What Prometheus reads of the service


_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter("covis_requests", "Requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "covis_request_seconds", "Time of a request", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.photos = Counter("covis_photos", "Photos by outcome", ["outcome"], registry=self.registry)
        self.batch = Histogram(
            "covis_batch_photos", "Photos through the network at once", buckets=(1, 2, 4, 8), registry=self.registry
        )

    def count(self, described: Sequence[Any]) -> None:
        """Counts photos that were described, or why they were not."""
        for one in described:
            self.photos.labels(one.reason if isinstance(one, Unusable) else "described").inc()

    def watch(self, shelf: Shelf, batcher: Batcher, bodies: Budget) -> None:
        """Shows the state of maps and queues at each reading."""
        self.registry.register(_State(shelf, batcher, bodies))

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Counts and times requests by route, never by the address that was asked for."""

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            start, status = time.perf_counter(), 500

            async def answer(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, answer)
            finally:
                route = getattr(scope.get("route"), "path", "other")
                self.requests.labels(route, str(status)).inc()
                self.seconds.labels(route).observe(time.perf_counter() - start)

        return measured


class _State(Collector):
    """Gauges that are read from the server itself."""

    def __init__(self, shelf: Shelf, batcher: Batcher, bodies: Budget) -> None:
        self.shelf, self.batcher, self.bodies = shelf, batcher, bodies

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges, at each reading by Prometheus."""
        yield _gauge("covis_queue_photos", "Photos that wait or are being answered", [([], self.batcher.slots.used)])
        yield _gauge("covis_upload_bytes", "Bytes of uploads in memory", [([], self.bodies.used)])
        shown = [self.shelf.now(name) for name in self.shelf.names]
        yield _gauge("covis_map_photos", "Photos of a map", [([s.name], len(s.map)) for s in shown], ["map"])
        yield _gauge("covis_map_version", "State of a map", [([s.name], s.map.version) for s in shown], ["map"])

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing in advance."""
        return iter(())


def _gauge(
    name: str, says: str, values: list[tuple[list[str], float]], labels: Sequence[str] = ()
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, says, labels=list(labels))
    for label, value in values:
        family.add_metric(label, value)
    return family
