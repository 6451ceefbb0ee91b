"""Where the photos and descriptors of a map live: in its folder, in PostgreSQL or in Milvus, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.descriptors import DescriptorStore, Matrix
from covis.images import ImageSet
from covis.maps.calibration import Recalibration
from covis.maps.storage.folder import FolderStorage
from covis.maps.storage.layout import current_version, read_config
from covis.ranking import Ranking
from covis.search import Area


class Storage(Protocol):
    """Photos with descriptors at one version.

    `add`, `remove` and `recalibrate` write the next version and give it: all of it or, if the process dies, nothing. The
    caller holds the map's lock.
    """

    def __len__(self) -> int: ...
    @property
    def version(self) -> int:
        """Number of this state; every change raises it by one."""
        ...

    @property
    def kind(self) -> str:
        """The kind of search."""
        ...

    @property
    def frame(self) -> str:
        """The frame of positions; empty where the map is not on Earth."""
        ...

    @property
    def images(self) -> ImageSet:
        """Every photo, its file in the column `file`; an engine is asked for them once."""
        ...

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """The record of the map's calibration."""
        ...

    @property
    def segments(self) -> Sequence[str]:
        """Keys of the descriptor stores in the map's folder that this state names."""
        ...

    def newest(self) -> Storage:
        """The state that counts now: this one where nothing changed since."""
        ...

    def search(self, queries: Matrix, k: int, area: Area | None = None) -> Ranking:
        """The k nearest photos of each query; ids are positions in `images`."""
        ...

    def nearest(
        self, queries: NDArray[np.float32], k: int, area: Area | None = None
    ) -> tuple[ImageSet, Ranking, Matrix]:
        """Photos with the k nearest of each query among them, these as positions in them, and descriptors.

        The descriptor of photo i is the row `images.columns["row"][i]`.
        """
        ...

    def check_new(self, table: ImageSet) -> None:
        """Refuses photos that are given twice, or whose name the map has for another file."""
        ...

    def add(self, table: ImageSet, store: DescriptorStore, rows: Ids, recalibration: Recalibration) -> Storage:
        """With the photos of `table`, whose descriptors are the `rows` of `store`; photos of the same names are replaced."""
        ...

    def remove(self, names: Sequence[bytes], recalibration: Recalibration) -> Storage:
        """Without these photos; a name that does not exist is an error, and nothing changes."""
        ...

    def recalibrate(self, recalibration: Recalibration) -> Storage:
        """With the calibration learned again."""
        ...


def open_storage(path: Path, *, verify: bool = False) -> Storage:
    """The newest state of the map at `path`."""
    current_version(path)
    config = read_config(path)
    if "engine" not in config:
        return FolderStorage.open(path, verify=verify)
    from covis.maps.storage.engine_storage import EngineStorage

    return EngineStorage.open(path, config)
