"""Where cameras stood and how they looked.

World axes outdoors: x east, y north, z up, metres. Headings: degrees clockwise from north (grid north of the
frame). Rotations turn camera axes (x right, y down, z forward) into world axes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats
from covis.core.artifacts import fingerprint
from covis.core.errors import InputError
from covis.core.progress import warn

if TYPE_CHECKING:
    from pyproj import CRS, Transformer

Axis = Literal["x", "y", "z", "-x", "-y", "-z"]
UNSCALED = "unscaled"
"""The frame of poses whose unit of length is unknown, such as those of structure from motion by itself."""
PLACE_M = 25.0
PLACE_TURN_DEG = 40.0
"""Two photos this near to each other, and turned by no more than this, are of the same place: the usual rule of the field."""


@dataclass(frozen=True, eq=False)
class Poses:
    """Aligned camera poses in one metric frame. NaN means unknown: never zero, never north.

    >>> poses = Poses([[0, 0], [np.nan, np.nan]], heading=[-90, np.nan])
    >>> poses.heading.tolist(), poses.known.tolist()
    ([270.0, nan], [True, False])
    >>> Poses.from_latlon([55.7047], [13.1910]).latlon().round(4).tolist()
    [[55.7047, 13.191]]
    """

    xy: Floats
    """(N, 2) easting and northing in metres; both NaN where unknown."""
    heading: Floats
    """(N,) degrees in [0, 360), NaN where unknown."""
    z: Floats | None = None
    """(N,) height in metres."""
    rotation: Floats | None = None
    """(N, 3, 3) camera-to-world rotations, all NaN where unknown."""
    frame: str = ""
    """PROJ string or EPSG code of the frame; empty for a local one without a place on Earth; or `UNSCALED`."""

    def __post_init__(self) -> None:
        xy = _frozen(self.xy, (None, 2), "xy")
        n = len(xy)
        heading = np.asarray(self.heading, np.float64)
        object.__setattr__(self, "xy", xy)
        object.__setattr__(self, "heading", _frozen(_headings(heading), (n,), "heading"))
        if np.isinf(xy).any() or (np.isnan(xy[:, 0]) != np.isnan(xy[:, 1])).any():
            bad = int(np.flatnonzero(np.isinf(xy).any(1) | (np.isnan(xy[:, 0]) != np.isnan(xy[:, 1])))[0])
            raise InputError(
                f"position {bad} is {tuple(xy[bad].tolist())}; give both coordinates, or both empty for unknown"
            )
        if self.z is not None:
            object.__setattr__(self, "z", _frozen(self.z, (n,), "z"))
        if self.rotation is not None:
            object.__setattr__(self, "rotation", _frozen(_rotations(self.rotation), (n, 3, 3), "rotation"))

    def __len__(self) -> int:
        return len(self.xy)

    @property
    def known(self) -> NDArray[np.bool_]:
        """(N,) where the position is known."""
        return ~np.isnan(self.xy[:, 0])

    @property
    def metric(self) -> bool:
        """Whether positions are in metres; if not, their unit is unknown, and code that needs metres refuses them."""
        return self.frame != UNSCALED

    @property
    def centre(self) -> Floats:
        """(N, 3) camera centres; height 0 where none was given."""
        z = np.zeros(len(self)) if self.z is None else self.z
        return np.column_stack([self.xy, z])

    def subset(self, ids: ArrayLike) -> Poses:
        """The poses at `ids` (indices or mask), in that order."""
        pick = np.asarray(ids)
        return replace(
            self,
            xy=self.xy[pick],
            heading=self.heading[pick],
            z=None if self.z is None else self.z[pick],
            rotation=None if self.rotation is None else self.rotation[pick],
        )

    def fingerprint(self) -> str:
        """Changes with any position, heading, rotation or the frame."""
        empty = np.zeros(0)
        return fingerprint(self.xy, self.heading, _or(self.z, empty), _or(self.rotation, empty), self.frame)

    def latlon(self) -> Floats:
        """(N, 2) WGS84 degrees; an error where the frame has no place on Earth."""
        if not self.frame or not self.metric:
            raise InputError(
                "these poses are in a local frame without a place on Earth; latitude and longitude are unknown"
            )
        lon, lat = transformer(self.frame, WGS84).transform(*self.xy.T)
        return np.column_stack([lat, lon])

    @classmethod
    def from_latlon(
        cls,
        lat: ArrayLike,
        lon: ArrayLike,
        heading: ArrayLike | None = None,
        *,
        z: ArrayLike | None = None,
        frame: str = "",
    ) -> Poses:
        """Poses from WGS84 degrees and true-north headings, in one transverse Mercator frame around their middle.

        Headings are turned by the grid convergence, so that they are clockwise from the frame's own north.
        """
        from pyproj import Proj

        lat, lon = np.asarray(lat, np.float64), np.asarray(lon, np.float64)
        if lat.shape != lon.shape or lat.ndim != 1:
            raise InputError(f"latitudes {lat.shape} and longitudes {lon.shape} must be two lists of one length")
        wrong = (np.abs(lat) > 90) | (np.abs(lon) > 360)
        if wrong.any():
            bad = int(np.flatnonzero(wrong)[0])
            named = f"position {bad + 1} of {len(lat)}: latitude {lat[bad]}, longitude {lon[bad]}"
            raise InputError(f"{named} is not on Earth; expected degrees")
        frame = frame or local_frame(lat, lon)
        angle = np.full(len(lat), np.nan) if heading is None else np.asarray(heading, np.float64)
        height = None if z is None else np.asarray(z, np.float64)
        if not frame:  # not one position is known
            return cls(np.full((len(lat), 2), np.nan), angle, height)
        x, y = (np.asarray(v) for v in transformer(WGS84, frame).transform(lon, lat))
        unknown = np.isnan(lat) | np.isnan(lon)
        xy = np.where(unknown[:, None], np.nan, np.column_stack([x, y]))
        _check_reach(frame, xy)
        if len(lat) and not unknown.all():
            factors = Proj(frame).get_factors(
                np.where(unknown, np.nanmean(lon), lon), np.where(unknown, np.nanmean(lat), lat)
            )
            angle = angle - np.asarray(factors.meridian_convergence)
            _warn_of_scale(frame, np.stack([factors.meridional_scale, factors.parallel_scale])[:, ~unknown])
        return cls(xy, angle, height, frame=frame)

    @classmethod
    def from_matrices(
        cls, matrices: ArrayLike, *, world_to_camera: bool = False, forward: Axis = "z", up: Axis = "z", frame: str = ""
    ) -> Poses:
        """Poses from (N, 3|4, 4) matrices, camera-to-world unless `world_to_camera`.

        `forward` is the camera's own viewing axis; `up` the world axis that points away from the ground, along which
        positions are flattened. Ground axes follow `up` in right-handed order (z up: x east, y north); positions and
        rotations are both turned into them.
        """
        m = np.asarray(matrices, np.float64)
        if m.ndim != 3 or m.shape[1] not in (3, 4) or m.shape[2] != 4:
            raise InputError(f"pose matrices have shape {m.shape}; expected (N, 4, 4) or (N, 3, 4)")
        rotation, translation = m[:, :3, :3], m[:, :3, 3]
        if world_to_camera:
            rotation = rotation.transpose(0, 2, 1)
            translation = -np.einsum("nij,nj->ni", rotation, translation)
        east, north, height = ground_axes(up)
        view = rotation @ _axis(forward)
        across, along = view @ east, view @ north
        vertical = np.hypot(across, along) < 1e-9
        heading = np.where(vertical, np.nan, np.degrees(np.arctan2(across, along)))
        ground = np.stack([east, north, height])
        position = translation @ ground.T
        return cls(position[:, :2], heading, position[:, 2], ground @ rotation, frame)

    @classmethod
    def from_quaternions(
        cls,
        quaternions: ArrayLike,
        positions: ArrayLike,
        *,
        order: Literal["wxyz", "xyzw"],
        world_to_camera: bool = False,
        forward: Axis = "z",
        up: Axis = "z",
        frame: str = "",
    ) -> Poses:
        """Poses from (N, 4) quaternions and (N, 3) translations; order and direction must be given."""
        q, t = np.asarray(quaternions, np.float64), np.asarray(positions, np.float64)
        if q.ndim != 2 or q.shape[1] != 4 or t.shape != (len(q), 3):
            raise InputError(f"quaternions {q.shape} and positions {t.shape}; expected (N, 4) and (N, 3)")
        matrices = np.concatenate([quaternion_matrices(q, order), t[:, :, None]], axis=2)
        return cls.from_matrices(matrices, world_to_camera=world_to_camera, forward=forward, up=up, frame=frame)


def require_metres(poses: Poses, source: str) -> None:
    """An error where the unit of positions is unknown; `source` is what the user gave."""
    if not poses.metric:
        raise InputError(
            f"{source}: the scale of its poses is unknown, and metres are needed; fix it with covis data import {source} "
            "-o set.csv --scale METRES_PER_UNIT, or --georeference TABLE with lat and lon of three of its images"
        )


def grid_north(poses: Poses) -> Floats:
    """(N,) degrees by which the frame's north lies clockwise of true north; NaN where the position is unknown."""
    degrees = poses.latlon()
    true = Poses.from_latlon(degrees[:, 0], degrees[:, 1], np.zeros(len(poses)), frame=poses.frame).heading
    return np.where(poses.known, (180.0 - true) % 360.0 - 180.0, np.nan)


