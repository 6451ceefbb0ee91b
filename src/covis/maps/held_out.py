"""A map queried with its own photos as if they were new, and with pictures whose place it does not have.

A photo's own group (one walk, one drive) is left out where photos of other groups stand near enough to answer;
otherwise the photos next to it in the order of their names are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.crossval import WalkCrossValidation
from covis.descriptors import Matrix
from covis.images import ImageSet
from covis.maps.elsewhere import Bank
from covis.maps.evidence import FAR, Found
from covis.maps.settings import CALIBRATION, EVIDENCE
from covis.poses import PLACE_M
from covis.ranking import Ranking
from covis.search import rank

WALKS, NEIGHBOURS = "groups", "neighbours"
"""What is left out with a photo that is a query: its whole walk, or the photos next to it."""


@dataclass(frozen=True, eq=False)
class ElsewhereSearch:
    """What a map finds for pictures whose place it does not have: every answer is wrong."""

    absent: Found
    """Of the held-out photos (Q), with all photos within `CALIBRATION.absent_m` of each taken out of the map."""
    bank: Floats
    """(Q,) distance of each held-out photo to the nearest picture of the bank."""
    strangers: Found
    """Of the pictures of the bank (B)."""
    between: Floats
    """(B,) distance of each to the nearest picture of another family."""

    def subset(self, at: Ids) -> ElsewhereSearch:
        """Of some of the held-out photos, and all strangers."""
        return replace(self, absent=self.absent.subset(at), bank=self.bank[at])

    def stranger_fold(self, folds: int) -> Ids:
        """(B,) pictures of the bank, dealt out to folds."""
        return np.arange(len(self.between)) % max(1, folds)

    @classmethod
    def unasked(cls, photos: int, strangers: int) -> ElsewhereSearch:
        """No matches yet."""
        return cls(Found.none(photos), np.full(photos, FAR), Found.none(strangers), np.full(strangers, FAR))

    def ask(
        self, descriptors: Matrix, images: ImageSet, photos: Ids, bank: Bank, strangers: Ids, *, other_walks: bool
    ) -> None:
        """Fills in the results of some `photos` of the map and some `strangers` of the bank.

        `images` and `descriptors` as `hold_out` takes them; other_walks: a photo's own walk is left out too.
        """
        rows = images.columns.get("row", np.arange(len(images)))
        codes, xy = np.full(len(descriptors), -1, np.int64), np.zeros((len(descriptors), 2))
        codes[rows], xy[rows] = images.group, images.poses.xy
        asked = np.asarray(descriptors[rows[photos]])
        found = rank(
            asked, descriptors, EVIDENCE.context, codes[rows[photos]], codes, "other" if other_walks else "any",
            allowed=rows, beyond=(xy[rows[photos]], xy, CALIBRATION.absent_m),
        )  # fmt: skip
        self.absent.note(photos, Found.of(_positions(found, rows), descriptors, rows))
        self.bank[photos] = bank.distances(asked)
        if len(strangers):
            found = rank(bank.descriptors[strangers], descriptors, EVIDENCE.context, allowed=rows)
            self.strangers.note(strangers, Found.of(_positions(found, rows), descriptors, rows))
            self.between[strangers] = bank.distances_between_families()[strangers]


def _positions(ranking: Ranking, rows: Ids) -> Ranking:
    """Results that are rows of descriptors, as positions among the images whose rows are `rows`, ascending."""
    return Ranking(np.where(ranking.ids >= 0, np.searchsorted(rows, np.maximum(ranking.ids, 0)), -1), ranking.distances)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Photos used as queries to their own map, and the results."""

    queries: Ids
    """(Q,) positions in the map's images."""
    found: Found
    """Their matches (Q), nearest first."""
    method: str
    """`WALKS` or `NEIGHBOURS`: what was left out with each photo."""
    walk: Ids
    """(Q,) the group of each photo, or the stretch of its walk: photos that are right or wrong together."""
    fold: Ids
    """(Q,) whole walks that belong together when a fit is checked."""
    seen: int = 0
    """Descriptors of the map, the first ones, that are of photos whose poses its model learned from."""
    elsewhere: ElsewhereSearch | None = None
    """What the map finds where it does not have the place."""

    @classmethod
    def empty(cls, seen: int) -> HeldOut:
        """No queries: the model learned from the poses of all `seen` photos, and no fit lacks some of them."""
        none = np.zeros(0, np.int64)
        return cls(none, Found.none(0), WALKS, none, none, seen)

    @property
    def ids(self) -> Ids:
        """(Q, K) positions of the matches, nearest first; −1 for none."""
        return self.found.ranking.ids

    @property
    def distances(self) -> NDArray[np.float32]:
        """(Q, K) of the matches."""
        return self.found.ranking.distances

    def some(self, most: int) -> HeldOut:
        """At most `most` of the photos, evenly spread."""
        at = np.unique(np.linspace(0, len(self.queries) - 1, min(most, len(self.queries))).astype(np.int64))
        kept = {name: getattr(self, name)[at] for name in ("queries", "walk", "fold")}
        elsewhere = None if self.elsewhere is None else self.elsewhere.subset(at)
        return replace(self, **kept, found=self.found.subset(at), elsewhere=elsewhere)

    def save(self, file: Path) -> None:
        """Writes queries and results, with those of pictures from elsewhere, as arrays (.npz)."""
        asked = self.elsewhere
        assert asked is not None
        found = {"found": self.found, "absent": asked.absent, "strangers": asked.strangers}
        arrays: dict[str, Any] = {
            f"{n}_{part}": value for n, one in found.items() for part, value in one.arrays.items()
        }
        np.savez(
            file, **arrays, queries=self.queries, walk=self.walk, fold=self.fold, seen=self.seen, method=self.method,
            bank=asked.bank, between=asked.between,
        )  # fmt: skip

    @classmethod
    def load(cls, file: Path) -> HeldOut:
        """Back from `save`."""
        with np.load(file) as kept:
            found, absent, strangers = (
                Found(Ranking(kept[f"{name}_ids"], kept[f"{name}_distances"]), kept[f"{name}_alike"])
                for name in ("found", "absent", "strangers")
            )
            elsewhere = ElsewhereSearch(absent, kept["bank"], strangers, kept["between"])
            plain = {name: kept[name] for name in ("queries", "walk", "fold")}
            return cls(found=found, method=str(kept["method"]), seen=int(kept["seen"]), elsewhere=elsewhere, **plain)


