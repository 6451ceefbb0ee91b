"""Label rules: (queries, database) → graph of graded similarities, with what labelling will cost.

A rule is a frozen dataclass: its fields are all that decides the labels, and they travel with the graph. Matching a set
with itself (one object twice) gives a symmetric graph without its diagonal. A new rule is a subclass of `LabelRule`
with `@RULES.register("name")` above it; recipes and `covis label --rule` then know it by that name.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.registry import Registry
from covis.core.settings import above, at_least, one_of
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.assembly import Advance, LabelRows, Members, build_graph
from covis.labels.clouds import PointCloud, read_points
from covis.labels.exchange import read_edges, read_hloc, read_saved
from covis.labels.fov import MEASURES, Measure, Views, per_side, similarity, views
from covis.labels.grid import Circles, meeting_pairs
from covis.labels.released import read_released
from covis.labels.surface import surface_graph
from covis.labels.tracks import Tracks, read_tracks, track_graph
from covis.poses import PLACE_M, Axis, angle_between, require_metres

_BYTES_A_PAIR = {False: 8, True: 5}
"""A column in four bytes and ψ in four, or in one where it is quantised."""


class Estimate(NamedTuple):
    """The expected cost of labelling."""

    pairs: int
    seconds: float
    megabytes: float


@runtime_checkable
class LabelRule(Protocol):
    """Decides ψ of every pair; a subclass need only define `__call__`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    estimate_sample: ClassVar[tuple[int, int | None]] = (256, None)
    """How many queries, and how many map images (None: all), an estimate labels."""

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair; `advance` is called with the number of queries labelled since the previous call."""
        ...

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """What travels with the graph: the rule, its parameters and both sides' fingerprints."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"rule": type(self).__name__, "measure": type(self).__name__, **given, **of_images(queries, database)}

    def estimate(self, queries: ImageSet, database: ImageSet, *, quantised: bool = False) -> Estimate:
        """Labels an even sample and scales up; the first call may include the compiler's time."""
        if not len(queries) or not len(database):
            return Estimate(0, 0.0, 0.0)
        some, one = _even_sample(queries, self.estimate_sample[0]), queries.subset([0])
        part = _even_sample(database, self.estimate_sample[1])
        self(one, part)
        start = time.perf_counter()
        self(one, part)  # measures the time that does not grow with the queries
        fixed = time.perf_counter() - start
        graph = self(some, part)
        share = len(queries) * len(database) / (len(some) * len(part))
        selves = len(queries) if queries is database else 0  # a sample is another set, so each image met itself
        seconds = fixed + max(0.0, time.perf_counter() - start - 2 * fixed) * share
        pairs = max(0.0, graph.pairs * share - selves)
        return Estimate(round(pairs), seconds, pairs * _BYTES_A_PAIR[quantised] / 1e6)


RULES: Registry[type[LabelRule]] = Registry("rule")
"""Name in recipes and on the command line → class of the rule."""


def of_images(queries: ImageSet, database: ImageSet) -> dict[str, Any]:
    """The facts that identify the images of a graph."""
    mine = queries.fingerprint()
    return {
        "one_set": queries is database,
        "queries": mine,
        "database": mine if queries is database else database.fingerprint(),
    }


