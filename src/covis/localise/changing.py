"""A map's next state: photos added or removed, all of them or none.

The caller holds the map's lock and gives the newest state; what comes back is written already.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.datasets.screening import Rejected
from covis.descriptors import DescriptorStore
from covis.embedding import embed
from covis.errors import InputError
from covis.images import ImageSet, concatenate, encode_names
from covis.localise import storage
from covis.localise.calibration import refreshed
from covis.localise.indexing import next_index
from covis.localise.intake import list_rejects, listed, nearest_name, plain, stamps
from covis.localise.sources import files_of, reframed
from covis.localise.storage import State
from covis.models import Describer, load_fast
from covis.search import Exact

if TYPE_CHECKING:
    from covis.localise.map import Map

_MAX_SEGMENTS = 16
_DEAD_SHARE = 0.5
_MERGE_FROM = 64
"""Rows below which removed ones are not worth winning back."""


def added(
    now: Map, images: ImageSet, prefix: str, given: DescriptorStore | None, rejects: Iterable[Rejected], calibrate: bool
) -> Map:
    """The map with `images`, under `prefix` + name."""
    table = replace(
        images, poses=reframed(images.poses, now.images.poses.frame, str(images.root)), intrinsics=None,
        columns={"file": files_of(images)}, root=now.path,
        names=encode_names([os.fsencode(prefix) + bytes(n) for n in images.names]),
    )  # fmt: skip
    replaced = _replaced(now, table)
    key = artifacts.fingerprint(now.model, table.names, table.columns["file"], stamps(table.columns["file"]))
    store = _segment(now, key, images, given)
    rows = store.rows(images.names)
    lost = [Rejected(images.name(int(i)), "no-descriptor", "see the segment") for i in np.flatnonzero(rows < 0)]
    list_rejects(now.path / storage.REJECTS, [*rejects, *listed(store, lost)])
    table = table.subset(rows >= 0)
    stores, segments, first = now.stores, now.state.segments, len(now.descriptors)
    if key in segments:  # the same files again: their rows are there
        first = sum(len(s) for s in stores[: segments.index(key)])
    else:
        stores, segments = (*stores, store), (*segments, key)
    table = replace(table, columns={**table.columns, "row": first + rows[rows >= 0]})
    joined = concatenate([plain(now.images.subset(~replaced)), plain(table)])
    joined = storage.image_table(joined, joined.columns["row"], joined.columns["file"])
    state = replace(now.state, images=joined, segments=segments)
    return _written(now, state, stores, len(table) if calibrate else None)


def removed(now: Map, names: Iterable[str | bytes], calibrate: bool) -> Map:
    """The map without the photos of these names."""
    wanted = np.unique(encode_names(names))
    there = np.isin(wanted, now.images.names)
    if not there.all():
        name = os.fsdecode(wanted[~there][0])
        raise InputError(f"{now.path} has no photo {name!r}{nearest_name(name, now.images)}; nothing was removed")
    state = replace(now.state, images=now.images.subset(~np.isin(now.images.names, wanted)))
    return _written(now, state, now.stores, len(wanted) if calibrate else None)


def _replaced(now: Map, table: ImageSet) -> NDArray[np.bool_]:
    """(N,) which photos of the map are replaced by those of `table`."""
    unique, counts = np.unique(table.names, return_counts=True)
    if len(unique) < len(table):
        raise InputError(f"{os.fsdecode(unique[counts > 1][0])!r} is given twice; give each photo once")
    same = np.isin(now.images.names, unique)
    order = np.argsort(table.names)
    at = order[np.searchsorted(table.names, now.images.names[same], sorter=order)]
    other = table.columns["file"][at] != now.images.columns["file"][same]
    if other.any():
        name, file = (os.fsdecode(a[same][other][0]) for a in (now.images.names, now.images.columns["file"]))
        raise InputError(
            f"the map has another photo {name!r} ({file}); add these under --prefix NAME/, or remove it first"
        )
    return same


def _segment(now: Map, key: str, images: ImageSet, given: DescriptorStore | None) -> DescriptorStore:
    """The descriptors of `images` as a segment of the map, computed or taken from a store of the same model."""
    folder = now.path / "segments" / key
    if key in now.state.segments:
        return DescriptorStore.open(folder, verify=False)
    if given is None:
        return embed(_describer(now, len(images)), images, folder)
    if given.model != now.model:
        raise InputError(
            f"{now.path} holds descriptors of model {now.model}, {given.path} of model {given.model}; embed with one model"
        )
    rows = given.rows(images.names)
    if (rows < 0).any():
        lacking = images.name(int(np.flatnonzero(rows < 0)[0]))
        raise InputError(f"{given.path} has no descriptor of {lacking!r}; embed the photos that you add")
    shutil.rmtree(folder, ignore_errors=True)
    store = DescriptorStore.create(folder, given.model, given.dim)
    return store.append(images.names, np.asarray(given[rows], np.float32), model=given.model)


def _describer(now: Map, count: int) -> Describer:
    loaded = load_fast(now.path / storage.MODEL, count)
    if loaded.fingerprint() != now.model:
        raise InputError(f"{now.path / storage.MODEL} is not the model {now.model} of this map; restore it")
    return loaded


def _written(now: Map, state: State, stores: tuple[DescriptorStore, ...], changes: int | None) -> Map:
    """Writes `state` as the next version; `changes` photos came or went (None: leave the calibration as it is)."""
    state = replace(state, version=now.version + 1)
    total = sum(map(len, stores))
    dead = total - len(state.images)
    merged = total and (len(stores) > _MAX_SEGMENTS or (total >= _MERGE_FROM and dead > _DEAD_SHARE * total))
    if merged:
        state = storage.merge_segments(now.path, state, stores, f"merged-{state.version:08d}")
        stores = storage.open_segments(now.path, state.segments)
    draft = replace(now, state=state, stores=stores)
    if changes is not None:
        state = replace(state, calibration=refreshed(draft, changes))
    index = next_index(draft, None if merged else now)
    storage.write_state(now.path, state, None if isinstance(index, Exact) else index)
    after = replace(draft, state=state)
    after.__dict__["index"] = index  # it is there already; the property need not build it again
    return after
