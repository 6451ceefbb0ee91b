"""Everything that decides the town, as one value, and how its kernels are compiled."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from covis.core.artifacts import fingerprint
from covis.core.errors import InputError

SPLITS = ("train", "val", "test")
_VERSION = 4
"""Raised whenever the same configuration would give other images, so that old folders are not mistaken for new."""


@dataclass(frozen=True)
class TownConfig:
    """A simulated town: its size, its cameras, and the seed that everything else is drawn from."""

    seed: int = 0
    width: int = 96
    height: int = 72
    fov_deg: float = 90.0
    """Horizontal opening of every camera."""
    samples: int = 1
    """Rays across a pixel, besides those at its corners, where the corners differ; this number squared is cast."""
    train_blocks: tuple[int, int] = (4, 4)
    """Blocks of houses east and north; each split is a district of its own, out of sight of the others."""
    val_blocks: tuple[int, int] = (2, 2)
    test_blocks: tuple[int, int] = (3, 3)
    block_m: float = 72.0
    map_spacing_m: float = 4.0
    """Distance between two images of the map, in each driving direction."""
    query_spacing_m: float = 15.0
    """Distance between two images of each query traversal, in each driving direction."""
    jpeg_quality: int = 92

    def __post_init__(self) -> None:
        if min(self.width, self.height, self.samples, *self.train_blocks, *self.val_blocks, *self.test_blocks) < 1:
            raise InputError("a town needs at least one pixel, one ray and one block in each direction")
        if not (0 < self.fov_deg < 170 and self.block_m >= 50 and min(self.map_spacing_m, self.query_spacing_m) > 0):
            raise InputError("a town needs fov_deg in (0, 170), block_m of at least 50 and spacings above 0")

    @classmethod
    def small(cls, seed: int = 0) -> TownConfig:
        """A hamlet that renders in a few seconds, for tests."""
        return cls(
            seed=seed, width=64, height=48, train_blocks=(1, 1), val_blocks=(1, 1), test_blocks=(1, 1),
            map_spacing_m=10.0, query_spacing_m=30.0,
        )  # fmt: skip

    def blocks(self, split: str) -> tuple[int, int]:
        """Blocks east and north of the district of `split`."""
        return {"train": self.train_blocks, "val": self.val_blocks, "test": self.test_blocks}[split]

    def fingerprint(self) -> str:
        """Changes with any field, and with the renderer's version."""
        return fingerprint(asdict(self), _VERSION)


_FAST = {"contract", "arcp", "nsz", "reassoc"}
"""Liberties the compiler may take; infinities and NaN keep their meaning."""
ENTRY: dict[str, Any] = {"fastmath": _FAST}
"""Kernels that Python calls."""
INNER: dict[str, Any] = {"fastmath": _FAST, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Kernels that only kernels call. Nothing is allocated there, so arrays need no reference counts: three times faster."""