@RULES.register("fov")
@dataclass(frozen=True)
class FovOverlap(LabelRule):
    """ψ = how much the fields of view of two cameras share on the ground.

    A field of view is the sector of `radius_m` and `fov_deg` around the heading; a camera of unknown heading sees the
    full circle.
    """

    radius_m: float | tuple[float, float] = 50.0
    """Depth of view in metres; a tuple is (queries, database)."""
    fov_deg: float | tuple[float, float] = 90.0
    """Opening in degrees up to 360; a tuple is (queries, database)."""
    measure: Measure = "overlap"
    """`overlap`: ÷ the smaller field of view; `iou`: ÷ the union."""
    within_group: bool = False
    """Only pairs of one group (cities may share coordinates)."""
    max_angle_deg: float | None = None
    """Leave out pairs whose headings differ by more; unknown headings pass."""
    facing: bool = False
    """Multiply ψ by min(1, 1 + cos Δheading): cameras that look at each other share space but hardly a surface."""
    zero_below: float = 1e-9
    """ψ below this counts as 0; the kernel is exact to about 1e-11."""
    exponent: float = 1.0
    """ψ is the overlap to this power: 2 where near and far views of one place soon look different, as in photos."""

    def __post_init__(self) -> None:
        for radius_m, fov_deg in zip(per_side(self.radius_m), per_side(self.fov_deg), strict=True):
            above(0, radius_m=radius_m, fov_deg=fov_deg)  # type: ignore[arg-type]
            if fov_deg > 360:  # type: ignore[operator]
                raise InputError(f"fov_deg is {fov_deg}; expected degrees above 0, up to 360")
        one_of(MEASURES, measure=self.measure)
        at_least(0, zero_below=self.zero_below)
        above(0, exponent=self.exponent)
        _gate(self.max_angle_deg)

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """What travels with the graph; an exponent of 1, which changes nothing, is left out."""
        facts = super().facts(queries, database)
        return {key: value for key, value in facts.items() if key != "exponent" or value != 1.0}

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        (ra, rb), (fa, fb) = per_side(self.radius_m), per_side(self.fov_deg)
        if queries is database and (ra != rb or fa != fb):
            raise InputError("one set matched with itself takes one radius_m and one fov_deg for both sides")
        require_positions(queries, database, metres=True)
        a = views(queries.poses.xy, queries.poses.heading, ra, fa)
        b = a if queries is database else views(database.poses.xy, database.poses.heading, rb, fb)

        def label(i: Members, j: Members) -> Iterator[LabelRows]:
            headings = queries.poses.heading[i], database.poses.heading[j]
            return self._overlapping(a.take(i), b.take(j), headings, queries is database)

        return build_graph(queries, database, label, self.facts(queries, database), advance)

    def _overlapping(self, a: Views, b: Views, headings: tuple[Floats, Floats], one_set: bool) -> Iterator[LabelRows]:
        """ψ of every pair that overlaps; unknown headings are NaN."""
        for ids, row, j in meeting_pairs(enclosing_circles(a), enclosing_circles(b), one_set):
            i = ids[row]
            psi = similarity(a.take(i), b.take(j), self.measure)
            if self.facing or self.max_angle_deg is not None:
                turn = angle_between(headings[0][i], headings[1][j])
                psi *= np.fmin(1.0, 1.0 + np.cos(np.radians(turn))) if self.facing else 1.0
                psi[turn > _gate(self.max_angle_deg)] = 0.0
            kept = (psi > 0) & (psi >= self.zero_below)
            graded = psi[kept]
            if self.exponent != 1:  # a stored ψ stays above 0
                graded = np.maximum(graded.astype(np.float32) ** self.exponent, np.finfo(np.float32).tiny)
            yield LabelRows(ids, row[kept], j[kept], graded)


def enclosing_circles(view: Views) -> Circles:
    """The smallest circle around each field of view: half the area of the camera's own circle, at 90°."""
    half = np.radians(0.5 * view.fov)
    cosine, sine = np.cos(half), np.sin(half)
    reach = np.where(view.fov <= 90.0, 0.5 / np.maximum(cosine, 0.5), np.where(view.fov <= 180.0, sine, 1.0))
    ahead = np.where(view.fov <= 90.0, reach, np.where(view.fov <= 180.0, cosine, 0.0)) * view.radius
    heading = np.radians(view.heading)
    return Circles(view.x + ahead * np.sin(heading), view.y + ahead * np.cos(heading), reach * view.radius)