def true_headings(poses: Poses) -> Floats:
    """(N,) degrees from true north where the frame is on Earth, otherwise from its own north."""
    if not poses.frame or not poses.metric:
        return poses.heading
    turned: Floats = (poses.heading + np.nan_to_num(grid_north(poses))) % 360.0  # a heading without position stays
    return turned


def turned_to_true(poses: Poses, rotation: Floats, way: Literal[1, -1] = 1) -> Floats:
    """Rotations (N, 3, 3) from the frame's north to true north, or back (`way` −1); unchanged if not on Earth."""
    if not poses.frame or not poses.metric:
        return rotation
    angle = np.radians(np.nan_to_num(way * grid_north(poses)))
    zero, one = np.zeros_like(angle), np.ones_like(angle)
    c, s = np.cos(angle), np.sin(angle)
    clockwise = np.moveaxis(np.array([[c, s, zero], [-s, c, zero], [zero, zero, one]]), 2, 0)
    turned: Floats = clockwise @ rotation
    return turned


def concatenate_poses(parts: Sequence[Poses]) -> Poses:
    """One set of poses after another; all must share a frame."""
    frames = {p.frame for p in parts}
    if len(frames) != 1:
        raise InputError(f"poses of different frames cannot be joined: {sorted(frames)}")
    heights = [p.z for p in parts if p.z is not None]
    rotations = [p.rotation for p in parts if p.rotation is not None]
    return Poses(
        np.concatenate([p.xy for p in parts]),
        np.concatenate([p.heading for p in parts]),
        np.concatenate(heights) if len(heights) == len(parts) else None,
        np.concatenate(rotations) if len(rotations) == len(parts) else None,
        frames.pop(),
    )


