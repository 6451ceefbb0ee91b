"""Camera models and intrinsics, one by one and as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError, unknown_name
from covis.images import ImageSet

MODELS: dict[str, tuple[int, str]] = {
    "SIMPLE_PINHOLE": (0, "f cx cy"),
    "PINHOLE": (1, "fx fy cx cy"),
    "SIMPLE_RADIAL": (2, "f cx cy k"),
    "RADIAL": (3, "f cx cy k1 k2"),
    "OPENCV": (4, "fx fy cx cy k1 k2 p1 p2"),
    "OPENCV_FISHEYE": (5, "fx fy cx cy k1 k2 k3 k4"),
    "FULL_OPENCV": (6, "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6"),
    "FOV": (7, "fx fy cx cy omega"),
    "SIMPLE_RADIAL_FISHEYE": (8, "f cx cy k"),
    "RADIAL_FISHEYE": (9, "f cx cy k1 k2"),
    "THIN_PRISM_FISHEYE": (10, "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1"),
    "RAD_TAN_THIN_PRISM_FISHEYE": (11, "fx fy cx cy k0 k1 k2 k3 k4 k5 p0 p1 s0 s1 s2 s3"),
    "SIMPLE_DIVISION": (12, "f cx cy k"),
    "DIVISION": (13, "fx fy cx cy k"),
    "SIMPLE_FISHEYE": (14, "f cx cy"),
    "FISHEYE": (15, "fx fy cx cy"),
    "EUCM": (16, "fx fy cx cy alpha beta"),
    "EQUIRECTANGULAR": (17, "w h"),
}
"""Name → COLMAP's number and its parameters in order."""
MODEL_OF_NUMBER = {number: name for name, (number, _) in MODELS.items()}
LENS = "lens"
"""Column of an image set with the whole camera as text, distortion too; empty where it is unknown."""


class Camera(NamedTuple):
    """One calibrated camera."""

    model: str
    width: int
    height: int
    params: tuple[float, ...]

    @property
    def pinhole(self) -> tuple[float, ...]:
        """fx, fy, cx, cy, width, height; NaN where the model has no focal length."""
        named = dict(zip(MODELS[self.model][1].split(), self.params, strict=True))
        focal = named.get("f", np.nan)
        centre = named.get("cx", np.nan), named.get("cy", np.nan)
        return (named.get("fx", focal), named.get("fy", focal), *centre, float(self.width), float(self.height))

    def __str__(self) -> str:
        """`MODEL width height parameters…`, as hloc and COLMAP have it."""
        return " ".join([self.model, str(self.width), str(self.height), *(repr(float(p)) for p in self.params)])


def camera(model: str, width: Any, height: Any, params: Sequence[Any], where: str) -> Camera:
    """A checked camera; `where` begins the error."""
    if model not in MODELS:
        raise InputError(f"{where}: {unknown_name('camera model', model, MODELS)}")
    try:
        made = Camera(model, int(float(width)), int(float(height)), tuple(float(p) for p in params))
    except ValueError as error:
        raise InputError(f"{where}: camera {model}: {error}; expected numbers") from None
    expected = MODELS[model][1]
    if len(made.params) != len(expected.split()):
        raise InputError(f"{where}: camera {model} has {len(made.params)} parameters; expected {expected}")
    return made


def parse_camera(text: str, where: str) -> Camera | None:
    """The camera of a text, None for an empty one; `where` begins the error."""
    cells = text.split()
    if not cells:
        return None
    if len(cells) < 4:
        raise InputError(f"{where}: camera {text!r}; expected MODEL width height parameters")
    return camera(cells[0], cells[1], cells[2], cells[3:], where)


class Calibration(NamedTuple):
    """The cameras of N images as arrays."""

    intrinsics: Floats
    """(N, 6)."""
    columns: dict[str, NDArray[Any]]


def calibration(cameras: Sequence[Camera | None]) -> Calibration:
    """Intrinsics and columns of N images; None is an image of unknown camera."""
    unknown = (np.nan,) * 6
    intrinsics = np.array([unknown if one is None else one.pinhole for one in cameras]).reshape(-1, 6)
    return Calibration(intrinsics, {LENS: np.array(["" if one is None else str(one) for one in cameras], dtype=str)})


def with_cameras(images: ImageSet, texts: Sequence[str], where: str) -> ImageSet:
    """Images with these cameras (N,), each a text or empty; as they are if all are. `where` begins the error."""
    known = {text: parse_camera(text, where) for text in set(texts)}
    if not any(known.values()):
        return images
    intrinsics, columns = calibration([known[text] for text in texts])
    return replace(images, intrinsics=intrinsics, columns={**images.columns, **columns})


def camera_texts(images: ImageSet) -> list[str]:
    """(N,) the camera of each image as text, with its distortion where that is known; empty where there is none."""
    if images.intrinsics is None:
        return [""] * len(images)
    lenses = images.columns.get(LENS, np.zeros(len(images), "U1")).tolist()
    return [lens or _pinhole_text(row) for lens, row in zip(lenses, images.intrinsics.tolist(), strict=True)]


def _pinhole_text(row: Sequence[float]) -> str:
    """The text of fx, fy, cx, cy, width, height; empty where the size is unknown."""
    *params, width, height = row
    return "" if np.isnan([width, height]).any() else str(Camera("PINHOLE", int(width), int(height), tuple(params)))


def camera_of(images: ImageSet, i: int) -> Camera | None:
    """The camera of image i with its distortion where that is known; None where there are no intrinsics."""
    return parse_camera(camera_texts(images.subset([i]))[0], images.name(i))
