"""Points of a scene: clouds of its surfaces (PLY, NPZ, fused depth maps), and the tracks of a sparse model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from covis.core.arrays import Floats
from covis.core.artifacts import fingerprint
from covis.core.errors import InputError
from covis.core.files import BAD_ARRAY, foreign, load_array, read_foreign
from covis.core.progress import warn
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.city import Advance
from covis.poses import Axis, Poses

_TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
_MOST_HEADER_LINES = 1000


_MAX_BYTES = 1 << 32
"""Larger clouds are refused before they are read."""


class Header(NamedTuple):
    """What the first lines say."""

    kind: str
    vertices: int
    columns: list[tuple[str, str]]
    """Name and NumPy type code of each property of a vertex."""
    length: int
    """Bytes up to the data."""


@foreign("a cloud of points")
def read_ply(path: Path) -> NDArray[np.float64]:
    """(N, 3) x, y, z of the vertices, which must come first."""
    raw = read_foreign(path, _MAX_BYTES)
    header = _header(path, raw)
    names = [name for name, _ in header.columns]
    if not {"x", "y", "z"} <= set(names):
        raise InputError(f"{path}: vertices have {names}; expected x, y and z")
    body = raw[header.length :]
    if header.kind == "ascii":
        table = _ascii(path, body, header)
    else:
        order = "<" if header.kind == "binary_little_endian" else ">"
        dtype = np.dtype([(name, order + code) for name, code in header.columns])
        if len(body) < header.vertices * dtype.itemsize:
            raise InputError(
                f"{path} is cut short: {header.vertices} vertices announced, room for {len(body) // dtype.itemsize}"
            )
        table = np.frombuffer(body, dtype, header.vertices)
    return np.stack([np.asarray(table[axis], np.float64) for axis in "xyz"], axis=1)


def _ascii(path: Path, body: bytes, header: Header) -> NDArray[np.void]:
    rows = [line.split() for line in body.split(b"\n", header.vertices)[: header.vertices]]
    wrong = [k for k, row in enumerate(rows) if len(row) < len(header.columns)]
    if wrong or len(rows) < header.vertices:
        raise InputError(f"{path}: vertex {wrong[0] if wrong else len(rows)} of {header.vertices} is cut short")
    dtype = np.dtype([(name, "f8") for name, _ in header.columns])
    try:
        return np.array([tuple(map(float, row[: len(header.columns)])) for row in rows], dtype)
    except ValueError as error:
        raise InputError(f"{path}: a vertex is not made of numbers ({error})") from None


def _header(path: Path, raw: bytes) -> Header:
    end = raw.find(b"end_header")
    line_end = raw.find(b"\n", end)
    lines = raw[: max(end, 0)].decode("ascii", errors="replace").splitlines()
    if not lines or lines[0].strip() != "ply" or line_end < 0 or len(lines) > _MOST_HEADER_LINES:
        raise InputError(f"{path} is not a PLY file (no header); check the file")
    kind, count, columns, element = "", -1, [], ""
    for line in (entry.split() for entry in lines[1:] if entry.split()):
        if line[0] == "format":
            kind = line[1]
        elif line[0] == "element":
            element = line[1]
            count = int(line[2]) if element == "vertex" else count
            if element != "vertex" and count < 0:
                raise InputError(
                    f"{path}: element {element!r} comes before the vertices; save it with the vertices first"
                )
        elif line[0] == "property" and element == "vertex":
            if line[1] not in _TYPES:
                raise InputError(f"{path}: vertices have a property of type {line[1]!r}, which covis cannot read")
            columns.append((line[2], _TYPES[line[1]]))
    if kind not in ("ascii", "binary_little_endian", "binary_big_endian") or count < 1:
        raise InputError(f"{path} has format {kind!r} and {max(count, 0)} vertices; expected a PLY point cloud")
    return Header(kind, count, columns, line_end + 1)


MAX_POINTS = 100_000
"""Enough for a room, where they lie about 3 cm apart."""
MAX_FRAMES = 400
"""Depth maps that are fused into a cloud, spread evenly over the images."""
_MOST_UNREADABLE = 0.05


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Surface points in the images' frame."""

    xyz: Floats
    """(N, 3) metres, finite."""
    source: str = ""
    """Where they come from, for manifests."""

    def __post_init__(self) -> None:
        xyz = np.array(self.xyz, np.float64, order="C")
        if xyz.ndim != 2 or xyz.shape[1] != 3 or not len(xyz):
            raise InputError(f"a point cloud has shape {xyz.shape}; expected (N, 3) with at least one point")
        known = np.isfinite(xyz).all(axis=1)
        if not known.any():
            raise InputError(f"none of {len(xyz)} points is finite; check {self.source or 'the cloud'}")
        if not known.all():
            warn(f"{int((~known).sum())} of {len(xyz)} points are not finite and are left out ({self.source})")
        xyz = xyz[known]
        xyz.flags.writeable = False
        object.__setattr__(self, "xyz", xyz)

    def __len__(self) -> int:
        return len(self.xyz)

    def describe(self) -> dict[str, object]:
        """What a manifest says of it."""
        return {"source": self.source, "points": len(self), "fingerprint": fingerprint(self.xyz)}


