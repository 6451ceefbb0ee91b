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
_WIDTH = 16
"""Columns of `camera_params`; unused ones are NaN."""
LENS = ("camera_model", "camera_params")
"""Columns of an image set with the whole camera, distortion too."""


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


def camera(model: str, width: Any, height: Any, params: Sequence[Any], where: str) -> Camera:
    """A checked camera; `where` begins the error."""
    if model not in MODELS:
        raise InputError(f"{where}: {unknown_name('camera model', model, MODELS)}")
    expected = MODELS[model][1].split()
    try:
        camera = Camera(model, int(float(width)), int(float(height)), tuple(float(p) for p in params))
    except ValueError as error:
        raise InputError(f"{where}: camera {model}: {error}; expected numbers") from None
    if len(camera.params) != len(expected):
        raise InputError(f"{where}: camera {model} has {len(camera.params)} parameters; expected {' '.join(expected)}")
    return camera


def pinhole(width: float, height: float, matrix: Floats) -> Camera:
    """A camera without distortion from its (3, 3) matrix."""
    params = (float(matrix[0, 0]), float(matrix[1, 1]), float(matrix[0, 2]), float(matrix[1, 2]))
    return Camera("PINHOLE", int(width), int(height), params)


class CameraArrays(NamedTuple):
    """The cameras of N images as arrays."""

    intrinsics: Floats
    """(N, 6)."""
    columns: dict[str, NDArray[Any]]


def calibration(cameras: Sequence[Camera | None]) -> CameraArrays:
    """Intrinsics and columns of N images; None is an image of unknown camera."""
    intrinsics = np.full((len(cameras), 6), np.nan)
    params = np.full((len(cameras), _WIDTH), np.nan)
    for i, one in enumerate(cameras):
        if one is not None:
            intrinsics[i] = one.pinhole
            params[i, : len(one.params)] = one.params
    models = np.array(["" if one is None else one.model for one in cameras], dtype=str)
    return CameraArrays(intrinsics, {"camera_model": models, "camera_params": params})


def camera_of(images: ImageSet, i: int) -> Camera | None:
    """The camera of image i with its distortion where that is known; None where there are no intrinsics."""
    if images.intrinsics is None or np.isnan(images.intrinsics[i, 4:]).any():
        return None
    width, height = (int(v) for v in images.intrinsics[i, 4:])
    model = str(images.columns["camera_model"][i]) if "camera_model" in images.columns else ""
    if model:
        count = len(MODELS[model][1].split())
        return Camera(model, width, height, tuple(images.columns["camera_params"][i, :count].tolist()))
    return Camera("PINHOLE", width, height, tuple(images.intrinsics[i, :4].tolist()))


def camera_table(images: ImageSet) -> tuple[NDArray[np.int32], list[str]]:
    """(N,) which camera took each image, −1 for an unknown one, and the cameras, each once, as text."""
    if images.intrinsics is None:
        return np.full(len(images), -1, np.int32), []
    params = images.columns.get(LENS[1], np.zeros((len(images), 0)))
    models = images.columns.get(LENS[0], np.zeros(len(images), "U1")).tolist()
    rows = np.ascontiguousarray(np.column_stack([images.intrinsics, params]))
    seen: dict[tuple[str, bytes], int] = {}
    texts: dict[str, int] = {}
    codes = np.empty(len(images), np.int32)
    for i, key in enumerate(zip(models, map(bytes, rows), strict=True)):
        if key not in seen:
            one = camera_of(images, i)
            seen[key] = -1 if one is None else texts.setdefault(camera_text(one), len(texts))
        codes[i] = seen[key]
    return codes, list(texts)


def with_cameras(images: ImageSet, codes: NDArray[np.integer], texts: Sequence[str], where: str) -> ImageSet:
    """Images with the cameras of such a table; `where` begins the error for an invalid one."""
    if not len(texts):
        return images
    if len(codes) and not -1 <= int(codes.min()) <= int(codes.max()) < len(texts):
        raise InputError(f"{where}: an image has camera {int(codes.max())}, there are {len(texts)}")
    intrinsics, columns = calibration([*(parse_camera(text, where) for text in texts), None])
    return replace(
        images, intrinsics=intrinsics[codes], columns={**images.columns, **{k: v[codes] for k, v in columns.items()}}
    )


def camera_text(one: Camera) -> str:
    """`MODEL width height parameters…`."""
    return " ".join([one.model, str(one.width), str(one.height), *(repr(float(p)) for p in one.params)])


def parse_camera(text: str, where: str) -> Camera | None:
    """The camera of such a text, None for an empty one; `where` begins the error."""
    cells = text.split()
    if not cells:
        return None
    if len(cells) < 4:
        raise InputError(f"{where}: camera {text!r}; expected MODEL width height parameters")
    return camera(cells[0], cells[1], cells[2], cells[3:], where)
