"""The answers of the service as OpenAPI describes them (the fields of `covis locate --json`)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str = Field(examples=["the form has no photo; send at least one file in a field named 'photo'"])


class PlaceOut(BaseModel):
    """A pose: degrees where the map is on Earth, metres in its own frame always."""

    model_config = ConfigDict(extra="allow")
    lat: float | None = Field(None, examples=[55.7113])
    lon: float | None = Field(None, examples=[13.2101])
    easting: float
    northing: float
    heading: float | None = Field(None, description="degrees clockwise from true north")


class PositionOut(PlaceOut):
    """Where a photo was taken, fused from the matches at one place."""

    radius_m: float | None = Field(None, description="the true position lies within it at `rate`", examples=[11.8])
    rate: float = Field(examples=[0.9])
    fused: int = Field(description="matches that it was fused from")


class MatchOut(PlaceOut):
    """A photo of the map that looks like the query."""

    image: str = Field(examples=["walk-3/0041.jpg"])
    distance: float = Field(description="of the descriptors")
    overlap: float | None = Field(None, description="estimated share of the view in common")
    probability: float | None = Field(None, description="that the photo was taken here")
    group: str = ""
    thumbnail: str = Field(description="address of a small picture", examples=["/v1/maps/town/thumbnails/0041.jpg"])


class AnswerOut(BaseModel):
    """What the map says of one photo."""

    model_config = ConfigDict(extra="allow")
    photo: str = Field(description="the file name that was sent", examples=["IMG_2041.jpg"])
    confident: bool
    probability: float | None = None
    elsewhere: float | None = Field(None, description="probability that the map does not have the place")
    verdict: str = Field("", description="the answer in words", examples=["likely at 55.70470, 13.19100 (89 %)"])
    position: PositionOut | None = Field(None, description="the best guess, also where it is not confident")
    matches: list[MatchOut]
    note: str = Field("", description="why it is not confident, or has no position")


class LocatedOut(BaseModel):
    """The answers to one request."""

    map: str
    version: int = Field(description="state of the map that answered")
    answers: list[AnswerOut] = Field(description="one for each photo, in the order they were sent")
    walk: dict[str, Any] | None = Field(None, description="with `sequence`: the verdict on all photos together")


class MapOut(BaseModel):
    """A map."""

    name: str = Field(examples=["town"])
    version: int
    photos: int
    groups: int | None = None
    model: str = Field("", description="fingerprint of the model")
    dim: int | None = None
    index: str = ""
    on_earth: bool | None = Field(None, description="whether positions have latitude and longitude")
    warning: str = Field("", description="why this is not the newest state")
    bounds: list[float] | None = Field(None, description="west, south, east, north (metres if not on Earth)")
    calibration: dict[str, Any] | None = None


class MapsOut(BaseModel):
    """All maps of the server."""

    maps: list[MapOut]


class PhotoOut(PlaceOut):
    """A photo of a map."""

    image: str
    group: str = ""


class PhotosOut(BaseModel):
    """A page of photos."""

    version: int
    total: int
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


class StatusOut(BaseModel):
    """Whether the server works."""

    status: str


_WHY = {
    400: "the request cannot be read", 401: "no key, or a wrong one", 403: "the key may not do this",
    404: "no such map or photo", 406: "no such format, or the map is not on Earth", 408: "the body came too slowly",
    409: "the map is empty, or has another photo of that name", 413: "the request or a photo is too large",
    415: "not an image, or not multipart/form-data", 421: "addressed to another name", 422: "a parameter is wrong",
    503: "the server is busy; Retry-After says for how many seconds", 507: "the disk of the server is full",
}  # fmt: skip
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": why} for status, why in _WHY.items()
}
"""What any request may be refused with."""