@dataclass(frozen=True)
class DepthCamera:
    """How depth images are to be read; the default is the Kinect of 7Scenes."""

    fx: float = 585.0
    fy: float = 585.0
    cx: float = 320.0
    cy: float = 240.0
    scale_m: float = 1e-3
    """Metres per step."""
    invalid: tuple[int, ...] = (0, 65535)


def read_points(path: Path | str, *, up: Axis = "z", max_points: int | None = MAX_POINTS) -> PointCloud:
    """A cloud from `.ply` or `.npz`/`.npy` (an array `points`, or the only one), thinned evenly to `max_points`.

    `up` is the file's axis that points away from the ground, as in `Poses.from_matrices`: points and poses of one
    scene need the same one.
    """
    path = Path(path)
    readers = {".ply": read_ply, ".npz": _read_npz, ".npy": _read_npz}
    if path.suffix.lower() not in readers:
        raise InputError(f"{path} is not a point cloud that covis can read; give .ply, .npz or .npy")
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path")
    xyz = _turned(readers[path.suffix.lower()](path), up)
    return PointCloud(xyz if max_points is None else thin(xyz, max_points), path.name)


def _read_npz(path: Path) -> Floats:
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {k: loaded[k] for k in loaded.files} if hasattr(loaded, "files") else {"points": loaded}
    except (OSError, *BAD_ARRAY) as error:
        raise InputError(f"{path} cannot be read as NumPy arrays ({error})") from None
    if "points" not in arrays and len(arrays) != 1:
        raise InputError(f"{path} holds {sorted(arrays)}; expected an array `points` of shape (N, 3)")
    xyz = arrays["points"] if "points" in arrays else next(iter(arrays.values()))
    return np.asarray(xyz, np.float64)


def _turned(xyz: Floats, up: Axis) -> Floats:
    """Points from a file's axes into ground axes (east, north, up)."""
    if xyz.ndim != 2 or xyz.shape[1] != 3 or up == "z":
        return xyz
    axes = Poses.from_matrices(np.concatenate([np.tile(np.eye(3), (3, 1, 1)), np.eye(3)[:, :, None]], axis=2), up=up)
    turned: Floats = xyz @ axes.centre
    return turned


def thin(xyz: ArrayLike, max_points: int, least_m: float = 0.0) -> Floats:
    """At most `max_points` points, evenly spread: one per voxel, as small as `max_points` and `least_m` allow."""
    points = np.asarray(xyz, np.float64)
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) <= max_points and not least_m:
        return points
    extent = float(np.ptp(points, axis=0).max(initial=0.0))
    size = max(extent / 2**20, least_m, 1e-9) if least_m else max(extent / 2048, 1e-9)
    while True:
        kept = points[_one_a_voxel(points, size)]
        if len(kept) <= max_points:
            return kept
        size *= max(1.05, (len(kept) / max_points) ** 0.5)


