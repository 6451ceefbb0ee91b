"""A map of photos that tells where new ones were taken: create, open, add, remove, search, locate.

A `Map` is one state, as it was when it was opened; `add` and `remove` give the next. Changes are atomic and kept as
versions (see `covis.maps.storage`): any number of processes may read while one writes. The functions that make the next
state expect the caller to hold the map's lock and to pass the newest state; what they return is already written. torch
is imported only where the model itself is needed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts, files
from covis.core.arrays import Ids
from covis.core.errors import Damaged, InputError
from covis.core.progress import say, warn
from covis.core.tables import card
from covis.descriptors import NORM_TOLERANCE, DescriptorStore, Matrix, Stacked
from covis.images import ImageSet, encode_names
from covis.maps import storage
from covis.maps.calibration import (
    RATE,
    Calibration,
    HeldOut,
    compacted,
    gcl_margin,
    hold_out,
    photos_key,
    refreshed,
)
from covis.maps.calibration import calibrate as calibrate_by
from covis.maps.evidence import CONTEXT
from covis.maps.locating import STEP_M, Answer, Judge, Walk, locate_walk
from covis.maps.storage import (
    Remote,
    State,
    files_of,
    join_photos,
    kept_columns,
    list_rejects,
    listed,
    nearest_name,
    note_images,
    reframed,
    stamps,
)
from covis.ranking import Ranking
from covis.reading.decoding import REJECTS, Rejected
from covis.runtime import ONNX_FILE, WEIGHTS_FILE, Described, OnnxSession, Runtime, describe_photos
from covis.search import Area, Exact, LocalIndex, build_index, open_index
from covis.search.engines.photos import public
from covis.search.exact import as_queries
from covis.search.kinds import choose

if TYPE_CHECKING:
    from covis.models import Embedder, PlaceModel
    from covis.whitening import Whitening


RUNTIME = "runtime"
"""The folder with an ONNX file of the map's model, and its kind."""
_BESIDE_FILE = "model.weights"
"""Weights of that ONNX file, beside it."""
Photos = Path | str | Sequence[Path | str]
"""One photo, or several."""
INLIER_PHOTOS = 400
"""Photos from which a map learns what inliers of local features mean."""
_WORTH_REPACKING = 8
"""Photos from which on repacking the weights saves time."""
_MAX_SEGMENTS = 16
_DEAD_SHARE = 0.5
_MERGE_FROM = 64
"""Rows below which it is not worth reclaiming removed ones."""


def _of_another_fit(images: ImageSet, learned: str) -> HeldOut | None:
    """For a model that learned from poses: no queries if from those of `images`, else None: queries as usual."""
    if learned == photos_key(images):
        return HeldOut.empty(len(images))
    warn(
        "the model learned from the positions of its own photos; if some of them are indexed now, the map promises too much: "
        "index without --model"
    )
    return None


def added(
    now: Map,
    images: ImageSet,
    prefix: str,
    given: DescriptorStore | None,
    rejects: Iterable[Rejected],
    calibrate: bool,
    held: HeldOut | None = None,
) -> Map:
    """The map with `images`, under `prefix` + name; `held`: results of these photos as queries, if known already."""
    table = replace(
        images, poses=reframed(images.poses, now.frame, str(images.root.resolve())),
        columns={**kept_columns(images), "file": files_of(images)}, root=now.path,
        names=encode_names([os.fsencode(prefix) + bytes(n) for n in images.names]),
    )  # fmt: skip
    replaced = _replaced(now, table) if now.remote is None else np.zeros(0, bool)
    key = artifacts.fingerprint(
        now.model_fingerprint, table.names, table.columns["file"], stamps(table.columns["file"])
    )
    store = _segment(now, key, images, given)
    rows = store.rows(images.names)
    lost = [Rejected(images.name(int(i)), "no-descriptor", "see the segment") for i in np.flatnonzero(rows < 0)]
    list_rejects(now.path / REJECTS, [*rejects, *(listed(store.path) or lost)])
    table = table.subset(rows >= 0)
    if now.remote is not None:
        vectors = np.asarray(store[rows[rows >= 0]], np.float32)
        after = _loaded(now.remote, table, vectors, first=now.version == 0)
        if held is not None:
            asked = replace(table, columns={**table.columns, "row": np.arange(len(table))})
            calibration = calibrate_by(asked, vectors, gcl_margin(now.path / storage.MODEL), held=held)
            artifacts.write_json(now.path / storage.CALIBRATION, calibration.to_dict())
        changes = len(table) if calibrate and held is None else None
        moved = _of_remote(type(now), after, now.model_fingerprint, now.state.calibration, changes)
        storage.clear_segment(now.path, key)
        return moved
    stores, segments, first = now.stores, now.state.segments, len(now.descriptors)
    if key in segments:  # the same files again: their rows are there
        first = sum(len(s) for s in stores[: segments.index(key)])
    else:
        stores, segments = (*stores, store), (*segments, key)
    table = replace(table, columns={**table.columns, "row": first + rows[rows >= 0]})
    photos = storage.in_row_order(join_photos([now.images.subset(~replaced), table]))
    if segments == now.state.segments and photos.fingerprint() == now.images.fingerprint():
        return now  # the same photos at the same places
    state = replace(now.state, images=photos, segments=segments)
    return _written(now, state, stores, len(table) if calibrate else None, held)


