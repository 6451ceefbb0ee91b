"""Equirectangular panoramas (photo spheres) → perspective crops, each with its own heading, pose and intrinsics."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.core.progress import Meter, warn
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.decoding import Pixels, open_image

_JPEG_QUALITY = 92
_TAGS = (
    "PoseHeadingDegrees",
    "PosePitchDegrees",
    "PoseRollDegrees",
    "FullPanoWidthPixels",
    "FullPanoHeightPixels",
    "CroppedAreaLeftPixels",
    "CroppedAreaTopPixels",
)


class Sphere(NamedTuple):
    """How a panorama lies on the sphere, by its GPano tags; unknown angles are NaN."""

    heading: float = float("nan")
    """Degrees clockwise from north of the full panorama's middle column."""
    pitch: float = 0.0
    roll: float = 0.0
    full_width: int = 0
    full_height: int = 0
    left: int = 0
    top: int = 0
    """Where the stored pixels begin in the full panorama."""


def read_sphere(path: Path) -> Sphere:
    """The GPano tags of a photo; sizes missing from them are those of the picture."""
    with open_image(path) as image:
        size, text = image.size, _xmp(image.info).decode("utf-8", "replace")
    tags = {tag: _tag(text, tag) for tag in _TAGS}
    width = int(tags["FullPanoWidthPixels"] if not np.isnan(tags["FullPanoWidthPixels"]) else size[0])
    height = int(tags["FullPanoHeightPixels"] if not np.isnan(tags["FullPanoHeightPixels"]) else size[1])
    whole = np.nan_to_num([tags[t] for t in ("PosePitchDegrees", "PoseRollDegrees", *_TAGS[5:])])
    return Sphere(tags["PoseHeadingDegrees"], whole[0], whole[1], width, height, int(whole[2]), int(whole[3]))


def _tag(text: str, name: str) -> float:
    """An XMP number, as attribute or element."""
    tag = re.search(rf'GPano:{name}\s*=\s*["\']([^"\']+)["\']|<GPano:{name}>\s*([^<\s]+)', text)
    try:
        return float(tag[1] or tag[2]) if tag else float("nan")
    except ValueError:
        return float("nan")


def view_rotation(heading: float, pitch: float = 0.0) -> Floats:
    """(3, 3) camera (x right, y down, z forward) to world (east, north, up) of a level camera, tilted up by `pitch`."""
    h, p = np.radians([heading, pitch])
    ahead = np.array([np.sin(h) * np.cos(p), np.cos(h) * np.cos(p), np.sin(p)])
    right = np.array([np.cos(h), -np.sin(h), 0.0])
    return np.column_stack([right, np.cross(ahead, right), ahead])


def crop(panorama: Pixels, rays: Floats, sphere: Sphere) -> Pixels:
    """(h, w, 3) pixels that a camera with `rays` (h, w, 3), in the panorama's own axes (x right, y down, z middle), sees."""
    width, height = sphere.full_width or panorama.shape[1], sphere.full_height or panorama.shape[0]
    longitude = np.arctan2(rays[..., 0], rays[..., 2])
    latitude = np.arctan2(rays[..., 1], np.hypot(rays[..., 0], rays[..., 2]))
    u = (longitude / (2 * np.pi) + 0.5) * width - 0.5 - sphere.left
    v = (latitude / np.pi + 0.5) * height - 0.5 - sphere.top
    return _bilinear(panorama, u, v, wraps=panorama.shape[1] == width)


def _bilinear(pixels: Pixels, u: Floats, v: Floats, *, wraps: bool) -> Pixels:
    rows, columns = pixels.shape[:2]
    x, y = np.floor(u).astype(np.int64), np.floor(v).astype(np.int64)
    fx, fy = (u - x)[..., None], (v - y)[..., None]

    def at(row: NDArray[np.int64], column: NDArray[np.int64]) -> Floats:
        column = column % columns if wraps else np.clip(column, 0, columns - 1)
        values: Floats = pixels[np.clip(row, 0, rows - 1), column].astype(np.float64)
        return values

    top = at(y, x) * (1 - fx) + at(y, x + 1) * fx
    bottom = at(y + 1, x) * (1 - fx) + at(y + 1, x + 1) * fx
    mixed = np.rint(top * (1 - fy) + bottom * fy)
    if not wraps:  # outside a cropped panorama nothing was photographed
        mixed[(u < -0.5) | (u > columns - 0.5)] = 0
    return mixed.astype(np.uint8)


def rays_of(size: tuple[int, int], fov_deg: float) -> Floats:
    """(h, w, 3) directions of a pinhole camera's pixel centres; `fov_deg` is across the width."""
    width, height = size
    focal = focal_length(width, fov_deg)
    x, y = np.meshgrid(np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2)
    return np.stack([x, y, np.full_like(x, focal)], axis=-1)


def focal_length(width: int, fov_deg: float) -> float:
    """In pixels."""
    if not 0 < fov_deg < 180:
        raise InputError(f"--crop-fov {fov_deg:g} is not a valid field of view; expected degrees below 180")
    return float(0.5 * width / np.tan(np.radians(0.5 * fov_deg)))


