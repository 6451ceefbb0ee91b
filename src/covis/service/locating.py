"""Options of a request to locate photos, and its answers in the format that the client accepts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from covis.maps.answers import Answer
from covis.maps.calibration import RATE
from covis.maps.locating import LocateOptions
from covis.maps.outputs import GEOJSON, GEOPOSE, to_geojson, to_geopose
from covis.maps.settings import CALIBRATION
from covis.maps.walks import locate_walk
from covis.search import Area, area
from covis.service.batching import Unusable
from covis.service.map_cache import MapSnapshot
from covis.service.uploads import Upload

ANSWER_FORMATS = ("application/json", GEOJSON, GEOPOSE)
MOST_MATCHES = 1000


class LocateRequest(BaseModel):
    """Options of a request to locate photos, as query parameters or as fields of the form."""

    model_config = ConfigDict(extra="forbid")
    map: str | None = Field(None, description="name of the map; may be left out where only one is served")
    k: int = Field(5, ge=1, le=2**31 - 1, description=f"matches per photo, at most {MOST_MATCHES}")
    near: str = Field("", description="LAT,LON,RADIUS_M: only places this near", examples=["55.711,13.21,500"])
    inside: str = Field("", description="only places in a polygon: 'LAT,LON LAT,LON LAT,LON', or GeoJSON as text")
    sequence: bool = Field(False, description="the photos are one walk, in order")
    precision: float | None = Field(
        None, gt=0, lt=1, description="share of confident answers that shall be right [default: the highest promised]"
    )
    prior: float = Field(CALIBRATION.prior, gt=0, lt=1, description="share of photos that may be from elsewhere")
    rate: float = Field(RATE, gt=0, lt=1, description="share of true positions within the radius")

    def search_area(self, frame: str) -> Area | None:
        """Where the photos may be; None: anywhere."""
        if self.near and self.inside:
            raise HTTPException(422, "near and inside are both given; give one area")
        if self.near:
            return area.circle(self.near, frame, "near")
        return area.polygon(self.inside, frame, "inside") if self.inside else None


def locate(
    snapshot: MapSnapshot,
    options: LocateRequest,
    uploads: Sequence[Upload],
    described: Sequence[Any],
    kind: str,
) -> Response:
    """Searches and judges; `described` has a descriptor or the reason why there is none for each photo."""
    bad = {i: d.detail for i, d in enumerate(described) if isinstance(d, Unusable)}
    rows = [d for d in described if not isinstance(d, Unusable)]
    vectors = np.stack(rows) if rows else np.zeros((0, snapshot.map.dim), np.float32)
    names = [Path(upload.name) for upload in uploads]
    k = min(options.k, MOST_MATCHES)
    where = options.search_area(snapshot.map.frame)
    chosen = LocateOptions(where, options.precision, options.rate, prior=options.prior)
    judge = snapshot.map.judge_for(vectors, k, chosen)
    walk = locate_walk(judge, names, vectors, bad, k) if options.sequence else None
    answers = judge.answers(names, vectors, bad, k) if walk is None else list(walk.answers)
    if kind == GEOJSON:
        return JSONResponse(to_geojson(answers), media_type=GEOJSON)
    if kind == GEOPOSE:
        return JSONResponse(to_geopose(answers), media_type=GEOPOSE)
    told = walk and {"confident": walk.confident, "note": walk.note, "agreement": round(walk.agreement, 4)}
    shown = [_answer_row(answer, snapshot.name) for answer in answers]
    return JSONResponse({"map": snapshot.name, "version": snapshot.map.version, "answers": shown, "walk": told})


def _answer_row(given: Answer, name: str) -> dict[str, Any]:
    """An answer without paths of this machine, its matches with addresses of their thumbnails."""
    row = given.to_dict()
    for match in row["matches"]:
        del match["file"]
        match["thumbnail"] = f"/v1/maps/{quote(name)}/thumbnails/{quote(match['image'])}"
    return row


def accepted(header: str) -> str:
    """The first of our formats that `Accept` takes; raises 406."""
    ranges = [part.partition(";") for part in header.replace(" ", "").lower().split(",")]
    kinds = [kind for kind, _, weight in ranges if kind and weight != "q=0"]
    for kind in kinds:
        if kind in ANSWER_FORMATS:
            return kind
    if not kinds or {"*/*", "application/*"} & set(kinds):
        return ANSWER_FORMATS[0]
    raise HTTPException(406, f"Accept one of: {', '.join(ANSWER_FORMATS)}")