def removed(now: Map, names: Iterable[str | bytes], calibrate: bool) -> Map:
    """The map without the photos of these names."""
    wanted = np.unique(encode_names(names))
    if now.remote is not None:
        after = now.remote.remove([bytes(name) for name in wanted])
        changes = len(wanted) if calibrate else None
        return _of_remote(type(now), after, now.model_fingerprint, now.state.calibration, changes)
    there = np.isin(wanted, now.images.names)
    if not there.all():
        name = os.fsdecode(wanted[~there][0])
        raise InputError(f"{now.path} has no photo {name!r}{nearest_name(name, now.images)}; nothing was removed")
    state = replace(now.state, images=now.images.subset(~np.isin(now.images.names, wanted)))
    return _written(now, state, now.stores, len(wanted) if calibrate else None)


def _loaded(remote: Remote, table: ImageSet, vectors: NDArray[np.float32], first: bool) -> Remote:
    return remote.load(table, vectors) if first else remote.add(table, vectors)


def _of_remote(
    kind: type[Map],
    remote: Remote,
    model: str,
    calibration: Mapping[str, Any] | None = None,
    changes: int | None = None,
) -> Map:
    """A map over an engine; with `changes`, its calibration is brought up to date, else it is the folder's."""
    record = remote.calibration() if changes is None else remote.recalibrate(calibration, changes)
    state = State(remote.pointer.version, storage.empty_table(remote.path, remote.frame), (), calibration=record)
    return kind(remote.path, state, (), model, remote.engine.dim, remote)


def _made_remote(
    kind: type[Map], path: Path, images: ImageSet, model: Embedder | None, engine: str,
    descriptors: DescriptorStore | None, rejects: list[Rejected], calibrate: bool, held: HeldOut | None,
) -> Map:  # fmt: skip
    """Makes a map over an engine; the same call resumes an interrupted one."""
    identity, dim = _identity(model, descriptors)
    own = artifacts.fingerprint(str(path.resolve()), images.fingerprint(), identity)
    config = {"model": identity, "dim": dim, "images": images.fingerprint(), "frame": images.poses.frame,
              "root": os.fsencode(images.root.resolve()).hex(), "engine": public(engine), "table": f"covis_{own}"}  # fmt: skip
    storage.require_photos(path, config)
    with artifacts.claim(path, storage.MAP_KIND, config):
        if (path / storage.CURRENT).is_file():
            say(f"{path}: the map already exists")
            return kind.open(path)
        remote = Remote.open(path, {**config, "engine": engine})
        _keep_model(path / storage.MODEL, model, descriptors)
        empty = State(0, storage.empty_table(path, images.poses.frame), ())
        first = kind(path, empty, (), identity, dim, remote)
        made = added(first, images, "", descriptors, rejects, calibrate, held)
        if not (path / storage.CALIBRATION).is_file():
            artifacts.write_json(path / storage.CALIBRATION, None)
        artifacts.write_json(path / storage.CURRENT, {"version": made.version})
    return made


def _identity(model: Embedder | None, descriptors: DescriptorStore | None) -> tuple[str, int]:
    """Fingerprint and length of the descriptors of a map that is being made."""
    if model is not None:
        return model.fingerprint(), model.dim
    if descriptors is None:
        raise ValueError("a map needs a model, or descriptors")
    return descriptors.model, descriptors.dim


