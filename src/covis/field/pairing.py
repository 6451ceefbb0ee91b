"""Pairs of images that structure from motion should match, and what else its tools read: features, pose priors.

Files are those of hloc (`pairs.txt`, `global-feats.h5`) and COLMAP (match lists, databases).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import read_foreign_text, read_record, write_json, write_text, writing_hdf5
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import PLACE_M

GAP_S = 30.0
"""Images closer in time than this are neighbours, not loops."""
_WINDOW = 5
"""How many preceding images are checked for leading to the same place."""
KEPT = 3
"""How many nearest images of each frame are kept for that check."""
LEAST_OLDER = 20
"""With fewer older images it is not known what stands out."""
STANDS_OUT = 2.5
"""By how many robust standard deviations a match must be nearer than older images usually are."""
LEAST_AGREEMENT = 0.8
LEAST_KNOWN = 10
"""Probabilities are fitted once this many candidates are known to be right, and as many known to be wrong."""
REFIT = 25
"""A stream fits again after this many candidates."""
_USUAL = np.array([-9.2, 2.8, 3.0])
"""Fitted on a car's camera over 18 rounds of a race track on two days (MobileNetV2; 1,558 candidates, of any agreement). On
another stretch of it, whose candidates are easier, 99.9 % of those called at least 90 % likely were right within 25 m."""
HEADER = "# time_query time_match image_query image_match distance agreement probability"


class LoopClosure(NamedTuple):
    """A candidate: `query` shows what `match` showed earlier; both count frames in the order given."""

    query: int
    match: int
    distance: float
    """Between descriptors."""
    agreement: float
    """Share of the preceding frames that lead to the same place, forwards or backwards."""
    stands_out: float = float("nan")
    """By how many robust standard deviations it is nearer than older images usually are."""


def loop_closures(
    rows: Iterable[NDArray[np.floating]],
    time_s: Floats,
    *,
    gap_s: float = GAP_S,
    window: int = _WINDOW,
    least_agreement: float = LEAST_AGREEMENT,
) -> Iterator[LoopClosure]:
    """Candidates from descriptors (D,) of unit norm, frame by frame; times must ascend."""
    if len(time_s) > 1 and (np.diff(time_s) < 0).any():
        at = int(np.flatnonzero(np.diff(time_s) < 0)[0]) + 1
        raise InputError(f"time goes backwards at image {at}; sort the images by time, or cut the recording there")
    memory: NDArray[np.float32] = np.zeros((0, 0), np.float32)
    recent: deque[NDArray[np.int64]] = deque(maxlen=window)
    for i, row in enumerate(rows):
        vector = np.asarray(row, np.float32)
        if i == 0:
            memory = np.zeros((max(1, len(time_s)), len(vector)), np.float32)
        memory[i] = vector
        old = int(np.searchsorted(time_s, time_s[i] - gap_s, side="right"))
        distance = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * (memory[:old] @ vector)))
        near = standing_out(distance)
        shares = np.array([lead_up_share(int(j), recent) for j in near])
        if len(recent) == window and len(near) and shares.max() >= least_agreement:
            best = int(np.flatnonzero(shares >= least_agreement)[0])
            match = int(near[best])
            yield LoopClosure(i, match, float(distance[match]), float(shares[best]), float(nearness(distance)[match]))
        recent.append(near)


def standing_out(distance: NDArray[np.floating]) -> NDArray[np.int64]:
    """Ids of the nearest few of all older images that are clearly nearer than usual, nearest first."""
    if len(distance) < LEAST_OLDER:
        return np.zeros(0, np.int64)
    near = np.argsort(distance, kind="stable")[:KEPT].astype(np.int64)
    return near[nearness(distance)[near] >= STANDS_OUT]


def nearness(distance: NDArray[np.floating]) -> Floats:
    """By how many robust standard deviations each is nearer than usual."""
    usual = float(np.median(distance))
    spread = 1.4826 * float(np.median(np.abs(distance - usual)))
    return np.asarray((usual - distance) / max(spread, 1e-9), np.float64)


def lead_up_share(match: int, before: Iterable[NDArray[np.int64]]) -> float:
    """Share of the preceding frames whose own nearest images lead up to `match`, forwards or backwards.

    The match of a frame s steps earlier may lie 0 to 2 s steps from `match`, because speeds differ.
    """
    frames = list(before)
    if not frames:
        return 0.0
    counts = []
    for way in (1, -1):
        steps = range(len(frames), 0, -1)
        low_high = [sorted((match, match - way * 2 * s)) for s in steps]
        hits = [((near >= lo - 1) & (near <= hi + 1)).any() for near, (lo, hi) in zip(frames, low_high, strict=True)]
        counts.append(float(np.mean(hits)))
    return max(counts)


class Judgement(Protocol):
    """How likely a candidate is right, 0 to 1."""

    def __call__(self, loop: LoopClosure) -> float: ...


@dataclass(frozen=True, eq=False)
class LoopFit:
    """A logistic function of `stands_out` and `agreement`, learned from candidates whose positions are known."""

    weights: Floats
    """(3,) of 1, `stands_out`, `agreement`."""
    right_m: float = PLACE_M
    candidates: int = 0
    right: int = 0
    model: str = ""
    """Fingerprint of the model that described the images: distances of another model mean something else."""
    held_out: dict[str, Any] | None = None
    """How far off probabilities were, each half judged by a fit on the other; None where a half is too small to fit."""

    def __call__(self, loop: LoopClosure) -> float:
        """The probability of one candidate."""
        return float(_logistic(self.weights @ (1.0, loop.stands_out, loop.agreement)))

    def save(self, path: Path) -> None:
        """Writes the fit, for other recordings described by the same model."""
        write_json(path, {**asdict(self), "weights": self.weights.tolist(), "kind": _FIT})

    @classmethod
    def open(cls, path: Path) -> LoopFit:
        """What `save` wrote."""
        hint = "make it with: covis pairs RECORDING --loops --fit FILE -o loops.txt"
        kinds = {"kind": str, "weights": list, "right_m": (int, float), "candidates": int, "right": int, "model": str}
        record = read_record(path, kinds, hint)
        numbers = all(isinstance(weight, int | float) and np.isfinite(weight) for weight in record["weights"])
        if record["kind"] != _FIT or len(record["weights"]) != 3 or not numbers:
            raise InputError(f"{path} is not a fit of loop closures; {hint}")
        fields = {key: record[key] for key in ("right_m", "candidates", "right", "model", "held_out") if key in record}
        return cls(np.array(record["weights"], np.float64), **fields)


_FIT = "loop-fit"
usual_probability = LoopFit(_USUAL)
"""The probability that a candidate is right, where nothing is known about the recording."""


def fit_loops(loops: Sequence[LoopClosure], xy: Floats, *, right_m: float = PLACE_M, model: str = "") -> LoopFit:
    """Learns from candidates in order of time; (N, 2) positions of the frames. Needs `LEAST_KNOWN` right and wrong ones."""
    used, right = _known(loops, xy, right_m)
    weights = _weights(used, right)
    if weights is None:
        raise InputError(
            f"{len(used)} candidates have both positions known, {int(right.sum())} of them within {right_m:g} m; a fit needs "
            f"{LEAST_KNOWN} right ones and {LEAST_KNOWN} wrong ones: give a recording that comes back to its places"
        )
    middle = len(used) // 2
    halves = _weights(used[:middle], right[:middle]), _weights(used[middle:], right[middle:])
    calibration = None
    if halves[0] is not None and halves[1] is not None:
        chance = np.concatenate(
            [_logistic(_features(used[:middle]) @ halves[1]), _logistic(_features(used[middle:]) @ halves[0])]
        )
        calibration = _calibration(chance, right)
    return LoopFit(weights, right_m, len(used), int(right.sum()), model, calibration)


def _known(loops: Sequence[LoopClosure], xy: Floats, right_m: float) -> tuple[list[LoopClosure], Floats]:
    """Candidates whose two positions are known, and (N,) 1 for right ones."""
    ends = np.array([(loop.query, loop.match) for loop in loops], np.int64).reshape(-1, 2)
    apart = np.linalg.norm(xy[ends[:, 0]] - xy[ends[:, 1]], axis=1)
    known = np.flatnonzero(~np.isnan(apart))
    return [loops[int(i)] for i in known], (apart[known] <= right_m).astype(np.float64)


def _features(loops: Sequence[LoopClosure]) -> Floats:
    return np.array([[1.0, loop.stands_out, loop.agreement] for loop in loops]).reshape(-1, 3)


def _weights(loops: Sequence[LoopClosure], right: Floats) -> Floats | None:
    if min((right == 1).sum(), (right == 0).sum()) < LEAST_KNOWN:
        return None
    return _logistic_fit(_features(loops), right)


def _calibration(chance: Floats, right: Floats) -> dict[str, Any]:
    """Mean gap between probability and share of right ones over ten bins, and how many called 90 % likely are right."""
    bins = np.minimum((chance * 10).astype(int), 9)
    gaps = [abs(float(chance[bins == b].mean() - right[bins == b].mean())) * (bins == b).sum() for b in np.unique(bins)]
    likely = chance >= 0.9
    share = float(right[likely].mean()) if likely.any() else None
    return {"ece": float(sum(gaps) / len(chance)), "called_90": int(likely.sum()), "right_of_them": share}


def fitted_probability(loops: Sequence[LoopClosure], xy: Floats, right_m: float = PLACE_M) -> Judgement | None:
    """A fit on this recording alone, by distance and agreement; None where too few positions are known for it."""
    used, right = _known(loops, xy, right_m)
    if min((right == 1).sum(), (right == 0).sum()) < LEAST_KNOWN:
        return None
    weight = _logistic_fit(np.array([[1.0, loop.distance, loop.agreement] for loop in used]), right)
    return lambda loop: float(_logistic(weight @ (1.0, loop.distance, loop.agreement)))


def _logistic_fit(features: Floats, right: Floats) -> Floats:
    """(3,) weights of features (N, 3), the first of them 1, by Newton's method with a little ridge on scaled features."""
    centre, spread = features.mean(axis=0), features.std(axis=0)
    centre[0], spread = 0.0, np.where(spread > 1e-9, spread, 1.0)
    scaled = (features - centre) / spread
    weight = np.zeros(3)
    for _ in range(50):
        share = _logistic(scaled @ weight)
        slope = scaled.T @ (share - right) + 1e-2 * weight
        bend = (scaled * (share * (1 - share))[:, None]).T @ scaled + 1e-2 * np.eye(3)
        step = np.linalg.solve(bend, slope)
        weight -= step
        if np.abs(step).max() < 1e-9:
            break
    plain: Floats = weight / spread
    plain[0] = weight[0] - (weight[1:] * centre[1:] / spread[1:]).sum()
    return plain