def _one_a_voxel(points: Floats, size: float) -> NDArray[np.int64]:
    cell = np.floor((points - points.min(axis=0)) / size).astype(np.int64)
    code = (cell[:, 0] << 42) | (cell[:, 1] << 21) | cell[:, 2]
    return np.sort(np.unique(code, return_index=True)[1])


def fuse_depth(
    sets: Sequence[ImageSet],
    camera: DepthCamera | None = None,
    *,
    frames: int = MAX_FRAMES,
    step_px: int = 8,
    voxel_m: float = 0.02,
    max_points: int = MAX_POINTS,
) -> PointCloud:
    """A cloud from `frames` of the depth maps that the images' column `depth` names.

    Every `step_px`-th pixel is read. One point per voxel is kept, because near surfaces would otherwise count more than
    far ones.
    """
    if any("depth" not in images.columns for images in sets):
        raise InputError("these images name no depth maps; give a point cloud (PLY or NPZ)")
    usable = [
        np.flatnonzero((images.columns["depth"] != images.columns["depth"].dtype.type()) & images.poses.known)
        for images in sets
    ]
    listed = [
        (a, int(ids[i])) for a, ids in zip(sets, usable, strict=True) for i in _spread(len(ids), frames // len(sets))
    ]
    parts: list[Floats] = []
    lost: list[Path] = []
    for images, i in listed:
        path = images.root / os.fsdecode(images.columns["depth"][i])
        try:
            parts.append(_surface(path, images, i, camera, step_px))
        except (OSError, ValueError, SyntaxError):
            lost.append(path)
    if len(lost) > _MOST_UNREADABLE * max(1, len(listed)) or not parts:
        raise InputError(
            f"{len(lost)} of {len(listed)} depth maps cannot be read (first: {lost[0] if lost else 'none is named'}); unpack again"
        )
    if lost:
        warn(f"{len(lost)} of {len(listed)} depth maps cannot be read and are left out (first: {lost[0]})")
    return PointCloud(thin(np.concatenate(parts), max_points, voxel_m), f"{len(parts)} depth maps")


def read_depth(path: Path, images: ImageSet, i: int) -> NDArray[Any]:
    """(h, w) as stored: an image, a NumPy array, or kapture's bare float32 in the size of the image's camera."""
    if path.suffix == ".npy":
        return load_array(path, "fiu", remedy="check the file")
    if path.suffix == ".depth" and images.intrinsics is not None:
        width, height = (int(v) for v in images.intrinsics[i, 4:])
        return np.fromfile(path, np.float32).reshape(height, width)
    from covis.reading.decoding import open_image

    with open_image(path) as image:
        return np.asarray(image)


def depth_camera(images: ImageSet, i: int, shape: tuple[int, int]) -> DepthCamera:
    """The camera of image i's depth map of `shape`: its own where depth is registered to it (column `depth_scale_m`)."""
    if "depth_scale_m" not in images.columns or images.intrinsics is None or np.isnan(images.intrinsics[i]).any():
        return DepthCamera()
    fx, fy, cx, cy, width, height = images.intrinsics[i]
    across, down = shape[1] / width, shape[0] / height
    scale_m = float(images.columns["depth_scale_m"][i])
    return DepthCamera(fx * across, fy * down, cx * across, cy * down, scale_m)


def _spread(n: int, most: int) -> NDArray[np.int64]:
    return (
        np.unique(np.linspace(0, n - 1, min(n, max(1, most))).round().astype(np.int64)) if n else np.zeros(0, np.int64)
    )


def _surface(path: Path, images: ImageSet, i: int, camera: DepthCamera | None, step_px: int) -> Floats:
    """Points (M, 3) of one depth map in the world."""
    poses, whole = images.poses, read_depth(path, images, i)
    if whole.ndim != 2 or poses.rotation is None:
        raise ValueError(f"{path} is not a depth map")
    camera = camera or depth_camera(images, i, (whole.shape[0], whole.shape[1]))
    depth = whole[step_px // 2 :: step_px, step_px // 2 :: step_px]
    v, u = np.nonzero(~np.isin(depth, camera.invalid) & np.isfinite(depth))
    z = depth[v, u] * camera.scale_m
    offset = step_px // 2
    x = (u * step_px + offset - camera.cx) * z / camera.fx
    y = (v * step_px + offset - camera.cy) * z / camera.fy
    points: Floats = np.stack([x, y, z], axis=1) @ poses.rotation[i].T + poses.centre[i]
    return points


# Overlap by the tracks of a sparse model: which of its points two images both see. No depth is needed, nor metres.


_QUERIES_A_CHUNK = 512


@dataclass(frozen=True, eq=False)
class Tracks:
    """Which points each image of a model sees."""

    names: NDArray[np.bytes_]
    """(N,) names as the model has them."""
    seen: csr_matrix
    """(N, P) 1 where an image sees a point."""
    source: str = ""

    def describe(self) -> dict[str, Any]:
        """What a manifest says of it."""
        digest = fingerprint(self.names.astype(bytes), self.seen.indptr, self.seen.indices)
        return {"source": self.source, "points": int(self.seen.shape[1]), "fingerprint": digest}

    def of(self, images: ImageSet) -> csr_matrix:
        """(len(images), P) for images by name, or by the last part of it where that is unique; others are an error."""
        place = {name: i for i, name in enumerate(self.names.tolist())}
        ends = Counter(name.rpartition(b"/")[2] for name in place)
        alone = {end: i for name, i in place.items() if ends[end := name.rpartition(b"/")[2]] == 1}
        rows = [place.get(name, alone.get(name.rpartition(b"/")[2], -1)) for name in images.names.tolist()]
        lost = [i for i, row in enumerate(rows) if row < 0]
        if lost:
            raise InputError(
                f"{len(lost)} of {len(images)} images are not in the model {self.source} (first: {images.name(lost[0])}); "
                "label its own images, or register those first"
            )
        return self.seen[rows]


def read_tracks(path: Path | str) -> Tracks:
    """The tracks of a COLMAP model."""
    from covis.images import encode_names
    from covis.reading.formats.colmap import read_reconstruction

    model = read_reconstruction(path)
    return Tracks(encode_names(model.names), model.incidence(), str(path))


def track_edges(
    queries: csr_matrix, database: csr_matrix, measure: str, *, one_set: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """(rows, columns, ψ) of all pairs that share a point; in one set without the diagonal."""
    own, other = (np.asarray(side.sum(axis=1)).ravel().astype(np.float64) for side in (queries, database))
    rows, columns, psi = [], [], []
    turned = database.T.tocsr()
    for start in range(0, queries.shape[0], _QUERIES_A_CHUNK):
        shared = (queries[start : start + _QUERIES_A_CHUNK].astype(np.int64) @ turned).tocoo()
        i, j, both = shared.row + start, shared.col.astype(np.int64), shared.data.astype(np.float64)
        if one_set:
            i, j, both = (part[i != j] for part in (i, j, both))
        whole = {
            "overlap": np.minimum(own[i], other[j]),
            "query_overlap": own[i],
            "iou": own[i] + other[j] - both,
        }[measure]
        rows.append(i.astype(np.int64))
        columns.append(j)
        psi.append(both / whole)
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(psi)


def track_graph(
    tracks: Tracks,
    queries: ImageSet,
    database: ImageSet,
    *,
    measure: str,
    within_group: bool,
    facts: dict[str, Any],
    advance: Advance = None,
) -> SimilarityGraph:
    """ψ = shared points ÷ points, by measure."""
    one_set = queries is database
    seen = tracks.of(queries)
    i, j, psi = track_edges(seen, seen if one_set else tracks.of(database), measure, one_set=one_set)
    if advance is not None:
        advance(len(queries))
    if within_group:
        names = np.array(queries.group_names)[queries.group], np.array(database.group_names)[database.group]
        same = names[0][i] == names[1][j]
        i, j, psi = i[same], j[same], psi[same]
    shape = (len(queries), len(database))
    return SimilarityGraph.from_edges(i, j, psi, shape, {**facts, "tracks": tracks.describe()})
