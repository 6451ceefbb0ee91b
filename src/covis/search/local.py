"""Re-ranking by local features of two photos that agree on one geometry.

    local:sift   local:h5=FEATURES.h5   local:h5=FEATURES.h5,MATCHES.h5

`h5` are files of features, and of their matches, that any tool made; a plugin may register other names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from covis.core import artifacts
from covis.core.arrays import Floats, Ids
from covis.core.errors import Damaged, InputError, unknown_name
from covis.core.files import load_arrays, replacing, sha256
from covis.core.foreign import first_line
from covis.core.machine import cache_folder
from covis.core.progress import Meter, say
from covis.core.registry import Registry
from covis.descriptors import Describer
from covis.images import ImageSet
from covis.ranking import Ranking
from covis.search.local_features import MOST, RATIO, SIDE, LocalFeatures, decoded, inliers, match, sift
from covis.search.rerank import RERANK_DEPTH, reordered

_IN_MEMORY = 512
"""Photos whose features stay in memory: at most about 0.3 GB."""
_STORED = {"xy": ("f", (None, 2)), "descriptors": ("f", (None, None)), "size": ("i", (2,))}


class Extractor(Protocol):
    """Finds features in photos."""

    @property
    def ratio(self) -> float | None:
        """Largest ratio of a match's distance to the second-best; None: every mutual match counts."""
        ...

    def facts(self) -> dict[str, Any]:
        """All that decides the features, as JSON values."""
        ...

    def __call__(self, path: Path) -> LocalFeatures: ...


EXTRACTORS: Registry[Callable[[Path | None], Extractor]] = Registry("local features")
"""Name → function from the file that was given, if any; a plugin may register another."""


@EXTRACTORS.register("sift")
class Sift:
    """SIFT (Lowe 2004), square roots of its histograms."""

    ratio = RATIO

    def __init__(self, file: Path | None) -> None:
        if file is not None:
            raise InputError(f"sift has no weights; write local:sift, not local:sift={file}")

    def facts(self) -> dict[str, Any]:
        """Name and bounds."""
        return {"features": "sift", "most": MOST, "side": SIDE}

    def __call__(self, path: Path) -> LocalFeatures:
        """Up to `MOST` features."""
        return sift(path, MOST, SIDE)


@EXTRACTORS.register("h5")
class StoredFeatures:
    """Features that another tool wrote, in the layout of hloc: a group per photo with key points and descriptors.

    `keypoints` (N, 2) in pixels, centre of the first at 0; `descriptors` (D, N); `image_size` (width, height). A group is
    found by the longest end of a photo's path that names one. A second file may hold matches, such as SuperGlue's: a group
    NAME/NAME (slashes in names as hyphens) with `matches0`, each key point's match in the other photo or −1.
    """

    ratio = None

    def __init__(self, file: Path | None) -> None:
        files = [] if file is None else [Path(part).expanduser() for part in str(file).split(",")]
        if not files or len(files) > 2 or not all(part.is_file() for part in files):
            raise InputError("local:h5 needs a file of features: local:h5=FEATURES.h5, or …=FEATURES.h5,MATCHES.h5")
        self.file, self.matches_file = files[0], files[1] if len(files) > 1 else None
        with _open_h5(self.file) as groups:
            if not len(groups):
                raise InputError(f"{self.file} holds no features; write a group per photo, as hloc does")

    def facts(self) -> dict[str, Any]:
        """The file by its checksum."""
        return {"features": "h5", "file": sha256(self.file)}

    def matches(self, first: Path, second: Path) -> Ids | None:
        """(M, 2) features of two photos that match by the file of matches; None without one."""
        if self.matches_file is None:
            return None
        with _open_h5(self.file) as groups:
            names = [self._name(groups, path).replace("/", "-") for path in (first, second)]
        with _open_h5(self.matches_file) as pairs:
            for a, b in (names, names[::-1]):
                if f"{a}/{b}" in pairs:
                    found = np.asarray(pairs[f"{a}/{b}/matches0"], np.int64)
                    matched = np.column_stack([np.flatnonzero(found >= 0), found[found >= 0]])
                    return matched if a == names[0] else matched[:, ::-1]
        raise InputError(f"{self.matches_file} has no pair {'/'.join(names)}; match the results that are re-ranked")

    def _name(self, groups: Any, path: Path) -> str:
        parts = path.resolve().parts
        names = ("/".join(parts[start:]) for start in range(1, len(parts)))
        name = next((name for name in names if name in groups and "keypoints" in groups[name]), None)
        if name is None:
            raise InputError(f"{self.file} has no features of {path}; name groups by paths below the folder of photos")
        return name

    def __call__(self, path: Path) -> LocalFeatures:
        """All features of a photo."""
        with _open_h5(self.file) as groups:
            name = self._name(groups, path)
            group = groups[name]
            try:
                xy = np.asarray(group["keypoints"], np.float64)[:, :2] + 0.5
                descriptors = np.asarray(group["descriptors"], np.float32).T
                size = tuple(int(side) for side in group["image_size"]) if "image_size" in group else None
            except (KeyError, IndexError, ValueError) as error:
                raise InputError(f"{self.file}: {name} is not a group of features ({first_line(error)})") from None
        if xy.ndim != 2 or len(xy) != len(descriptors):
            raise InputError(f"{self.file}: {name} has {len(xy)} key points and {len(descriptors)} descriptors")
        descriptors = descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-9)
        width, height = size or decoded(path).shape[1::-1]
        return LocalFeatures(xy, descriptors, (width, height))