def _logistic(value: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.clip(value, -50.0, 50.0)))


class LoopJudge:
    """The probability of each candidate as it comes, from those that came before it."""

    def __init__(self, xy: Floats, usual: Judgement = usual_probability) -> None:
        """xy: (N, 2) positions of the frames, NaN where unknown. usual: used until enough of them are known."""
        self._xy, self._usual, self._seen, self._next = xy, usual, list[LoopClosure](), 2 * LEAST_KNOWN
        self._fitted: Judgement | None = None

    def __call__(self, loop: LoopClosure) -> float:
        """By a fit on this recording so far, or by `usual` before there is one."""
        if len(self._seen) >= self._next:
            self._fitted, self._next = fitted_probability(self._seen, self._xy), len(self._seen) + REFIT
        self._seen.append(loop)
        return (self._fitted or self._usual)(loop)


def line(loop: LoopClosure, names: tuple[str, str], times: tuple[float, float], probability: float) -> str:
    """One candidate as text, in the columns of `HEADER`."""
    start = f"{times[0]:.6f} {times[1]:.6f} {names[0]} {names[1]}"
    return f"{start} {loop.distance:.5f} {loop.agreement:.2f} {probability:.4f}"


# Pairs of images that structure from motion should match, and what else its tools read: features, pose priors.
#
# Files are those of hloc (`pairs.txt`, `global-feats.h5`) and COLMAP (match lists, databases).