@RULES.register("radius")
@dataclass(frozen=True)
class Radius(LabelRule):
    """ψ = 1 for pairs within `radius_m` (and `max_angle_deg`, where both headings are known)."""

    radius_m: float = PLACE_M
    """Metres, inclusive."""
    max_angle_deg: float | None = None
    """Degrees between headings, inclusive; unknown headings pass."""
    within_group: bool = False
    """Only pairs of one group (cities may share coordinates)."""

    def __post_init__(self) -> None:
        above(0, radius_m=self.radius_m)
        _gate(self.max_angle_deg)

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        require_positions(queries, database, metres=True)
        gate, half = _gate(self.max_angle_deg), 0.5 * self.radius_m * (1 + 1e-12)

        def label(mine: Members, theirs: Members) -> Iterator[LabelRows]:
            a, b = queries.poses.xy[mine], database.poses.xy[theirs]
            mine_circles, their_circles = (Circles(xy[:, 0], xy[:, 1], np.full(len(xy), half)) for xy in (a, b))
            for ids, row, j in meeting_pairs(mine_circles, their_circles, queries is database):
                i = ids[row]
                turn = angle_between(queries.poses.heading[mine][i], database.poses.heading[theirs][j])
                kept = (np.hypot(*(b[j] - a[i]).T) <= self.radius_m) & ~(turn > gate)
                yield LabelRows(ids, row[kept], j[kept], np.ones(int(kept.sum())))

        return build_graph(queries, database, label, self.facts(queries, database), advance)

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """What travels with the graph."""
        return {**super().facts(queries, database), "measure": "radius"}


PLACE_COLUMN = "place"


def place_names(images: ImageSet, column: str = PLACE_COLUMN) -> NDArray[np.str_]:
    """(N,) the place of each image: its entry in the column, else its group, else (in one group) its square of 25 m."""
    if column in images.columns:
        return np.asarray(images.columns[column]).astype(str)
    if len(images.group_names) > 1:
        return np.array(images.group_names)[images.group].astype(str)
    cells = np.floor(np.nan_to_num(images.poses.xy) / PLACE_M).astype(np.int64)
    return np.array([f"{x} {y}" for x, y in cells.tolist()], str)


@RULES.register("same_place")
@dataclass(frozen=True)
class SamePlace(LabelRule):
    """ψ = 1 for images of one place: the same entry in a column, or the same group where there is none."""

    column: str = PLACE_COLUMN

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair; an image with itself has none."""
        names = np.concatenate([place_names(images, self.column) for images in (queries, database)])
        code = np.unique(names, return_inverse=True)[1]
        rows, of = code[: len(queries)], code[len(queries) :]
        order = np.argsort(of, kind="stable")
        low, high = (np.searchsorted(of[order], rows, side) for side in ("left", "right"))
        i = np.repeat(np.arange(len(rows)), high - low)
        first = np.repeat(np.cumsum(high - low) - (high - low), high - low)
        j = order[np.arange(len(i)) - first + np.repeat(low, high - low)]
        kept = i != j if queries is database else np.ones(len(i), bool)
        if advance is not None:
            advance(len(queries))
        ones, facts = np.ones(int(kept.sum())), self.facts(queries, database)
        return SimilarityGraph.from_edges(i[kept], j[kept], ones, (len(rows), len(of)), facts)


@RULES.register("surface")
@dataclass(frozen=True)
class SurfaceOverlap(LabelRule):
    """ψ = how much two cameras with 6DOF poses and intrinsics see of the same points of a scene."""

    estimate_sample: ClassVar[tuple[int, int | None]] = (32, 32)
    """Few, because their depth maps may have to be read."""

    cloud: PointCloud | str | None = None
    """The scene's points in the images' frame, or their file; without one they are fused from the images' depth maps."""
    cloud_up: Axis = "z"
    """The axis of the file's frame that points up; a dataset's own rule has that of the dataset's poses (7Scenes: -y)."""
    measure: Measure = "iou"
    """Shared points ÷ those seen by either (`iou`), or by the one that sees fewer (`overlap`)."""
    within_group: bool = False
    """Only pairs of one group, each group with its own cloud where clouds are fused."""
    zero_below: float = 1e-9
    """ψ below this counts as 0."""

    def __post_init__(self) -> None:
        one_of(MEASURES, measure=self.measure)
        one_of(get_args(Axis), cloud_up=self.cloud_up)
        at_least(0, zero_below=self.zero_below)

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        require_positions(queries, database)
        facts = self.facts(queries, database)
        return surface_graph(queries, database, self.points, facts=facts, advance=advance)

    @cached_property
    def points(self) -> PointCloud | None:
        """The cloud, read where only its file is named."""
        return read_points(self.cloud, up=self.cloud_up) if isinstance(self.cloud, str) else self.cloud

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """What travels with the graph; a cloud that is fused while labelling is described then."""
        all_facts, cloud = super().facts(queries, database), self.points
        described = {} if cloud is None else {"cloud": cloud.describe()}
        return {k: v for k, v in all_facts.items() if k not in ("cloud", "cloud_up")} | described