REACH_M = 900_000.0
"""How far east or west of its middle a local frame goes: there its metres are 1 % too long."""


def _check_reach(frame: str, xy: Floats) -> None:
    """Refuses positions so far from the middle of a local frame that its metres are too far off."""
    if np.isinf(xy).any():
        row = int(np.flatnonzero(np.isinf(xy).any(axis=1))[0])
        named = f"position {row + 1} of {len(xy)}"
        raise InputError(f"{named} lies outside the area that the frame {frame} covers; choose another --frame")
    if not (frame.startswith("+proj=tmerc") and "+x_0=0 " in frame and len(xy)):
        return
    east = np.abs(np.where(np.isnan(xy[:, 0]), 0.0, xy[:, 0]))
    far = ~(east <= REACH_M) | (np.abs(np.where(np.isnan(xy[:, 1]), 0.0, xy[:, 1])) > 10 * REACH_M)
    if far.any():
        row = int(np.flatnonzero(far)[0])
        raise InputError(
            f"the positions span more than one local frame holds (position {row + 1} of {len(xy)} lies "
            f"{east[row] / 1000:.0f} km east or west of the middle, where metres are off by more than 1 %); use one table and one map per city or region, "
            "or choose the frame with --frame EPSG:CODE (covis index, label, evaluate)"
        )


def _warn_of_scale(frame: str, scales: Floats) -> None:
    """One warning where metres of a frame that the user chose are off by more than 1 %."""
    off = float(np.abs(scales - 1.0).max(initial=0.0))
    if off > 0.01:
        warn(f"metres of the frame {frame} are off by up to {100 * off:.0f} % at these positions; so are radii")


def parse_frame(text: str) -> str:
    """A frame as the user names it: empty, `LAT,LON` for a local one around a point, an EPSG code or PROJ text in metres.

    >>> parse_frame("EPSG:25833"), parse_frame("55.7, 13.2")[:36]
    ('EPSG:25833', '+proj=tmerc +lat_0=55.700000 +lon_0=')
    """
    if not text:
        return ""
    corner = re.fullmatch(r"\s*([-+]?[\d.]+)\s*,\s*([-+]?[\d.]+)\s*", text)
    if corner:
        try:
            lat, lon = float(corner[1]), float(corner[2])
        except ValueError:
            lat = lon = np.nan
        if abs(lat) <= 90 and abs(lon) <= 180:
            return local_frame(np.array([lat]), np.array([lon]))
        raise InputError(f"--frame {text!r} is not a place on Earth; give LAT,LON in degrees, or EPSG:CODE")
    system = reference_system(text)
    if not system.is_projected or any(axis.unit_name != "metre" for axis in system.axis_info[:2]):
        raise InputError(f"--frame {text!r} is not in metres; give a projected frame such as a UTM zone (EPSG:32633)")
    return str(system.to_string())


