"""A set of images: where the files are, what they are called, where they were taken."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis import poses as _poses
from covis.core.artifacts import fingerprint
from covis.core.card import card
from covis.core.errors import InputError
from covis.core.tables import counted
from covis.poses import Poses

_PIECE = 1 << 16


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Aligned names, poses and groups of images under one root.

    >>> from covis.poses import Poses
    >>> images = ImageSet.of("photos", ["a.jpg", "b.jpg"], Poses([[0.0, 0.0], [5.0, 0.0]], [90.0, 90.0]))
    >>> len(images), images.path(1).as_posix()
    (2, 'photos/b.jpg')
    """

    root: Path
    names: NDArray[np.bytes_]
    """(N,) paths relative to root, as file-system bytes: compact at a million names, and any file name works."""
    poses: Poses
    group: NDArray[np.int32]
    """(N,) index into `group_names`: the city, scene, sequence or author of each image."""
    group_names: tuple[str, ...] = ("",)
    intrinsics: NDArray[np.float64] | None = None
    """(N, 6) fx, fy, cx, cy, width, height in pixels."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further aligned facts a protocol may need (time stamps, conditions)."""

    def __post_init__(self) -> None:
        n = len(self.names)
        object.__setattr__(self, "root", Path(self.root))
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        lengths = {"poses": len(self.poses), "group": len(self.group)} | {k: len(v) for k, v in self.columns.items()}
        if self.intrinsics is not None:
            lengths["intrinsics"] = len(self.intrinsics)
        wrong = [f"{k} {v}" for k, v in lengths.items() if v != n]
        if wrong:
            raise InputError(f"an image set of {n} names has other lengths: {', '.join(wrong)}")
        if n and (self.group.min() < 0 or self.group.max() >= len(self.group_names)):
            raise InputError(f"group codes go to {self.group.max()}, but there are {len(self.group_names)} group names")

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping cannot be pickled, so it could not be sent to worker processes.
        fields = (self.root, self.names, self.poses, self.group, self.group_names, self.intrinsics, dict(self.columns))
        return type(self), fields

    @classmethod
    def of(
        cls,
        root: Path | str,
        names: Iterable[str | bytes] | NDArray[np.bytes_],
        poses: Poses,
        group: Sequence[str] | NDArray[Any] | str = "",
        *,
        intrinsics: ArrayLike | None = None,
        columns: Mapping[str, NDArray[Any]] | None = None,
    ) -> ImageSet:
        """Builds a set from plain names and group labels (one for all, or one each)."""
        encoded = encode_names(names)
        codes = np.zeros(len(encoded), np.int32)
        labels: tuple[str, ...] = (group,) if isinstance(group, str) else ()
        if not isinstance(group, str):
            unique, inverse = np.unique(np.asarray(group).astype(str), return_inverse=True)
            codes, labels = inverse.astype(np.int32), tuple(unique.tolist())
        return cls(
            Path(root),
            encoded,
            poses,
            codes,
            labels or ("",),
            None if intrinsics is None else np.asarray(intrinsics, np.float64),
            columns or {},
        )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ImageSet({str(self.root)!r}, {len(self)} images, {self._groups()}, {self._known()} with a position)"

    def _repr_html_(self) -> str:
        headings = int(np.sum(~np.isnan(self.poses.heading)))
        facts = {"root": self.root, "images": len(self), "groups": self._groups(), "positions": self._known(),
                 "headings": headings, "frame": "on Earth" if self.poses.frame else "metres"}  # fmt: skip
        return card("ImageSet", facts, self.poses.xy)

    def _groups(self) -> str:
        return counted(len(np.unique(self.group)), "group")

    def _known(self) -> int:
        return int(self.poses.known.sum())

    def name(self, i: int) -> str:
        """The i-th name as text."""
        return os.fsdecode(self.names[i])

    def path(self, i: int) -> Path:
        """The i-th file."""
        return self.root / self.name(i)

    def subset(self, ids: ArrayLike) -> ImageSet:
        """The images at `ids` (indices or mask), in that order."""
        pick = np.asarray(ids)
        return replace(
            self,
            names=self.names[pick],
            poses=self.poses.subset(pick),
            group=self.group[pick],
            intrinsics=None if self.intrinsics is None else self.intrinsics[pick],
            columns={k: v[pick] for k, v in self.columns.items()},
        )

    def fingerprint(self) -> str:
        """Changes with any name, pose, group or intrinsics; not with the place of the root."""
        intrinsics = np.zeros(0) if self.intrinsics is None else self.intrinsics
        return fingerprint(trimmed(self.names), self.poses.fingerprint(), self.group, self.group_names, intrinsics)


def concatenate(parts: Sequence[ImageSet]) -> ImageSet:
    """One set after another; all must share root and frame. Groups of one name become one group."""
    roots = {p.root for p in parts}
    if len(roots) != 1:
        raise InputError(f"image sets of different roots cannot be joined: {sorted(map(str, roots))}")
    labels = sorted({label for p in parts for label in p.group_names})
    code = {label: i for i, label in enumerate(labels)}
    groups = [np.array([code[label] for label in p.group_names], np.int32)[p.group] for p in parts]
    shared = set.intersection(*(set(p.columns) for p in parts))
    intrinsics = [p.intrinsics for p in parts if p.intrinsics is not None]
    return ImageSet(
        roots.pop(),
        np.concatenate([p.names for p in parts]),
        _poses.concatenate_poses([p.poses for p in parts]),
        np.concatenate(groups),
        tuple(labels),
        np.concatenate(intrinsics) if len(intrinsics) == len(parts) else None,
        {k: np.concatenate([p.columns[k] for p in parts]) for k in sorted(shared)},
    )


def trimmed(names: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """The same names in the least width, so that equal ones have equal bytes; copied only if the width changes."""
    pieces = (names[start : start + _PIECE] for start in range(0, len(names), _PIECE))
    width = max((int(np.char.str_len(piece).max()) for piece in pieces), default=1)
    return names.astype(f"S{max(1, width)}", copy=False)


def encode_names(names: Iterable[str | bytes] | NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """Names as one array of file-system bytes."""
    if isinstance(names, np.ndarray) and names.dtype.kind == "S":
        return names
    return np.array([os.fsencode(n) for n in names], dtype=bytes)


def find_names(names: NDArray[np.bytes_], wanted: Iterable[bytes]) -> NDArray[np.int64]:
    """(W,) where each wanted name stands, by the last part of its path where only that is there, once; −1 for none."""
    listed = names.tolist()
    ends = [name.rpartition(b"/")[2] for name in listed]
    count = Counter(ends)
    place = {end: i for i, end in enumerate(ends) if count[end] == 1} | {name: i for i, name in enumerate(listed)}
    return np.array([place.get(name, place.get(name.rpartition(b"/")[2], -1)) for name in wanted], np.int64)


class Split(NamedTuple):
    """Queries and the map that they are matched against; the same object twice where a set is matched with itself."""

    queries: ImageSet
    database: ImageSet