ImagePairs = NDArray[np.int64]
"""(P, 2) ids of images, best first for each image."""
EXHAUSTIVE = 30
"""Sets of up to this many images are paired exhaustively: 435 pairs."""
DESCRIPTOR = "global_descriptor"
"""hloc's name of the global feature of an image."""


def exhaustive(queries: int, database: int | None = None) -> ImagePairs:
    """Every pair of two sets, or every pair i < j of one."""
    if database is None:
        return np.stack(np.triu_indices(queries, 1), axis=1).astype(np.int64)
    grid = np.indices((queries, database)).reshape(2, -1).T
    return np.ascontiguousarray(grid, np.int64)


def by_ranking(
    ids: NDArray[np.int64], per_image: int, *, one_set: bool, skip: NDArray[np.bool_] | None = None
) -> ImagePairs:
    """Each image with its first `per_image` of a ranking (N, K), −1 for none; within one set, no image with itself.

    skip: (N, K) results that do not count, such as those of the image's own group.
    """
    usable = ids >= 0
    if one_set:
        usable &= ids != np.arange(len(ids))[:, None]
    if skip is not None:
        usable &= ~skip
    kept = usable & (np.cumsum(usable, axis=1) <= per_image)
    rows, columns = np.nonzero(kept)
    return unique(np.column_stack([rows, ids[rows, columns]]), one_set=one_set)


