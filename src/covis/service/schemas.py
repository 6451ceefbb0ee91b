"""What the service is asked and answers, as its OpenAPI tells; answers carry the same fields as `covis locate --json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from covis.maps.calibration import RATE
from covis.maps.exports import MEDIA_TYPE as GEOPOSE
from covis.maps.exports import to_geojson, to_geopose
from covis.maps.locating import Answer, locate_walk
from covis.search import Area, area
from covis.service.shelf import Shown
from covis.service.uploads import Unusable, Upload


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
FORMATS = ("application/json", GEOJSON, GEOPOSE)
MOST_MATCHES = 1000


class Question(BaseModel):
    """What is asked of photos; as query parameters or as fields of the form."""

    map: str | None = Field(None, description="name of the map; may be left out where only one is served")
    k: int = Field(5, ge=1, le=MOST_MATCHES, description="matches per photo")
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


def read_area(question: Question, frame: str) -> Area | None:
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
    precision, rate = question.precision, question.rate
    judge = shown.map.judge_for(vectors, question.k, area=area, precision=precision, rate=rate)
    if not question.sequence:
        return Answered(judge.answers(names, vectors, bad, question.k), None)
    walk = locate_walk(judge, names, vectors, bad, question.k)
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
    for at, known in enumerate(FORMATS):
        named = next((r for r in (known, "application/*", "*/*") if r in ranges), None)
        if ranges and named is not None and ranges[named] > 0:
            wishes.append((-ranges[named], "*" in named, given.index(named), at))
    if ranges and not wishes:
        raise HTTPException(406, f"Accept one of: {', '.join(FORMATS)}")
    return FORMATS[min(wishes)[-1]] if wishes else FORMATS[0]
