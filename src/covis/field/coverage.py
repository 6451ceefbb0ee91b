"""Where a map has photos, which ways they look, where answers fail, and therefore where to photograph next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.geojson import feature
from covis.images import ImageSet
from covis.poses import Poses

SECTORS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")
"""Headings in eighths; bit k of `Coverage.headings` is the k-th."""
_CELL_M = 25.0
"""The distance up to which a match is right."""
_MOST_CELLS = 4_000_000


@dataclass(frozen=True, eq=False)
class Coverage:
    """Square cells that have photos, lie between such cells, or hold failures; (C,) each."""

    frame: str
    cell_m: float
    corner: Floats
    """(C, 2) south-west corners, metres."""
    photos: NDArray[np.int64]
    headings: NDArray[np.uint8]
    """Bits of the eighths that photos look into."""
    unknown: NDArray[np.int64]
    """Photos of unknown heading."""
    neighbours: NDArray[np.int64]
    """How many of the eight cells around have photos."""
    failures: NDArray[np.int64]
    """Answers that were wrong or not confident here."""

    @property
    def missing(self) -> NDArray[np.int64]:
        """(C,) number of eighths that no photo looks into; 0 where a heading is unknown, since it may be any."""
        present = np.unpackbits(self.headings[:, None], axis=1).sum(axis=1).astype(np.int64)
        return np.where(self.unknown > 0, 0, len(SECTORS) - present)

    @property
    def need(self) -> Floats:
        """(C,) how much new photos are needed: failures first, then gaps in a covered street, then missing headings.

        A failure counts 1 (at most 5), an empty cell its covered neighbours ÷ 8, a covered one its missing share ÷ 2.
        """
        empty = self.photos == 0
        gap = np.where(empty, self.neighbours / 8.0, 0.5 * self.missing / len(SECTORS))
        wanted: Floats = np.minimum(self.failures, 5) + gap
        return wanted

    def next_places(self, most: int = 10) -> NDArray[np.int64]:
        """Ids of the cells to photograph first; ties by place."""
        order = np.lexsort((self.corner[:, 0], self.corner[:, 1], -self.need))
        return order[self.need[order] > 0][:most]

    def missing_headings(self, cell: int) -> list[str]:
        """The eighths that no photo of a cell looks into."""
        if self.photos[cell] == 0 or self.unknown[cell]:
            return list(SECTORS) if self.photos[cell] == 0 else []
        return [name for k, name in enumerate(SECTORS) if not self.headings[cell] >> k & 1]

    def summary(self, most: int = 10) -> dict[str, Any]:
        """Counts and the places to photograph next, as JSON values."""
        covered = self.photos > 0
        middle = self.corner + 0.5 * self.cell_m
        degrees = Poses(middle, np.full(len(middle), np.nan), frame=self.frame).latlon() if self.frame else None
        rows = []
        for cell in self.next_places(most):
            spot: dict[str, Any] = {"easting": round(middle[cell, 0], 1), "northing": round(middle[cell, 1], 1)}
            if degrees is not None:
                spot |= {"lat": round(degrees[cell, 0], 6), "lon": round(degrees[cell, 1], 6)}
            facts = {"photos": int(self.photos[cell]), "failures": int(self.failures[cell])}
            rows.append({**spot, **facts, "look": " ".join(self.missing_headings(int(cell)))})
        return {
            "cell_m": self.cell_m,
            "cells_with_photos": int(covered.sum()),
            "gaps": int((~covered & (self.neighbours > 0)).sum()),
            "cells_missing_headings": int((covered & (self.missing > 0)).sum()),
            "failures": int(self.failures.sum()),
            "photograph_next": rows,
        }

    def features(self) -> list[dict[str, Any]]:
        """The cells as polygons with their facts; needs a frame on Earth."""
        steps = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]) * self.cell_m
        rings = (self.corner[:, None] + steps).reshape(-1, 2)
        degrees = Poses(rings, np.full(len(rings), np.nan), frame=self.frame).latlon()[:, ::-1].reshape(-1, 5, 2)
        facts = {"photos": self.photos, "failures": self.failures, "need": self.need}
        return [
            feature("Polygon", [degrees[i].tolist()], {
                **{name: values[i].item() for name, values in facts.items()}, "missing_headings": " ".join(self.missing_headings(i)),
            })
            for i in range(len(self.corner))
        ]  # fmt: skip


def coverage(images: ImageSet, cell_m: float = _CELL_M, failures: Floats | None = None) -> Coverage:
    """Cells of `cell_m` around the photos of known position; `failures` (M, 2) are metres in the same frame.

    An empty cell counts as a gap where at least three of the eight around it have photos: between photos, not outside.
    """
    if not cell_m > 0:
        raise InputError(f"--cell {cell_m:g} must be metres above 0")
    if not images.poses.metric:
        raise InputError("coverage is in metres, and the scale of these poses is unknown; give --scale first")
    known = images.poses.known
    xy, heading = images.poses.xy[known], images.poses.heading[known]
    if not len(xy):
        raise InputError("no photo has a position; coverage needs them")
    lost = np.zeros((0, 2)) if failures is None else failures[~np.isnan(failures).any(axis=1)]
    cells = np.floor(np.concatenate([xy, lost]) / cell_m).astype(np.int64)
    low = cells.min(axis=0) - 1
    width, height = (cells.max(axis=0) - low + 2).tolist()
    if width * height > _MOST_CELLS:
        raise InputError(f"photos spread over {width} × {height} cells of {cell_m:g} m; choose a larger --cell")
    code = (cells[:, 1] - low[1]) * width + cells[:, 0] - low[0]
    photo_cells, failed_cells = code[: len(xy)], code[len(xy) :]
    photos = np.bincount(photo_cells, minlength=width * height)
    looks = np.zeros(width * height, np.uint8)
    sure = ~np.isnan(heading)
    sector = np.floor((heading[sure] + 22.5) / 45.0).astype(np.int64) % len(SECTORS)
    np.bitwise_or.at(looks, photo_cells[sure], np.left_shift(1, sector).astype(np.uint8))
    around = _around((photos > 0).reshape(height, width)).ravel()
    failed = np.bincount(failed_cells, minlength=width * height)
    use = np.flatnonzero((photos > 0) | (around >= 3) | (failed > 0))
    corner = (np.column_stack([use % width, use // width]) + low) * cell_m
    unknown = np.bincount(photo_cells[~sure], minlength=width * height)
    return Coverage(images.poses.frame, cell_m, corner, photos[use], looks[use], unknown[use], around[use], failed[use])


def _around(covered: NDArray[np.bool_]) -> NDArray[np.int64]:
    padded = np.pad(covered, 1).astype(np.int64)
    rows, columns = covered.shape
    shifts = ((i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1))
    total: NDArray[np.int64] = sum(padded[i : i + rows, j : j + columns] for i, j in shifts)  # type: ignore[assignment]
    return total
