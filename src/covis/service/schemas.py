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
    elsewhere: float | None = Field(
        None, description="probability that the map does not have the place", examples=[0.04]
    )
    verdict: str = Field("", description="the answer in words", examples=["likely at 55.70470, 13.19100 (89 %)"])
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
    groups: int | None = Field(None, examples=[12])
    model: str = Field("", description="fingerprint of the model", examples=["9f1c0a5e77d2b3c4"])
    dim: int | None = Field(None, examples=[1280])
    index: str = Field("", examples=["exact"])
    on_earth: bool | None = Field(None, description="whether positions have latitude and longitude")
    warning: str = Field("", description="why this is not the newest state")
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
    total: int = Field(description="photos that fit the query", examples=[412])
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
        507: "the disk of the server is full",
    }  # fmt: skip
    after = {"Retry-After": {"description": "seconds to wait", "schema": {"type": "string"}}}
    return {
        status: {"model": Problem, "description": says[status], **({"headers": after} if status in (429, 503) else {})}
        for status in sorted({*statuses, 401, 421, 422, 429})
    }
