"""A map of photos that tells where new ones were taken: create, open, add, remove, search, locate.

A `Map` is one state, as it was when it was opened; `add` and `remove` give the next. Changes are atomic and kept as
versions (see `covis.maps.storage`): any number of processes may read while one writes. torch is imported only where the
model itself is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts, files
from covis.core.addresses import without_password
from covis.core.card import card
from covis.core.errors import Damaged, InputError
from covis.core.progress import say
from covis.descriptors import DescriptorStore, Matrix, Stacked
from covis.images import ImageSet, encode_names
from covis.maps.answers import Answer
from covis.maps.calibration import Calibration, Recalibration, gcl_margin
from covis.maps.calibration_record import read_calibration
from covis.maps.contents import copied_segment, held_out_for, identity_of, keep_bank, keep_model, open_bank
from covis.maps.display import Answers, MapView
from covis.maps.elsewhere import Bank, describe_bank
from covis.maps.held_out import HeldOut
from covis.maps.inliers import with_inliers
from covis.maps.locating import DEFAULTS, Judge, LocateOptions
from covis.maps.network import MapNetwork
from covis.maps.photos import files_of, kept_columns, list_rejects, listed, reframed, stamps
from covis.maps.pictures import note_images
from covis.maps.settings import EVIDENCE
from covis.maps.storage import Storage, open_storage
from covis.maps.storage.folder import FolderStorage, State
from covis.maps.storage.layout import (
    CURRENT,
    ELSEWHERE,
    MAP_KIND,
    MODEL,
    RUNTIME,
    SCENE,
    founding,
    read_config,
    read_runtime,
    require_photos,
    segment_folder,
)
from covis.maps.walks import Walk, locate_walk
from covis.ranking import Ranking
from covis.reading.decoding import REJECTS, Rejected
from covis.reading.inputs import Photo, expand_photos
from covis.runtime import Described, Runtime
from covis.search import Area
from covis.search.kinds import choose

if TYPE_CHECKING:
    from covis.models import Embedder


def _with_views(answers: Sequence[Answer], photos: Sequence[Photo], images: ImageSet) -> Answers:
    """Answers that can show themselves."""
    pairs = zip(answers, photos, strict=True)
    return Answers(replace(answer, view=MapView(photo, images)) for answer, photo in pairs)


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
    storage: Storage
    """Where its photos and descriptors live."""
    model_fingerprint: str
    """Of the model of every descriptor."""
    dim: int

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = False) -> Map:
        """The map as it is now; `verify` reads every file once against its checksum."""
        path = Path(path)
        storage = open_storage(path, verify=verify)
        if verify and (path / RUNTIME).is_dir():
            read_runtime(path, verify=True)
        config = read_config(path)
        return cls(path, storage, config["model"], config["dim"])

    @classmethod
    def build(cls, photos: Path | str, path: Path | str | None = None, **options: Any) -> Map:
        """Makes a map from photos with GPS, as `covis index` does: reads, fits a model, describes, indexes, calibrates.

        photos: a folder or a table. path: the map; by default the photos' name with `.map`. The same call resumes.
        options: fields of `covis.maps.building.BuildOptions`, such as `model`, `weights` or `track`.
        """
        from covis.maps.building import BuildOptions, build_map

        photos = Path(photos)
        path = photos.resolve().with_suffix(".map") if path is None else Path(path)
        return build_map(cls, photos, path, BuildOptions(**options)).map

    @classmethod
    def create(
        cls,
        path: Path | str,
        images: ImageSet,
        model: Embedder | None,
        *,
        index: str = "auto",
        descriptors: DescriptorStore | None = None,
        rejects: Iterable[Rejected] = (),
        calibrate: bool = True,
        engine: str = "",
        held: HeldOut | None = None,
        bank: Bank | None = None,
    ) -> Map:
        """Makes a map of `images` with known positions; the same call resumes an interrupted one.

        model: describes photos, and is kept in the map; None: the map has only `descriptors`. index: `auto`, `exact` or
        a kind of approximate search. descriptors: those of the
        images, by name, if there are some already. engine: where photos and descriptors live instead of the folder,
        `milvus:URI` or `postgresql://…`. held: if the model learned from these photos, their results by fits that did
        not see them (`covis.maps.fitting`); they are not queries again. bank: pictures that are not of the map's places,
        as the model describes them; None: those that covis draws itself.
        """
        path = Path(path)
        note_images(path, images)
        held = held_out_for(model, images) if held is None else held
        identity, dim = identity_of(model, descriptors)
        frame, images_key = images.poses.frame, images.fingerprint()
        config: dict[str, Any] = {
            "model": identity,
            "dim": dim,
            "images": images_key,
            "root": os.fsencode(images.root.resolve()).hex(),
        }
        if engine:
            table = f"covis_{artifacts.fingerprint(str(path.resolve()), images_key, identity)}"
            config |= {"engine": without_password(engine), "table": table, "frame": frame}
        else:
            choose(index, len(images))  # an index that cannot be built is an error before the work starts
            config |= {"index": index}
        require_photos(path, config)
        with artifacts.claim(path, MAP_KIND, config):
            if (path / CURRENT).is_file():
                say(f"{path}: the map already exists")
                return cls.open(path)
            with founding(path):
                empty: Storage = FolderStorage.empty(path, frame, identity, dim, index)
                if engine:
                    from covis.maps.storage.engine_storage import EngineStorage

                    empty = EngineStorage.create(path, engine, config["table"], dim, frame)
                keep_model(path / MODEL, model, descriptors)
                first = cls(path, empty, identity, dim)
                if bank is None and model is not None and calibrate:
                    bank = describe_bank(model)
                keep_bank(path, identity, dim, bank)
                return first._add(images, "", descriptors, rejects, first._recalibration(calibrate, held))

    def __len__(self) -> int:
        return len(self.storage)

    @property
    def frame(self) -> str:
        """The frame of positions; empty where the map is not on Earth."""
        return self.storage.frame

    def __repr__(self) -> str:
        return f"Map({str(self.path)!r}, {len(self)} photos, version {self.version}, {self.network.backbone})"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"path": self.path, "photos": len(self), "version": self.version}
        facts |= {"model": f"{self.network.backbone} ({self.dim} dimensions)"}
        promise = None if self.calibration is None else self.calibration.promised()
        facts["promises"] = "no precision" if promise is None else f"{100 * promise:g} % of confident answers right"
        return card("Map", facts, self.images.poses.xy)

    @property
    def images(self) -> ImageSet:
        """The photos; their files are in the column `file`. From an engine, all of them are fetched once."""
        return self.storage.images

    @property
    def index_kind(self) -> str:
        """The kind of search."""
        return self.storage.kind

    @property
    def version(self) -> int:
        """Number of this state; every change raises it by one."""
        return self.storage.version

    @property
    def folder(self) -> FolderStorage:
        """The map's folder as the place of its photos; an error where they live in an engine."""
        if not isinstance(self.storage, FolderStorage):
            raise InputError(
                f"{self.path} keeps its photos in an engine, and this needs them in a folder; index them again without "
                f"--engine: covis index PHOTOS --model {self.path}/model -o ANOTHER_MAP"
            )
        return self.storage

    @property
    def state(self) -> State:
        """The state of a map in a folder: its photos, and their rows in `descriptors`."""
        return self.folder

    def file(self, i: int) -> Path:
        """Where photo i lay when it was added."""
        return Path(os.fsdecode(self.images.columns["file"][i]))

    @property
    def descriptors(self) -> Stacked:
        """All rows of a map in a folder, also removed ones; photo i has the row `state.rows[i]`."""
        return self.folder.descriptors

    @cached_property
    def network(self) -> MapNetwork:
        """What describes its photos."""
        return MapNetwork(self.path, self.model_fingerprint)

    @property
    def model(self) -> Embedder:
        """The model of every descriptor, in torch or, where the map was made with an ONNX file, as that."""
        return self.network.model

    @property
    def runtime(self) -> Runtime:
        """What describes new photos, many of them."""
        return self.network.runtime

    def describe(self, photos: Any) -> Described:
        """Descriptors of photos, given as for `locate`, and why some have none."""
        return self.network.describe(photos)

    def keep_scene(self, path: Path | str) -> None:
        """Notes where the points of the photos lie, for full poses: a COLMAP model, or images with depth maps."""
        with artifacts.lock(self.path):
            artifacts.write_json(self.path / SCENE, {"scene": str(Path(path).resolve())})

    @property
    def scene(self) -> Path | None:
        """Where the points of the photos lie, if that was given; they are not in the map itself."""
        file = self.path / SCENE
        if not file.is_file():
            return None
        return Path(files.read_record(file, {"scene": str}, "remove it and give --scene")["scene"])

    def search(self, queries: Matrix, k: int, *, area: Area | None = None) -> Ranking:
        """The k nearest photos of each query descriptor; ids are positions in `images`."""
        if isinstance(queries, DescriptorStore) and queries.model != self.model_fingerprint:
            raise InputError(
                f"{self.path} holds descriptors of model {self.model_fingerprint}, the queries are of model "
                f"{queries.model}; use one model"
            )
        return self.storage.search(queries, k, area)

    @cached_property
    def calibration(self) -> Calibration | None:
        """What the map knows of its own answers; None where it was never calibrated."""
        record = self.storage.calibration
        return None if record is None else read_calibration(record, self.path)

    def judge(self, options: LocateOptions = DEFAULTS) -> Judge:
        """What turns descriptors into answers; see `locate`."""
        judge = Judge(self.images, self.search, self.calibration, options, bank=self.bank, descriptors=self.descriptors)
        if options.area is None:
            return judge
        return replace(judge, search=partial(self.search, area=options.area), whole=judge)

    def judge_for(self, vectors: NDArray[np.float32], k: int, options: LocateOptions = DEFAULTS) -> Judge:
        """Like `judge`, for (Q, dim) descriptors only: from an engine, just the photos that it finds are fetched."""
        if options.area is not None and isinstance(self.storage, FolderStorage):
            return self.judge(options)
        images, ranking, descriptors = self.storage.nearest(vectors, max(k, EVIDENCE.context), options.area)
        judge = Judge(
            images, lambda _, wanted: ranking.top(wanted), self.calibration, options, bank=self.bank,
            descriptors=descriptors,
        )  # fmt: skip
        if options.area is None:
            return judge
        return replace(judge, whole=self.judge_for(vectors, k, replace(options, area=None)))

    def locate(
        self, photos: Any, k: int = 5, options: LocateOptions = DEFAULTS, *, described: Described | None = None
    ) -> Answers:
        """Where photos were taken: one answer each, with up to k matches, best first.

        photos: a path, a folder, a Pillow image, an RGB array or tensor, bytes, an open file, or many of these. A file that
        does not exist is an error; one that cannot be decoded gets an answer that says so. described: the photos'
        descriptors, if they are known already.

        >>> Map.open("town.map").locate("IMG_2041.jpg")[0].verdict  # doctest: +SKIP
        'likely at 55.70470, 13.19100 (89 %), within 12 m'
        """
        expanded = expand_photos(photos)
        paths = [photo.path for photo in expanded]
        vectors, bad = self.describe(expanded) if described is None else described
        judge = self.judge_for(vectors, k, options)
        if options.inliers:
            if any(photo.image is not None for photo in expanded):
                raise InputError("inliers are counted between files; give paths, not images in memory")
            judge = with_inliers(self, judge, [path for i, path in enumerate(paths) if i not in bad])
        return _with_views(judge.answers(paths, vectors, bad, k), expanded, judge.images)

    def locate_walk(
        self, photos: Any, k: int = 5, options: LocateOptions = DEFAULTS, *, described: Described | None = None
    ) -> Walk:
        """Where photos of one walk, given in order, were taken; parameters as in `locate`."""
        expanded = expand_photos(photos)
        vectors, bad = self.describe(expanded) if described is None else described
        judge = self.judge_for(vectors, k, options)
        walk = locate_walk(judge, [photo.path for photo in expanded], vectors, bad, k)
        return replace(walk, answers=tuple(_with_views(walk.answers, expanded, judge.images)))

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
            return now._add(images, prefix, descriptors, rejects, now._recalibration(calibrate))

    def remove(self, names: Iterable[str | bytes], *, calibrate: bool = True) -> Map:
        """The map without the photos of these names; a name that does not exist is an error, and nothing changes."""
        wanted = np.unique(encode_names(names)).tolist()
        with self._writing() as now:
            return replace(now, storage=now.storage.remove(wanted, now._recalibration(calibrate)))

    def recalibrate(self) -> Map:
        """The map with its calibration learned again from its photos."""
        with self._writing() as now:
            if (now.storage.calibration or {}).get("seen"):
                raise InputError(
                    f"the model of {now.path} learned from the poses of its photos, so they cannot be used as queries "
                    "again; its calibration is kept (to redo both: covis index PHOTOS --train -o ANOTHER_MAP)"
                )
            return replace(now, storage=now.storage.recalibrate(now._recalibration()))

    def _add(
        self, images: ImageSet, prefix: str, given: DescriptorStore | None, rejects: Iterable[Rejected],
        recalibration: Recalibration,
    ) -> Map:  # fmt: skip
        """The map with `images`, under `prefix` + name, described by its model or by `given`."""
        table = replace(
            images, poses=reframed(images.poses, self.frame, str(images.root.resolve())),
            columns={**kept_columns(images), "file": files_of(images)}, root=self.path,
            names=encode_names([os.fsencode(prefix) + bytes(n) for n in images.names]),
        )  # fmt: skip
        self.storage.check_new(table)
        paths = table.columns["file"]
        key = artifacts.fingerprint(self.model_fingerprint, table.names, paths, stamps(paths))
        store = self._segment(key, images, given)
        rows = store.rows(images.names)
        lost = [Rejected(images.name(int(i)), "no-descriptor", "see the segment") for i in np.flatnonzero(rows < 0)]
        list_rejects(self.path / REJECTS, [*rejects, *(listed(store.path) or lost)])
        known = rows >= 0
        return replace(self, storage=self.storage.add(table.subset(known), store, rows[known], recalibration))

    def _segment(self, key: str, images: ImageSet, given: DescriptorStore | None) -> DescriptorStore:
        """The descriptors of `images` as a segment of the map, computed or taken from a store of the same model."""
        if key in self.storage.segments:
            return DescriptorStore.open(segment_folder(self.path, key), verify=False, links=False)
        if given is not None:
            return copied_segment(self.path, key, images, given, self.model_fingerprint)
        from covis.describing.embedding import embed

        return embed(self.network.open_model(len(images)), images, segment_folder(self.path, key))

    def _recalibration(self, wanted: bool = True, held: HeldOut | None = None) -> Recalibration:
        return Recalibration(self._margin, wanted, held, self.bank)

    def describe_elsewhere(self) -> None:
        """Describes the pictures of the bank again, in a map that has lost them."""
        with artifacts.lock(self.path):
            keep_bank(
                self.path, self.model_fingerprint, self.dim, describe_bank(self.model) if self.network.kind else None
            )

    @cached_property
    def bank(self) -> Bank | None:
        """Pictures that are not of the map's places, as its model describes them; None where it could not."""
        bank = open_bank(self.path)
        if bank is None and self.calibration is not None and self.calibration.counts_bank:
            raise Damaged(f"{self.path / ELSEWHERE} is missing; make it again with: covis map repair {self.path}")
        return bank

    @property
    def _margin(self) -> float | None:
        return gcl_margin(self.path / MODEL)

    @contextmanager
    def _writing(self) -> Iterator[Map]:
        """The newest state, while no one else may change it."""
        with artifacts.lock(self.path):
            yield self.newest()

    def newest(self) -> Map:
        """The map as it is now: this one where nothing changed since it was opened."""
        newest = self.storage.newest()
        return self if newest is self.storage else replace(self, storage=newest)