def only_panoramas(images: ImageSet, source: Path) -> ImageSet:
    """Images marked as panoramas (GPano, a service's metadata) or exactly twice as wide as high; others are counted."""
    flagged = images.columns.get("is_panorama", np.zeros(len(images), bool))
    full = np.array(flagged, bool)
    for i in np.flatnonzero(~full):
        with open_image(images.path(int(i))) as image:
            full[i] = image.width == 2 * image.height or b"equirectangular" in _xmp(image.info)
    if not full.any():
        raise InputError(f"{source} has no panorama among {len(images)} photos; leave --crops out")
    if not full.all():
        warn(f"{source}: {int((~full).sum())} of {len(images)} photos are not panoramas and are left out")
    return images.subset(full)


def _xmp(info: Mapping[Any, Any]) -> bytes:
    xmp = info.get("xmp", b"")
    return xmp if isinstance(xmp, bytes) else str(xmp).encode(errors="replace")


def cut(
    images: ImageSet,
    folder: Path | str,
    *,
    count: int = 4,
    fov_deg: float = 90.0,
    size: tuple[int, int] = (640, 480),
    pitch_deg: float = 0.0,
) -> ImageSet:
    """Cuts each panorama into `count` pictures around the horizon, written into `folder`; existing files are kept.

    The heading of a panorama is that of `images`, or its GPano tag. Without any, crops have none either. Crops keep the
    group of their panorama; the column `panorama` names the panorama that a crop was cut from.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names, sources, turns, tilts = [], [], [], []
    with Meter("cutting panoramas", len(images), "panoramas") as meter:
        for i in range(len(images)):
            sphere = read_sphere(images.path(i))
            middle = images.poses.heading[i] if not np.isnan(images.poses.heading[i]) else sphere.heading
            for k in range(count):
                turn = 360.0 * k / count
                names.append(
                    _cut_one(images, i, sphere, folder, turn=turn, fov_deg=fov_deg, size=size, pitch=pitch_deg)
                )
                sources.append(i)
                turns.append((middle + turn) % 360.0)
                tilts.append(pitch_deg)
            meter.advance()
    unknown = int(np.isnan(turns[::count]).sum())
    if unknown:
        warn(f"{unknown} of {len(images)} panoramas have no heading; their crops have none")
    return _crops(
        images, folder, names, np.array(sources), np.array(turns), fov_deg=fov_deg, size=size, pitch=pitch_deg
    )


def _cut_one(
    images: ImageSet,
    i: int,
    sphere: Sphere,
    folder: Path,
    *,
    turn: float,
    fov_deg: float,
    size: tuple[int, int],
    pitch: float,
) -> str:
    from PIL import Image

    stem = re.sub(r"[\\/]", "-", str(Path(images.name(i)).with_suffix("")))
    name = f"{stem}_{round(turn):03d}.jpg"
    if (folder / name).is_file():
        return name
    with open_image(images.path(i)) as image:
        panorama = np.asarray(image.convert("RGB"))
    pixels = crop(panorama, rays_of(size, fov_deg) @ _in_panorama(turn, pitch, sphere).T, sphere)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    with replacing(folder / name, durable=False) as partial:
        partial.write_bytes(buffer.getvalue())
    return name


def _in_panorama(turn: float, pitch: float, sphere: Sphere) -> Floats:
    """(3, 3) crop's camera axes in the panorama's, whose own pitch (up) and roll (clockwise) are undone."""
    level = view_rotation(0.0)  # the panorama's middle looks north while level
    tilt, roll = np.radians([sphere.pitch, sphere.roll])
    c, s = np.cos(tilt), np.sin(tilt)
    raised = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])  # about east: north rises
    c, s = np.cos(roll), np.sin(roll)
    rolled = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])  # about north: east sinks
    own = raised @ rolled @ level
    relative: Floats = own.T @ view_rotation(turn, pitch)
    return relative


def _crops(
    images: ImageSet,
    folder: Path,
    names: Sequence[str],
    sources: NDArray[np.int64],
    heading: Floats,
    *,
    fov_deg: float,
    size: tuple[int, int],
    pitch: float,
) -> ImageSet:
    focal = focal_length(size[0], fov_deg)
    known = ~np.isnan(heading)
    rotation = np.full((len(names), 3, 3), np.nan)
    rotation[known] = [view_rotation(h, pitch) for h in heading[known]]
    given = images.poses.subset(sources)
    poses = Poses(given.xy, heading, given.z, rotation, given.frame)
    intrinsics = np.tile([focal, focal, size[0] / 2, size[1] / 2, *map(float, size)], (len(names), 1))
    columns = {key: values[sources] for key, values in images.columns.items()}
    columns["panorama"] = images.names[sources]
    group = [images.group_names[g] for g in images.group[sources]]
    return ImageSet.of(folder, names, poses, group, intrinsics=intrinsics, columns=columns)
