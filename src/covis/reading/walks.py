"""The walks of photos, by what their table, their folders, clocks and cameras say: a map tests itself across walks.

Photos taken in one go show the same light, people and cars, so that they find each other more easily than a new photo
would. Where photos say when they were taken, groups are cut where nothing was taken for `GAP_S`, and by camera; walks
that pass the same places within minutes of each other (two cameras of one car, one walk in two folders) are one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.images import ImageSet
from covis.poses import PLACE_M

GAP_S = 30 * 60.0
"""A pause after which a new walk begins."""
TOGETHER_S = 10 * 60.0
"""Photos of one place taken within this time are near-duplicates."""
TOGETHER_SHARE = 0.2
"""Share of a walk's photos with a near-duplicate in another, from which on the two are one walk."""


def with_walks(images: ImageSet) -> ImageSet:
    """The images with their walks as groups; as they are where no time is known."""
    time_s = seconds_of(images.columns["time"]) if "time" in images.columns else np.full(len(images), np.nan)
    if np.isnan(time_s).all():
        return images
    camera = images.columns.get("camera", np.zeros(len(images)))
    key = np.unique(camera, return_inverse=True)[1] + len(images) * images.group.astype(np.int64)
    walk = _joined(_runs(key, _filled(time_s, key, images.names)), time_s, images.poses.xy)
    names = [_name(images, time_s, walk == w) for w in range(int(walk.max()) + 1)]
    labels = [name if names.count(name) == 1 else f"{name} ({w + 1})" for w, name in enumerate(names)]
    unique, codes = np.unique(np.array(labels)[walk], return_inverse=True)
    return replace(images, group=codes.astype(np.int32), group_names=tuple(unique.tolist()))


def seconds_of(times: NDArray[Any]) -> Floats:
    """(N,) seconds of ISO 8601 local times, or of numbers since 1970; NaN where it is neither."""
    if times.dtype.kind in "fiu":
        return np.where((times > 1e8) & (times < 1e11), times, np.nan).astype(np.float64)
    return np.array([_seconds(str(time)) for time in times])


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return float("nan")


def _filled(time_s: Floats, key: Ids, names: NDArray[np.bytes_]) -> Floats:
    """Times, unknown ones as those of the photos beside them by name; zero where none of a key is known."""
    order = np.lexsort((names, key))
    filled = time_s.copy()
    for walk in (order, order[::-1]):
        for before, now in pairwise(walk):
            if np.isnan(filled[now]) and key[before] == key[now]:
                filled[now] = filled[before]
    return np.nan_to_num(filled)


def _runs(key: Ids, time_s: Floats) -> Ids:
    """(N,) numbers of runs of one key without a pause."""
    order = np.lexsort((time_s, key))
    new = (np.diff(key[order]) != 0) | (np.diff(time_s[order]) > GAP_S)
    run = np.empty(len(key), np.int64)
    run[order] = np.append(0, np.cumsum(new))
    return run


def _joined(run: Ids, time_s: Floats, xy: Floats) -> Ids:
    """(N,) numbers of walks: runs that pass the same places at the same time are one."""
    known = np.flatnonzero(~np.isnan(time_s) & ~np.isnan(xy).any(axis=1))
    known = known[np.argsort(time_s[known], kind="stable")]
    when, where, of = time_s[known], xy[known], run[known]
    first, last = np.searchsorted(when, when - TOGETHER_S), np.searchsorted(when, when + TOGETHER_S, side="right")
    shared: Counter[tuple[int, int]] = Counter()
    for i, (start, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        near = ((where[start:end] - where[i]) ** 2).sum(axis=1) <= PLACE_M**2
        shared.update((int(of[i]), other) for other in set(of[start:end][near].tolist()))
    size, walk = np.bincount(run), np.arange(int(run.max()) + 1)
    for (one, other), count in shared.items():
        if count >= TOGETHER_SHARE * size[one]:
            walk[walk == walk[other]] = walk[one]
    return np.unique(walk[run], return_inverse=True)[1]


def _name(images: ImageSet, time_s: Floats, inside: NDArray[np.bool_]) -> str:
    """The group of a walk's photos, and when it began where the group has others or has no name."""
    groups = np.unique(images.group[inside])
    name = images.group_names[groups[0]]
    if name and inside[np.isin(images.group, groups)].all():
        return str(name)
    start = np.nanmin(time_s[inside], initial=np.inf)
    began = "" if np.isinf(start) else f"{datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M}"
    return " ".join(part for part in (name, began) if part)