def _keep_model(folder: Path, model: Embedder | None, descriptors: DescriptorStore | None) -> None:
    """Writes the model into a map that does not have it yet; without a model, only the name of the descriptors."""
    if (folder / artifacts.MANIFEST).is_file():
        return
    if model is not None:
        model.save(folder, replace=True)
        return
    from covis.models.config import write_without_weights

    identity, dim = _identity(model, descriptors)
    assert descriptors is not None
    card = {"backbone": f"descriptors of {descriptors.path.name}"}
    write_without_weights(folder, identity, dim, card, replace=True)


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
    folder = storage.segment_folder(now.path, key)
    if key in now.state.segments:
        return DescriptorStore.open(folder, verify=False, links=False)
    if given is None:
        from covis.describing.embedding import embed

        return embed(_embedder(now, len(images)), images, folder)
    if given.model != now.model_fingerprint:
        raise InputError(
            f"{now.path} holds descriptors of model {now.model_fingerprint}, {given.path} of model {given.model}; "
            "embed with one model"
        )
    rows = given.rows(images.names)
    if (rows < 0).any():
        lacking = images.name(int(np.flatnonzero(rows < 0)[0]))
        raise InputError(f"{given.path} has no descriptor of {lacking!r}; embed the photos that you add")
    storage.clear_segment(now.path, key)
    store = DescriptorStore.create(folder, given.model, given.dim)
    return store.append(images.names, np.asarray(given[rows], np.float32), model=given.model)


def _embedder(now: Map, count: int) -> Embedder:
    from covis.describing.describers import open_model

    loaded = open_model(now.path / storage.MODEL, "auto", count)
    if loaded.fingerprint() != now.model_fingerprint:
        raise InputError(f"{now.path / storage.MODEL} is not the model {now.model_fingerprint} of this map; restore it")
    return loaded


def _written(
    now: Map, state: State, stores: tuple[DescriptorStore, ...], changes: int | None, held: HeldOut | None = None
) -> Map:
    """Writes `state` as the next version; `changes` photos came or went (None: leave the calibration as it is)."""
    state = replace(state, version=now.version + 1)
    total = sum(map(len, stores))
    dead = total - len(state.images)
    merged = total and (len(stores) > _MAX_SEGMENTS or (total >= _MERGE_FROM and dead > _DEAD_SHARE * total))
    if merged:
        state = replace(state, calibration=compacted(state.calibration, state.rows))
        state = storage.merge_segments(now.path, state, stores, f"merged-{state.version:08d}")
        stores = storage.open_segments(now.path, state.segments, written=True)
    draft = replace(now, state=state, stores=stores)
    if changes is not None:
        margin = gcl_margin(now.path / storage.MODEL)
        if held is None:
            calibration = refreshed(state.calibration, changes, state.images, draft.descriptors, margin)
        else:
            calibration = calibrate_by(state.images, draft.descriptors, margin, held=held).to_dict()
        state = replace(state, calibration=calibration)
    index = next_index(draft, None if merged else now)
    storage.write_state(now.path, state, None if isinstance(index, Exact) else index)
    after = replace(draft, state=state)
    after.__dict__["index"] = index  # it is built already; the property need not do it again
    return after


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
    index = Exact(map_.dim, map_.model_fingerprint)
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
    dead = np.ones(len(map_.descriptors), bool)
    dead[map_.state.rows] = False
    return np.flatnonzero(dead)


def _xy(map_: Map, rows: Ids) -> NDArray[np.float64]:
    """(n, 2) positions of rows; NaN for removed ones."""
    places = np.full((len(map_.descriptors), 2), np.nan)
    places[map_.state.rows] = map_.images.poses.xy
    return places[rows]


def read_runtime(path: Path, *, verify: bool = False) -> dict[str, Any]:
    """The manifest of the map's ONNX file, which is compared with its checksum if it changed, or with `verify`."""
    return artifacts.open_manifest(path / RUNTIME, RUNTIME, facts={"model": str}, verify=verify, links=False)


def _listed(photos: Photos) -> list[Path]:
    """One photo or several, as paths."""
    return [Path(photos)] if isinstance(photos, str | Path) else [Path(photo) for photo in photos]


