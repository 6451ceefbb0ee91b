"""Options of a request to locate photos, and its result in the format that the client accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from covis.maps.answers import Answer
from covis.maps.calibration import RATE
from covis.maps.locating import LocateOptions
from covis.maps.outputs import to_geojson, to_geopose
from covis.maps.outputs.geopose import MEDIA_TYPE as GEOPOSE
from covis.maps.settings import CALIBRATION
from covis.maps.walks import locate_walk
from covis.search import Area, area
from covis.service.batching import Unusable
from covis.service.forms import Upload
from covis.service.map_cache import MapSnapshot

GEOJSON = "application/geo+json"
ANSWER_FORMATS = ("application/json", GEOJSON, GEOPOSE)
MOST_MATCHES = 1000


class LocateRequest(BaseModel):
    """Options of a request to locate photos, as query parameters or as fields of the form."""

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
    prior: float = Field(
        CALIBRATION.prior, gt=0, lt=1, description="share of photos that are thought to be from elsewhere"
    )
    rate: float = Field(RATE, gt=0, lt=1, description="share of true positions that shall lie within the radius")


def search_area(options: LocateRequest, frame: str) -> Area | None:
    """Where the photos may be; None: anywhere."""
    if options.near and options.inside:
        raise HTTPException(422, "near and inside are both given; give one area")
    if options.near:
        return area.circle(options.near, frame, "near")
    return area.polygon(options.inside, frame, "inside") if options.inside else None


@dataclass(frozen=True, eq=False)
class LocateResult:
    """The answers to one request."""

    answers: list[Answer]
    walk: dict[str, Any] | None

    def response(self, kind: str, snapshot: MapSnapshot) -> Response:
        """In the format that was asked for."""
        if kind == GEOJSON:
            return JSONResponse(to_geojson(self.answers), media_type=GEOJSON)
        if kind == GEOPOSE:
            return JSONResponse(to_geopose(self.answers), media_type=GEOPOSE)
        rows = [_answer_row(a, snapshot.name) for a in self.answers]
        return JSONResponse({"map": snapshot.name, "version": snapshot.map.version, "answers": rows, "walk": self.walk})


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
    snapshot: MapSnapshot,
    options: LocateRequest,
    area: Area | None,
    uploads: Sequence[Upload],
    described: Sequence[Any],
) -> LocateResult:
    """Searches and judges; `described` has a descriptor or the reason why there is none for each photo."""
    bad = {i: d.detail for i, d in enumerate(described) if isinstance(d, Unusable)}
    rows = [d for d in described if not isinstance(d, Unusable)]
    vectors = np.stack(rows) if rows else np.zeros((0, snapshot.map.dim), np.float32)
    names = [Path(upload.name) for upload in uploads]
    k = min(options.k, MOST_MATCHES)
    judge = snapshot.map.judge_for(
        vectors, k, LocateOptions(area, options.precision, options.rate, prior=options.prior)
    )
    if not options.sequence:
        return LocateResult(judge.answers(names, vectors, bad, k), None)
    walk = locate_walk(judge, names, vectors, bad, k)
    verdict = {"confident": walk.confident, "note": walk.note, "agreement": round(walk.agreement, 4)}
    return LocateResult(list(walk.answers), verdict)


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