WGS84 = "EPSG:4326"
_AUTHORITY_CODE = re.compile(r"[A-Za-z]{3,5}:[0-9]{4,6}")
_PROJ_TERM = re.compile(
    r"\+?(proj|zone|ellps|datum|units|type|lat_[012]|lat_ts|lon_[012]|lonc|alpha|gamma|k|k_0|x_0|y_0|a|b|rf|towgs84)"
    r"=[A-Za-z0-9.,+-]*|\+?(south|no_defs)"
)
"""Terms of PROJ text that name no file: grids, pipelines and initialisation files are not among them."""


def reference_system(frame: str) -> CRS:
    """The system of a frame in one of two forms, a code such as EPSG:25833 or PROJ text of numbers and names.

    Frames also come from files of strangers, and PROJ opens files that a frame names; so other forms never reach it.
    """
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    terms = frame.split()
    plain = bool(terms) and len(frame) < 1000 and all(map(_PROJ_TERM.fullmatch, terms))
    try:
        if plain or _AUTHORITY_CODE.fullmatch(frame):
            return CRS.from_user_input(frame)
    except (CRSError, ValueError):
        pass
    raise InputError(f"{frame[:200]!r} is not a frame that covis knows; give EPSG:CODE, PROJ text or LAT,LON")


def transformer(source: str, target: str) -> Transformer:
    """From one frame to another, easting or longitude first."""
    from pyproj import Transformer
    from pyproj.exceptions import ProjError

    systems = reference_system(source), reference_system(target)
    try:
        return Transformer.from_crs(*systems, always_xy=True)
    except ProjError:
        raise InputError(f"there is no way from the frame {source!r} to {target!r}; give EPSG:CODE") from None


def local_frame(lat: Floats, lon: Floats) -> str:
    """A transverse Mercator frame around the middle of the points, also across zones and the antimeridian."""
    known = ~(np.isnan(lat) | np.isnan(lon))
    if not known.any():
        return ""
    angle = np.radians(lon[known])
    middle = np.degrees(np.arctan2(np.sin(angle).mean(), np.cos(angle).mean()))
    return f"+proj=tmerc +lat_0={lat[known].mean():.6f} +lon_0={middle:.6f} +k=1 +x_0=0 +y_0=0 +datum=WGS84 +units=m"


# UTM zones, in which some datasets give their positions


ZONE_TOLERANCE_M = 1000.0
"""How far a stated UTM position may lie from the one its latitude and longitude give, and still be of that zone."""


def zone_of(lon: ArrayLike) -> NDArray[np.int64]:
    """(N,) the six-degree zone 1–60 of each longitude; 0 where unknown."""
    degrees = np.asarray(lon, np.float64)
    zone = np.floor((np.where(np.isnan(degrees), 0, degrees) + 180) / 6).astype(np.int64) % 60 + 1
    return np.where(np.isnan(degrees), 0, zone)


def frame_of(zone: int, north: bool) -> str:
    """The EPSG code of a zone."""
    return f"EPSG:{(32600 if north else 32700) + zone}"


def convergence_deg(lat: ArrayLike, lon: ArrayLike, zone: ArrayLike) -> Floats:
    """(N,) how far grid north lies clockwise of true north, degrees; subtract it from a true heading.

    The spherical formula, within 0.01° of the ellipsoid's anywhere in a zone.
    """
    offset = np.radians(np.asarray(lon, np.float64) - (np.asarray(zone, np.float64) * 6 - 183))
    angle: Floats = np.degrees(np.arctan(np.tan(offset) * np.sin(np.radians(np.asarray(lat, np.float64)))))
    return angle


def one_zone(xy: Floats, lat: Floats, lon: Floats) -> tuple[Floats, int]:
    """Positions of one city in its most common zone, and that zone (0 if no longitude is known).

    Some files give each image the coordinates of its own zone, so that neighbours across a border are 400 km apart.
    Only positions that really are those of another zone are moved; all others stay as the file has them.
    """
    zones = zone_of(lon)
    known = zones > 0
    if not known.any():
        return xy, 0
    values, counts = np.unique(zones[known], return_counts=True)
    main = int(values[np.argmax(counts)])
    if len(values) == 1:
        return xy, main
    moved = xy.copy()
    north = bool(np.nanmean(lat) >= 0)
    for zone in values[values != main]:
        members = np.flatnonzero(zones == zone)
        there = transformer(WGS84, frame_of(int(zone), north))
        own = np.column_stack(there.transform(lon[members], lat[members]))
        members = members[np.hypot(*(own - xy[members]).T) < ZONE_TOLERANCE_M]
        across = transformer(frame_of(int(zone), north), frame_of(main, north))
        moved[members] = np.column_stack(across.transform(*xy[members].T))
    return moved, main