def _open_h5(file: Path) -> Any:
    import h5py

    try:
        return h5py.File(file, "r")
    except OSError as error:
        raise InputError(f"{file} is not an HDF5 file ({first_line(error)}); give files as hloc writes them") from None


@dataclass(frozen=True, eq=False)
class FeatureCache:
    """Features of images by id: from memory, from the cache, else extracted now and kept in both.

    A file of the cache belongs to one state of one image file and to one extractor; a damaged one is made again.
    """

    path: Callable[[int], Path]
    """The file of an image."""
    extractor: Extractor
    folder: Path

    def __call__(self, image: int) -> LocalFeatures:
        """Features of image `image`."""
        return self._recent(image)

    @cached_property
    def _recent(self) -> Callable[[int], LocalFeatures]:
        return lru_cache(_IN_MEMORY)(self._features)

    def _features(self, image: int) -> LocalFeatures:
        path = self.path(image)
        file = self.file(path)
        if file.is_file():
            try:
                stored = load_arrays(file, _STORED, "it is made again")
                width, height = stored["size"].tolist()
                return LocalFeatures(
                    stored["xy"].astype(np.float64), stored["descriptors"].astype(np.float32), (width, height)
                )
            except Damaged as error:
                say(str(error))
        features = self.extractor(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, durable=False) as partial, partial.open("wb") as handle:
            np.savez(
                handle,
                xy=features.xy.astype(np.float32),
                descriptors=features.descriptors.astype(np.float16),
                size=np.array(features.size, np.int64),
            )
        return LocalFeatures(features.xy, features.descriptors.astype(np.float16).astype(np.float32), features.size)

    def file(self, path: Path) -> Path:
        """Where the features of a photo are kept."""
        status = path.stat() if path.is_file() else None
        state = (None, None) if status is None else (status.st_size, status.st_mtime_ns)
        key = artifacts.fingerprint(os.fsencode(path.resolve()), state)
        return self.folder / artifacts.fingerprint(self.extractor.facts()) / f"{key}.npz"


@dataclass(frozen=True)
class LocalReranker:
    """Orders the first `depth` results of each query by how many local features agree on one geometry."""

    features: str
    file: Path | None = None
    depth: int = RERANK_DEPTH

    @classmethod
    def parse(cls, text: str, depth: int | None = None) -> LocalReranker:
        """From `sift`, `h5=FILE` or what a plugin registered."""
        features, _, file = text.partition("=")
        if features not in EXTRACTORS:
            raise unknown_name("local features", features, EXTRACTORS)
        return cls(features, Path(file) if file else None, RERANK_DEPTH if depth is None else depth)

    @property
    def name(self) -> str:
        """As the command line knows it, without files."""
        return f"local:{self.features}"

    @cached_property
    def extractor(self) -> Extractor:
        """What finds the features."""
        return EXTRACTORS[self.features](self.file)

    def facts(self) -> dict[str, Any]:
        """Depth, features and matcher; weights by their checksum."""
        given = getattr(self.extractor, "matches_file", None)
        matcher = "mutual nearest" if given is None else f"file {sha256(given)}"
        return {"depth": self.depth, **self.extractor.facts(), "matcher": matcher}

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Callable[[Ranking], Ranking]:
        """Needs the photos themselves; any descriptors will do."""
        database_features = self._cache(database.path)
        query_features = database_features if queries is database else self._cache(queries.path)

        def scores(query: int, ids: Ids, distances: Any) -> Floats:
            return self._inliers(query_features, query, database_features, ids).astype(np.float64)

        return lambda ranking: reordered(ranking, self.depth, scores)

    def count(self, queries: Sequence[Path], database: Sequence[Path], ids: Ids) -> Ids:
        """(Q, K) features that query q and photo ids[q, k] of `database` have in common on one geometry; 0 for an id of −1."""
        query_features, database_features = self._cache(queries.__getitem__), self._cache(database.__getitem__)
        counts = np.zeros(ids.shape, np.int64)
        with Meter("matching local features", len(queries), "photos") as meter:
            for q, row in enumerate(ids):
                counts[q, row >= 0] = self._inliers(query_features, q, database_features, row[row >= 0])
                meter.advance()
        return counts

    def _cache(self, path: Callable[[int], Path]) -> FeatureCache:
        return FeatureCache(path, self.extractor, cache_folder() / "local")

    def _inliers(self, queries: FeatureCache, query: int, others: FeatureCache, ids: Ids) -> Ids:
        own, given, counts = queries(query), getattr(self.extractor, "matches", None), []
        for other in map(int, ids):
            pairs = given(queries.path(query), others.path(other)) if given else None
            features = others(other)
            counts.append(
                inliers(own, features, match(own, features, self.extractor.ratio) if pairs is None else pairs)
            )
        return np.array(counts, np.int64)