def photos_key(images: ImageSet) -> str:
    """Identifies the photos whose poses a whitening learned from: their fingerprint, in the order of names."""
    return images.subset(np.argsort(images.names, kind="stable")).fingerprint()


def hold_out(
    images: ImageSet, descriptors: Matrix, folds: int = CALIBRATION.folds, *, seen: int = 0, bank: Bank | None = None
) -> HeldOut:
    """Queries a map with up to `CALIBRATION.queries` of its photos, and with the bank; the same photos each time.

    The descriptor of images[i] is the row `images.columns["row"][i]` (ascending) of `descriptors`, which may hold more.
    The first `seen` rows are of photos whose poses the model learned from: they can be matches, but not queries.
    """
    count = len(images)
    rng = np.random.default_rng(0)
    queries = np.sort(rng.permutation(np.flatnonzero(images.columns["row"] >= seen))[: CALIBRATION.queries])
    group = np.asarray(images.group, np.int64)
    apart = _answerable(images.poses.xy, queries, group) >= CALIBRATION.min_queries
    bank = bank or Bank.empty(descriptors.shape[1])
    elsewhere = ElsewhereSearch.unasked(count, len(bank))
    elsewhere.ask(descriptors, images, queries, bank, np.arange(len(bank)), other_walks=apart)
    elsewhere = elsewhere.subset(queries)
    search = _without_group if apart else _without_neighbours
    found = Found.of(search(images, descriptors, queries), descriptors, images.columns["row"])
    if apart:
        fold = WalkCrossValidation.of(group, folds, rng).fold[queries]
        return HeldOut(queries, found, WALKS, group[queries], fold, elsewhere=elsewhere)
    place = np.empty(count, np.int64)
    place[_walk_order(images)] = np.arange(count)
    stretch = place[queries] * CALIBRATION.stretches // max(1, count)
    fold = stretch * folds // CALIBRATION.stretches
    return HeldOut(queries, found, NEIGHBOURS, stretch, fold, elsewhere=elsewhere)


def _answerable(xy: Floats, queries: Ids, group: Ids) -> int:
    """How many queries have a photo of another group near enough to be right."""
    if len(np.unique(group)) < 2:
        return 0
    return sum(bool((group[((xy - xy[q]) ** 2).sum(axis=1) <= PLACE_M**2] != group[q]).any()) for q in queries.tolist())


def _without_group(images: ImageSet, descriptors: Matrix, queries: Ids) -> Ranking:
    rows, group = images.columns["row"], np.asarray(images.group, np.int64)
    codes = np.full(len(descriptors), -1, np.int64)
    codes[rows] = group
    ranking = rank(
        descriptors[rows[queries]], descriptors, EVIDENCE.context, group[queries], codes, "other", allowed=rows
    )
    return _positions(ranking, rows)


def _without_neighbours(images: ImageSet, descriptors: Matrix, queries: Ids) -> Ranking:
    """Searches a little deeper, then takes out the photos next to each in its walk."""
    rows = images.columns["row"]
    ranking = rank(
        descriptors[rows[queries]], descriptors, EVIDENCE.context + 2 * CALIBRATION.neighbours + 1, allowed=rows
    )
    ids = _positions(ranking, rows).ids
    place = np.empty(len(images), np.int64)
    place[_walk_order(images)] = np.arange(len(images))
    group = np.asarray(images.group)
    beside = np.abs(place[ids] - place[queries][:, None]) <= CALIBRATION.neighbours
    barred = (ids < 0) | (beside & (group[ids] == group[queries][:, None])) | (ids == queries[:, None])
    order = np.argsort(barred, axis=1, kind="stable")[:, : EVIDENCE.context]
    barred = np.take_along_axis(barred, order, 1)
    ids = np.where(barred, -1, np.take_along_axis(ids, order, 1))
    return Ranking(ids, np.where(barred, np.inf, np.take_along_axis(ranking.distances, order, 1)))


def _walk_order(images: ImageSet) -> Ids:
    """Photos by group, then by name, which is the order they were taken in on most cameras."""
    return np.lexsort((images.names, images.group))