def by_overlap(graph: SimilarityGraph, per_image: int, least: float = 0.0, *, one_set: bool) -> ImagePairs:
    """Each image with the `per_image` that it shares most with, of those with ψ ≥ `least`."""
    rows, columns, psi = graph.rows, np.asarray(graph.indices, np.int64), graph.psi
    use = (psi >= least) & (psi > 0)
    if one_set:
        use &= rows != columns
    rows, columns, psi = rows[use], columns[use], psi[use]
    order = np.lexsort((columns, -psi, rows))
    rows, columns = rows[order], columns[order]
    first = np.searchsorted(rows, rows)
    kept = np.arange(len(rows)) - first < per_image
    return unique(np.column_stack([rows[kept], columns[kept]]), one_set=one_set)


def unique(pairs: ImagePairs, *, one_set: bool) -> ImagePairs:
    """Each pair once, in the order of its first mention; in one set (i, j) and (j, i) are one pair."""
    key = np.sort(pairs, axis=1) if one_set else pairs
    _, first = np.unique(key, axis=0, return_index=True)
    return np.ascontiguousarray(pairs[np.sort(first)], np.int64)


def joined_pairs(*parts: ImagePairs, one_set: bool) -> ImagePairs:
    """The pairs of all lists, each once, image by image."""
    whole = np.concatenate(parts)
    return unique(whole[np.argsort(whole[:, 0], kind="stable")], one_set=one_set)


def write_pairs(path: Path | str, pairs: ImagePairs, queries: ImageSet, database: ImageSet) -> None:
    """`query map` on each line: what hloc, and COLMAP as a match list, read."""
    write_text(Path(path), pairs_text(pairs, queries, database))


def pairs_text(pairs: ImagePairs, queries: ImageSet, database: ImageSet) -> str:
    """The lines of such a file."""
    return "".join(f"{a} {b}\n" for a, b in _named(pairs, queries, database))


def _named(pairs: ImagePairs, queries: ImageSet, database: ImageSet) -> Iterator[tuple[str, str]]:
    spaced = [i for side, ids in ((queries, pairs[:, 0]), (database, pairs[:, 1])) for i in np.unique(ids)
              if any(c in b" \t\r\n" for c in side.names[i])]  # fmt: skip
    if spaced:
        raise InputError(
            f"{len(spaced)} names have spaces, which lists of pairs cannot hold (first: {queries.name(int(spaced[0]))!r}); "
            "rename those files"
        )
    for i, j in pairs:
        yield queries.name(int(i)), database.name(int(j))


