"""The search structure of a map's state: exact from its descriptors, or approximate and grown with the map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from covis.descriptors import DescriptorStore
from covis.localise import storage
from covis.search import Exact, LocalIndex, build_index, open_index
from covis.search.kinds import choose

if TYPE_CHECKING:
    from covis.localise.map import Map

Ids = NDArray[np.int64]


def opened_index(map_: Map) -> LocalIndex:
    """The index that was written with this state, or an exact one, which takes no time to make."""
    folder = storage.version_folder(map_.path, map_.version) / storage.INDEX
    return open_index(folder, map_.descriptors, verify=False) if folder.is_dir() else _exact(map_)


def next_index(map_: Map, before: Map | None) -> LocalIndex:
    """The index of a state that is being made: grown from the one before where that takes time to build."""
    total = len(map_.descriptors)
    kind = choose(map_.state.index, len(map_), map_.dim, map_.state.max_ram)
    if kind == Exact.kind:
        return _exact(map_)
    if before is not None and len(before.descriptors) and before.index.kind == kind:
        index = before.index
        for rows, store in _parts(map_):
            if rows[0] >= len(before.descriptors):
                index.add(rows, store, _xy(map_, rows))
    else:
        rows = np.arange(total)
        index, _ = build_index(map_.descriptors, kind, ids=rows, xy=_xy(map_, rows))
    index.remove(_dead(map_))
    return index


def _exact(map_: Map) -> LocalIndex:
    index = Exact(map_.dim, map_.model)
    for rows, store in _parts(map_):
        index.add(rows, store, _xy(map_, rows))
    index.remove(_dead(map_))
    return index


def _parts(map_: Map) -> Iterator[tuple[Ids, DescriptorStore]]:
    """Each segment with its rows in the stacked descriptors."""
    start = 0
    for store in map_.stores:
        if len(store):
            yield np.arange(start, start + len(store)), store
        start += len(store)


def _dead(map_: Map) -> Ids:
    """Rows of photos that were removed."""
    return np.setdiff1d(np.arange(len(map_.descriptors)), map_.state.rows)


def _xy(map_: Map, rows: Ids) -> NDArray[np.float64]:
    """(n, 2) positions of rows; NaN for removed ones."""
    places = np.full((len(map_.descriptors), 2), np.nan)
    places[map_.state.rows] = map_.images.poses.xy
    return places[rows]