@dataclass(frozen=True, eq=False, repr=False)
class Map:
    """One state of a map on disk.

    >>> import covis
    >>> queries, photos = covis.datasets.load("town", None, "test")
    >>> model = covis.PlaceModel.build(covis.models.ModelConfig("tiny", image_size=(32, 32)))
    >>> town = covis.Map.create("town.map", photos, model)
    >>> [answer] = covis.Map.open("town.map").locate(queries.path(0), k=3)
    >>> len(answer.matches)
    3
    """

    path: Path
    state: State
    stores: tuple[DescriptorStore, ...]
    model_fingerprint: str
    """Of the model of every descriptor."""
    dim: int
    remote: Remote | None = None
    """Where its photos live, if in an engine; `state` then has none."""

    # Opening and making

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = False) -> Map:
        """The map as it is now; `verify` reads every file once against its checksum."""
        path = Path(path)
        engine = storage.read_engine(path)
        if engine is not None:
            storage.current_version(path)
            return _of_remote(cls, Remote.open(path, engine), engine["model"])
        state, stores = storage.read_state(path, verify=verify)
        if verify and (path / RUNTIME).is_dir():
            read_runtime(path, verify=True)
        return cls(path, state, stores, *storage.read_facts(path, stores))

    @classmethod
    def create(
        cls,
        path: Path | str,
        images: ImageSet,
        model: Embedder | None,
        *,
        index: str = "auto",
        max_ram: int | None = None,
        descriptors: DescriptorStore | None = None,
        rejects: Iterable[Rejected] = (),
        calibrate: bool = True,
        engine: str = "",
        held: HeldOut | None = None,
    ) -> Map:
        """Makes a map of `images` with known positions; the same call resumes an interrupted one.

        model: describes photos, and is kept in the map; None: the map has only `descriptors`. index: `auto`, `exact` or
        a kind of approximate search, which may take `max_ram` bytes beside the descriptors. descriptors: those of the
        images, by name, if there are some already. engine: where photos and descriptors live instead of the folder,
        `milvus:URI` or `postgresql://…`. held: if the model learned from these photos, their results by fits that did
        not see them (`covis.maps.fitting`); they are not queries again.
        """
        path = Path(path)
        note_images(path, images)
        whitening: Whitening | None = getattr(model, "whitening", None)
        learned = {} if whitening is None else whitening.facts
        if held is None and learned.get("labels", "none") != "none" and "images" in learned:
            held = _of_another_fit(images, learned["images"])
        if engine:
            return _made_remote(cls, path, images, model, engine, descriptors, list(rejects), calibrate, held)
        identity, dim = _identity(model, descriptors)
        choose(index, len(images), dim, max_ram)  # an index that cannot be built is an error before the work starts
        config = {"model": identity, "dim": dim, "index": index, "images": images.fingerprint(),
                  "root": os.fsencode(images.root.resolve()).hex(), **({} if max_ram is None else {"max_ram": max_ram})}  # fmt: skip
        storage.require_photos(path, config)
        with artifacts.claim(path, storage.MAP_KIND, config):
            if (path / storage.CURRENT).is_file():
                say(f"{path}: the map already exists")
                return cls.open(path)
            with storage.founding(path):
                _keep_model(path / storage.MODEL, model, descriptors)
                start = State(0, storage.empty_table(path, images.poses.frame), (), index, max_ram)
                first = cls(path, start, (), identity, dim)
                return added(first, images, "", descriptors, rejects, calibrate, held)

    # Looking

    def __len__(self) -> int:
        return len(self.state.images) if self.remote is None else self.remote.pointer.photos

    @property
    def frame(self) -> str:
        """The frame of positions; empty where the map is not on Earth."""
        return self.state.images.poses.frame

    def __repr__(self) -> str:
        return f"Map({str(self.path)!r}, {len(self)} photos, version {self.version}, {self.backbone})"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"path": self.path, "photos": len(self), "version": self.version}
        facts |= {"model": f"{self.backbone} ({self.dim} numbers)"}
        promise = None if self.calibration is None else self.calibration.promised()
        facts["promises"] = "no precision" if promise is None else f"{100 * promise:g} % of confident answers right"
        return card("Map", facts, self.images.poses.xy)

    @property
    def images(self) -> ImageSet:
        """The photos; their files are in the column `file`. From an engine, all of them are fetched once."""
        return self.state.images if self.remote is None else self._fetched

    @cached_property
    def _fetched(self) -> ImageSet:
        assert self.remote is not None
        return self.remote.images()

    @property
    def index_kind(self) -> str:
        """The kind of search."""
        return self.index.kind if self.remote is None else self.remote.engine.kind

    @property
    def version(self) -> int:
        """Number of this state; every change raises it by one."""
        return self.state.version

    def file(self, i: int) -> Path:
        """Where photo i lay when it was added."""
        return Path(os.fsdecode(self.images.columns["file"][i]))

    @cached_property
    def descriptors(self) -> Stacked:
        """All rows of all segments, also removed ones; photo i has the row `state.rows[i]`."""
        return Stacked(self.stores, self.dim)

    @cached_property
    def model(self) -> Embedder:
        """The model of every descriptor, in torch or, where the map was made with an ONNX file, as that."""
        from covis.describing.describers import open_model

        loaded = open_model(self.path / storage.MODEL)
        if loaded.fingerprint() != self.model_fingerprint:
            raise InputError(
                f"{self.path} holds descriptors of model {self.model_fingerprint}, its model folder is "
                f"{loaded.fingerprint()}; restore it"
            )
        return loaded

    @cached_property
    def runtime(self) -> Runtime:
        """What describes new photos, many of them: the map's own ONNX file where it has one that can be run, else torch."""
        return self._open_runtime(repack=True)

    @property
    def network(self) -> str:
        """What describes new photos: `torch`, `onnx`, or empty where the map was made of descriptors alone."""
        model = self.path / storage.MODEL
        if (self.path / RUNTIME).is_dir() or (model / ONNX_FILE).is_file():
            return "onnx"
        return "torch" if (model / WEIGHTS_FILE).is_file() else ""

    def _open_runtime(self, threads: int | None = None, *, repack: bool = False) -> Runtime:
        model = self.path / storage.MODEL
        if (model / ONNX_FILE).is_file():
            storage.read_model_manifest(self.path, verify=False)
            session = OnnxSession.open(model / ONNX_FILE, threads, verified=True, repack=repack)
            if session.fingerprint != self.model_fingerprint:
                raise Damaged(f"{model / ONNX_FILE} is not the model {self.model_fingerprint} of this map; restore it")
            return session
        if (self.path / RUNTIME).is_dir() and importlib.util.find_spec("onnxruntime") is not None:
            try:
                if read_runtime(self.path)["model"] == self.model_fingerprint:
                    file = self.path / RUNTIME / ONNX_FILE
                    return OnnxSession.open(file, threads, verified=True, repack=repack)
            except InputError as error:
                cause = str(error).partition(";")[0]
                raise Damaged(f"{cause}; make it again with: covis map repair {self.path}") from None
        from covis.describing.embedding import TorchRuntime

        return TorchRuntime(self._place_model())

    def _place_model(self) -> PlaceModel:
        from covis.models import PlaceModel

        model = self.model
        assert isinstance(model, PlaceModel)  # a map that was made with an ONNX file does not come here
        return model

    def carry_runtime(self) -> bool:
        """Puts an ONNX file of the model into the map, checked against torch; False where onnx is not installed.

        A map that was made with an ONNX file has it already; one of descriptors alone has none (False).
        """
        folder = self.path / RUNTIME
        if (folder / artifacts.MANIFEST).is_file() or (self.path / storage.MODEL / ONNX_FILE).is_file():
            return True
        if not self.network or not all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript", "onnx"))):
            return False
        from covis.models import export_onnx

        facts = {"model": self.model_fingerprint}
        with artifacts.lock(self.path), artifacts.create(folder, RUNTIME, facts, replace=True) as draft:
            file = draft.path / ONNX_FILE
            draft.facts["difference"] = export_onnx(self._place_model(), file, _BESIDE_FILE)
        return True

    def keep_scene(self, path: Path | str) -> None:
        """Notes where the points of the photos lie, for full poses: a COLMAP model, or images with depth maps."""
        with artifacts.lock(self.path):
            artifacts.write_json(self.path / storage.SCENE, {"scene": str(Path(path).resolve())})

    @property
    def scene(self) -> Path | None:
        """Where the points of the photos lie, if that was given; they are not in the map itself."""
        file = self.path / storage.SCENE
        if not file.is_file():
            return None
        return Path(files.read_record(file, {"scene": str}, "remove it and give --scene")["scene"])

    def learn_inliers(self, features: str, held: HeldOut | None = None, *, most: int = INLIER_PHOTOS) -> Calibration:
        """Learns P with inliers of local features counted, from up to `most` of the photos, for `locate(inliers=True)`.

        features: as `covis evaluate --rerank local:…` has them, such as `sift`. held: as in `create`.
        """
        from covis.search.local import LocalReranker

        if self.remote is not None:
            raise InputError(f"{self.path} keeps its photos in an engine; inliers need a map in a folder")
        chosen, files_ = LocalReranker.parse(features), [self.file(i) for i in range(len(self))]
        if held is None and (self.state.calibration or {}).get("seen"):
            raise InputError(f"the model of {self.path} learned from its photos; give --inliers to covis index")
        held = (hold_out(self.images, self.descriptors) if held is None else held).some(most)
        calibration = calibrate_by(
            self.images, self.descriptors, gcl_margin(self.path / storage.MODEL), held=held,
            inliers=lambda asked, ids: chosen.count([files_[q] for q in asked], files_, ids),
        )  # fmt: skip
        if calibration.probability is None:
            warn(f"{self.path} could not calibrate inliers: {calibration.note}")
            return calibration
        with artifacts.lock(self.path):
            artifacts.write_json(
                self.path / storage.INLIERS, {"features": features, "calibration": calibration.to_dict()}
            )
        return calibration

    def _with_inliers(self, judge: Judge, photos: Sequence[Path]) -> Judge:
        """A judge that also counts local features which `photos` have in common with their matches."""
        file = self.path / storage.INLIERS
        if not file.is_file():
            raise InputError(
                f"{self.path} is not calibrated for inliers; make one with: covis index PHOTOS --inliers sift -o MAP"
            )
        from covis.search.local import LocalReranker

        record = files.read_record(file, {"features": str, "calibration": dict}, f"remove {file} and index again")
        chosen, database = LocalReranker.parse(record["features"]), [self.file(i) for i in range(len(self))]
        calibration = Calibration.from_dict(record["calibration"])
        return replace(judge, calibration=calibration, inliers=lambda ids: chosen.count(photos, database, ids))

    @cached_property
    def backbone(self) -> str:
        """The name of the model's network."""
        return str(artifacts.read_json(self.path / storage.MODEL / "config.json")["backbone"])

    @cached_property
    def index(self) -> LocalIndex:
        """The search structure; its ids are rows of `descriptors`."""
        return opened_index(self)

    def search(self, queries: Matrix, k: int, *, area: Area | None = None) -> Ranking:
        """The k nearest photos of each query descriptor; ids are positions in `images`."""
        if isinstance(queries, DescriptorStore) and queries.model != self.model_fingerprint:
            raise InputError(
                f"{self.path} holds descriptors of model {self.model_fingerprint}, the queries are of model "
                f"{queries.model}; use one model"
            )
        if not len(self):
            empty = np.zeros((len(queries), 0))
            return Ranking(empty.astype(np.int64), empty.astype(np.float32))
        if self.remote is not None:
            hits = self.remote.engine.search(as_queries(queries, np.empty((0, self.dim), np.float32), k), k, area)
            order = np.argsort(self.images.names)
            rows = order[np.searchsorted(self.images.names, np.array(hits.rows.names), sorter=order) % len(order)]
            ids = hits.ranking.ids
            return Ranking(np.where(ids >= 0, rows[np.maximum(ids, 0)], -1), hits.ranking.distances)
        ranking = self.index.search(queries, k, area=area)
        places = np.searchsorted(self.state.rows, np.maximum(ranking.ids, 0))
        return Ranking(np.where(ranking.ids >= 0, places, -1), ranking.distances)

    @cached_property
    def calibration(self) -> Calibration | None:
        """What the map knows of its own answers; None where it was never calibrated."""
        record = self.state.calibration
        return None if record is None else Calibration.from_dict(record)

    def judge(self, *, area: Area | None = None, precision: float | None = None, rate: float = RATE) -> Judge:
        """What turns descriptors into answers; see `locate`."""
        return Judge(self.images, partial(self.search, area=area), self.calibration, precision, rate)

    def judge_for(
        self,
        vectors: NDArray[np.float32],
        k: int,
        *,
        area: Area | None = None,
        precision: float | None = None,
        rate: float = RATE,
    ) -> Judge:
        """Like `judge`, for (Q, dim) descriptors only: from an engine, just the photos that it finds are fetched."""
        if self.remote is None:
            return self.judge(area=area, precision=precision, rate=rate)
        hits = self.remote.engine.search(vectors, max(k, CONTEXT), area) if len(vectors) else None
        images = self.state.images if hits is None else self.remote.image_set(hits.rows)
        empty = Ranking(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32))
        ranking = empty if hits is None else hits.ranking
        return Judge(images, lambda _, wanted: ranking.top(wanted), self.calibration, precision, rate)

    def describe(self, photos: Photos) -> Described:
        """Descriptors of photos, and why some have none."""
        paths = _listed(photos)
        if "runtime" not in self.__dict__:
            self.__dict__["runtime"] = self._open_runtime(1, repack=len(paths) >= _WORTH_REPACKING)
        return describe_photos(self.runtime, paths, NORM_TOLERANCE)

    def locate(
        self,
        photos: Photos,
        k: int = 5,
        *,
        area: Area | None = None,
        precision: float | None = None,
        rate: float = RATE,
        inliers: bool = False,
        described: Described | None = None,
    ) -> list[Answer]:
        """Where photos were taken: one answer each, with up to k matches, best first.

        photos: one path or several. area: limits the places searched. precision: share of confident answers that should
        be right; None is the highest that the map can promise. rate: share of true positions that should lie within the
        radius. inliers: probabilities also count local features in common, in a map that has learned what they mean.
        described: the photos' descriptors, if they are known already.

        >>> Map.open("town.map").locate("IMG_2041.jpg")[0].verdict  # doctest: +SKIP
        'likely at 55.70470, 13.19100 (89 %), within 12 m'
        """
        paths = _listed(photos)
        vectors, bad = self.describe(paths) if described is None else described
        judge = self.judge_for(vectors, k, area=area, precision=precision, rate=rate)
        if inliers:
            judge = self._with_inliers(judge, [path for i, path in enumerate(paths) if i not in bad])
        return judge.answers(paths, vectors, bad, k)

    def locate_walk(
        self,
        photos: Photos,
        k: int = 5,
        *,
        area: Area | None = None,
        precision: float | None = None,
        rate: float = RATE,
        step_m: float = STEP_M,
        described: Described | None = None,
    ) -> Walk:
        """Where photos of one walk, given in order, were taken; other parameters as in `locate`."""
        paths = _listed(photos)
        vectors, bad = self.describe(paths) if described is None else described
        judge = self.judge_for(vectors, k, area=area, precision=precision, rate=rate)
        return locate_walk(judge, paths, vectors, bad, k, step_m=step_m)

    # Changing

    def add(
        self,
        images: ImageSet,
        *,
        prefix: str = "",
        descriptors: DescriptorStore | None = None,
        rejects: Iterable[Rejected] = (),
        calibrate: bool = True,
    ) -> Map:
        """The map with `images` added under `prefix` + name; a photo of the same name and file is replaced."""
        with self._writing() as now:
            note_images(now.path, images)
            return added(now, images, prefix, descriptors, rejects, calibrate)

    def remove(self, names: Iterable[str | bytes], *, calibrate: bool = True) -> Map:
        """The map without the photos of these names; a name that does not exist is an error, and nothing changes."""
        with self._writing() as now:
            return removed(now, names, calibrate)

    def recalibrate(self) -> Map:
        """The map with its calibration learned again from its photos."""
        with self._writing() as now:
            record = now.state.calibration
            if record is not None and record.get("seen"):
                raise InputError(
                    f"the model of {now.path} learned from the poses of its photos, so they cannot be used as queries "
                    "again; its calibration is kept (to redo both: covis index PHOTOS --train -o ANOTHER_MAP)"
                )
            if now.remote is not None:
                return _of_remote(type(now), now.remote, now.model_fingerprint, None, len(now))
            return _written(now, replace(now.state, calibration=None), now.stores, len(now))

    @contextmanager
    def _writing(self) -> Iterator[Map]:
        """The newest state, while no one else may change it."""
        with artifacts.lock(self.path):
            yield self.newest()

    def newest(self) -> Map:
        """The map as it is now: this one where nothing changed since it was opened."""
        if self.remote is None:
            return self if storage.current_version(self.path) == self.version else Map.open(self.path)
        pointer = self.remote.engine.pointer()
        if pointer == self.remote.pointer:
            return self
        return _of_remote(type(self), replace(self.remote, pointer=pointer), self.model_fingerprint)