@RULES.register("tracks")
@dataclass(frozen=True)
class TrackOverlap(LabelRule):
    """ψ = how many points of a sparse model two of its images both see, ÷ points. Needs neither depth nor metres."""

    tracks: Tracks | str
    """Which points each image sees, or the path of the COLMAP model that has them."""
    measure: Measure = "overlap"
    """Shared points ÷ those of the one that sees fewer (`overlap`), or of either (`iou`)."""
    within_group: bool = False
    """Only pairs of one group."""

    def __post_init__(self) -> None:
        one_of(MEASURES, measure=self.measure)

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        tracks = self.model
        facts = dataclasses.replace(self, tracks=tracks).facts(queries, database)
        return track_graph(tracks, queries, database, facts, advance)

    @property
    def model(self) -> Tracks:
        """The tracks, read where only their model is named."""
        return read_tracks(self.tracks) if isinstance(self.tracks, str) else self.tracks

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """What travels with the graph."""
        return super().facts(queries, database) | {"tracks": self.model.describe()}


@RULES.register("graph")
@dataclass(frozen=True)
class GraphFile(LabelRule):
    """ψ as a file holds it: a folder of `covis label`, an edge list, a pair list, or the authors' HDF5."""

    path: str
    """Folder, .csv, .parquet, .txt (hloc), .h5; or a folder of the authors' `<group>_gt.h5`, one per city."""
    key: str = "fov"
    """HDF5: `fov` (graded) or `sim` (binary)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """The labels of these images; an error where the file is for other images."""
        graph = self._read(Path(self.path), queries, database)
        if advance is not None:
            advance(len(queries))
        return dataclasses.replace(graph, facts={**graph.facts, **self._source(), **of_images(queries, database)})

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """The file and the images; the graph that is read adds its own facts."""
        return {**self._source(), **of_images(queries, database)}

    def estimate(self, queries: ImageSet, database: ImageSet, *, quantised: bool = False) -> Estimate:
        """Nothing is labelled; how many pairs the file holds is not known before it is read."""
        return Estimate(0, 0.0, 0.0)

    def _source(self) -> dict[str, Any]:
        return {"rule": "GraphFile", "path": self.path, "key": self.key}

    def _read(self, path: Path, queries: ImageSet, database: ImageSet) -> SimilarityGraph:
        if not path.exists():
            raise InputError(f"{path} does not exist; give the folder or file of the labels as path")
        if (path / "manifest.json").is_file():
            return read_saved(path, queries, database)
        if path.is_dir() or path.suffix.lower() in (".h5", ".hdf5"):
            return read_released(path, queries, database, self.key)
        return read_hloc(path, queries, database) if path.suffix == ".txt" else read_edges(path, queries, database)


def require_positions(*sets: ImageSet, metres: bool = False) -> None:
    """Raises an error that counts and names images without a position; labelling them 0 would be wrong.

    With `metres`, positions of unknown scale are refused too.
    """
    for images in sets:
        if metres:
            require_metres(images.poses, str(images.root))
        unknown = np.flatnonzero(~images.poses.known)
        if len(unknown):
            raise InputError(
                f"{len(unknown)} of {len(images)} images have no position (first: {images.name(int(unknown[0]))}); "
                "leave them out, for instance with images.subset(images.poses.known)"
            )


def _gate(max_angle_deg: float | None) -> float:
    """The largest angle between headings, degrees; 360 for none."""
    if max_angle_deg is not None and not 0 <= max_angle_deg <= 180:
        raise InputError(f"max_angle_deg is {max_angle_deg}; expected degrees from 0 to 180, or None")
    return 360.0 if max_angle_deg is None else float(max_angle_deg)


def _even_sample(images: ImageSet, most: int | None) -> ImageSet:
    if most is None or most >= len(images):
        return images
    return images.subset(np.unique(np.linspace(0, len(images) - 1, most).astype(np.int64)))