def quaternion_matrices(quaternions: ArrayLike, order: Literal["wxyz", "xyzw"]) -> Floats:
    """(N, 4) quaternions → (N, 3, 3) rotations; normalised first, zero ones refused."""
    q = np.asarray(quaternions, np.float64)
    norm = np.linalg.norm(q, axis=1, keepdims=True)
    if (norm < 1e-9).any() or not np.isfinite(norm).all():
        raise InputError(f"quaternion {int(np.flatnonzero(~(norm[:, 0] >= 1e-9))[0])} has no direction (zero or NaN)")
    q = q / norm
    w, x, y, z = q.T if order == "wxyz" else np.roll(q, 1, axis=1).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def centred_matrices(quaternions: Floats, centres: Floats) -> Floats:
    """(N, 3, 4) camera-to-world matrices from world-to-camera quaternions (w first) and camera centres."""
    rotation = quaternion_matrices(quaternions, "wxyz").transpose(0, 2, 1)
    return np.concatenate([rotation, centres[:, :, None]], axis=2)


def matrix_quaternions(rotation: Floats) -> Floats:
    """(N, 3, 3) rotations → (N, 4) quaternions, w first and never negative."""
    (a, b, c), (d, e, f), (g, h, i) = np.moveaxis(np.asarray(rotation, np.float64), 0, 2)
    outer = np.array(
        [
            [1 + a + e + i, h - f, c - g, d - b],
            [h - f, 1 + a - e - i, b + d, c + g],
            [c - g, b + d, 1 - a + e - i, f + h],
            [d - b, c + g, f + h, 1 - a - e + i],
        ]
    )  # 4 q qᵀ: its longest row is the most precise
    largest = np.einsum("iin->ni", outer).argmax(axis=1)
    q = outer[largest, :, np.arange(len(largest))]
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    leading = q[np.arange(len(q)), (q != 0).argmax(axis=1)]
    return np.asarray(q * np.where(leading < 0, -1.0, 1.0)[:, None])


def angle_between(a: ArrayLike, b: ArrayLike) -> Floats:
    """Smallest angle between headings, degrees in [0, 180]; NaN where either is unknown."""
    turn = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)) % 360.0
    return np.minimum(turn, 360.0 - turn)


def _headings(heading: Floats) -> Floats:
    if np.isinf(heading).any():
        raise InputError(f"heading {int(np.flatnonzero(np.isinf(heading))[0])} is infinite; expected degrees or empty")
    return heading % 360.0


def _rotations(rotation: ArrayLike) -> Floats:
    r = np.asarray(rotation, np.float64)
    if r.ndim == 3 and r.shape[1:] == (3, 3):
        known = np.where(np.isnan(r).all(axis=(1, 2), keepdims=True), np.eye(3), r)
        error = np.abs(known @ known.transpose(0, 2, 1) - np.eye(3)).max(axis=(1, 2), initial=0.0)
        wrong = ~(error < 1e-2) | (np.linalg.det(known) < 0)
        if wrong.any():
            raise InputError(
                f"rotation {int(np.flatnonzero(wrong)[0])} is not a rotation matrix (not orthonormal, or mirrored)"
            )
    return r


def ground_axes(up: Axis) -> tuple[Floats, Floats, Floats]:
    """East, north and up as world vectors, where the world's axis `up` points away from the ground."""
    height = _axis(up)
    east = np.roll(np.abs(height), 1)
    return east, np.cross(height, east), height


def _axis(name: Axis) -> Floats:
    vector = np.zeros(3)
    vector["xyz".index(name[-1])] = -1.0 if name.startswith("-") else 1.0
    return vector


def _frozen(values: ArrayLike, shape: tuple[int | None, ...], name: str) -> Floats:
    array = np.array(values, np.float64, order="C")
    if array.ndim != len(shape) or any(w is not None and w != s for w, s in zip(shape, array.shape, strict=True)):
        raise InputError(f"{name} has shape {array.shape}; expected {tuple('N' if w is None else w for w in shape)}")
    array.flags.writeable = False
    return array


def _or(array: Floats | None, default: Floats) -> Floats:
    return default if array is None else array