def read_pairs(path: Path | str) -> list[tuple[str, str]]:
    """The pairs of a file."""
    pairs = []
    for number, line in enumerate(read_foreign_text(path).split("\n"), 1):
        cells = line.split()
        if cells and len(cells) != 2:
            raise InputError(f"{path}: line {number} has {len(cells)} names; expected two")
        if cells:
            pairs.append((cells[0], cells[1]))
    return pairs


def write_global_features(path: Path | str, names: Sequence[str], rows: Iterable[NDArray[Any]]) -> None:
    """hloc's `global-feats.h5`: a group for each image name, its descriptor (D,) inside."""

    with writing_hdf5(path, libver="latest") as file:
        for name, row in zip(names, rows, strict=True):
            file.create_group(name).create_dataset(DESCRIPTOR, data=np.asarray(row, np.float32))


def read_global_features(path: Path | str, names: Sequence[str]) -> NDArray[np.float32]:
    """(N, D) descriptors by name, as hloc or covis wrote them."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            missing = next((n for n in names if n not in file or DESCRIPTOR not in file[n]), None)
            if missing is not None:
                raise InputError(f"{path} has no {DESCRIPTOR} of {missing}; extract features of all images")
            return np.stack([np.asarray(file[n][DESCRIPTOR], np.float32) for n in names])
    except OSError as error:
        raise InputError(f"{path} is not an HDF5 file ({error})") from None


def write_pose_priors(path: Path | str, images: ImageSet, deviation_m: float = 5.0) -> int:
    """Positions of `images` into a COLMAP database as priors of its mapper; how many were written.

    Images that the database has keep their features; others are added with their cameras. On Earth positions go in as
    WGS84, elsewhere as metres.
    """
    try:
        import pycolmap
    except ImportError:
        raise InputError("writing a COLMAP database needs pycolmap: pip install 'covis[sfm]'") from None
    if not images.poses.metric:
        raise InputError("pose priors are in metres, and the scale of these poses is unknown; give --scale first")
    places, system = _prior_positions(images)
    database = pycolmap.Database.open(str(path))
    try:
        known = {image.name: image for image in database.read_all_images()}
        placed = {prior.corr_data_id.id: prior for prior in database.read_all_pose_priors()}
        cameras: dict[Any, int] = {}
        written = 0
        for i in np.flatnonzero(images.poses.known):
            image = known.get(images.name(int(i))) or _add_image(pycolmap, database, images, int(i), cameras)
            prior = placed.get(image.image_id) or pycolmap.PosePrior(corr_data_id=image.data_id)
            prior.position = places[i]
            prior.position_covariance = np.eye(3) * deviation_m**2
            prior.coordinate_system = system
            if image.image_id in placed:
                database.update_pose_prior(prior)
            else:
                database.write_pose_prior(prior)
            written += 1
    finally:
        database.close()
    return written


def _prior_positions(images: ImageSet) -> tuple[Floats, Any]:
    import pycolmap

    height = images.poses.centre[:, 2]
    if images.poses.frame:
        degrees = images.poses.latlon()
        return np.column_stack([degrees, np.nan_to_num(height)]), pycolmap.PosePriorCoordinateSystem.WGS84
    return np.nan_to_num(images.poses.centre), pycolmap.PosePriorCoordinateSystem.CARTESIAN


def _add_image(pycolmap: Any, database: Any, images: ImageSet, i: int, cameras: dict[Any, int]) -> Any:
    """A new image of the database, and its camera where no image before it had the same."""
    from covis.reading.cameras import camera_of
    from covis.reading.trajectories import image_size

    camera = camera_of(images, i)
    width, height = (camera.width, camera.height) if camera else image_size(images.path(i))
    key = camera or (width, height)
    if key not in cameras:
        if camera is not None:
            new = pycolmap.Camera(model=camera.model, width=width, height=height, params=list(camera.params))
        else:  # COLMAP's own guess: a focal length of 1.2 times the longer side
            new = pycolmap.Camera.create_from_model_name(0, "SIMPLE_RADIAL", 1.2 * max(width, height), width, height)
        cameras[key] = database.write_camera(new)
    image = pycolmap.Image(name=images.name(i), camera_id=cameras[key])
    image.image_id = database.write_image(image)
    return image
