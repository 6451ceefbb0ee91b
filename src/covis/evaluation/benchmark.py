"""A protocol as a value: queries, map, relevant images, allowed matches, and the queries that means are taken over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.artifacts import fingerprint
from covis.core.card import card
from covis.core.errors import InputError
from covis.core.registry import Registry, first_doc_line
from covis.evaluation.metrics import KS, Ranked, positives, ranked_ids, repeated
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.ranking import Groups

Denominator = Literal["answerable", "all"]
_BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A named protocol over given images. Its fingerprint is printed with every figure.

    >>> import covis
    >>> town = covis.load_benchmark("town")
    >>> town.rule
    'within 25 m and, where both headings are known, 40°'
    >>> len(town.fingerprint)
    16
    """

    name: str
    queries: ImageSet
    database: ImageSet
    """The same object as `queries` where a set is matched with itself; a query then never matches itself."""
    relevance: SimilarityGraph | None
    """ψ of each query with each map image; None where the truth is hidden and only a submission can be made."""
    rule: str
    """What is relevant, in words."""
    similarity: SimilarityGraph | None = None
    """Graded ψ for the figures that use grades, where `relevance` itself has none."""
    groups: Groups = "any"
    """Which map images a query may match, by group: any, only its own (a city), or only others (another walk)."""
    apart: str = ""
    """A column of both sets: images of equal values never match (TokyoTM's time stamp)."""
    fold: str = ""
    """A column of the map: among images with equal values only the best is kept (cut-outs of a panorama)."""
    search_factor: int = 1
    """How many times deeper than the largest k to search, to make up for results that `apart` and `fold` remove."""
    denominator: Denominator = "answerable"
    """Whether the headline divides by the queries that have a relevant image, or by all."""
    ks: tuple[int, ...] = KS
    stricter: Mapping[str, SimilarityGraph] = field(default_factory=dict)
    """Stricter truths by name, such as within 5 m; their recalls are reported beside the headline's, each over the
    queries that it can answer."""
    thresholds: tuple[tuple[float, float], ...] = ()
    """(metres, degrees) within which the best match's pose counts as localised."""
    breakdown: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Labels of each query by which figures are split, such as condition."""
    pairs: bool = False
    """Whether average precision over all pairs is part of the protocol."""
    training: Callable[[], ImageSet] | None = None
    """Images of the same dataset's training split, on which whitening may be fitted."""
    submission: str = ""
    """The server's file format where the truth is hidden: "msls" or "visuallocalization"."""
    notes: tuple[str, ...] = ()
    """What a reader of its figures should know."""
    dataset: str = ""
    """The dataset that it is made from; empty for one made by hand."""
    split: str = ""
    """The split of that dataset."""
    frame: str = ""
    """The metric frame that the user chose for the positions; empty where it follows from the data."""

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.database))
        if 0 in shape:
            raise InputError(
                f"benchmark {self.name!r} has {shape[0]} queries and {shape[1]} map images; both are needed"
            )
        absent = [c for c in (self.apart,) if c and c not in self.queries.columns]
        absent += [c for c in (self.apart, self.fold) if c and c not in self.database.columns]
        if absent:
            raise InputError(f"benchmark {self.name!r} needs the column {absent[0]!r}, which its images lack")
        for side in ("relevance", "similarity"):
            graph: SimilarityGraph | None = getattr(self, side)
            if graph is not None and graph.shape != shape:
                raise InputError(f"{side} is {graph.shape}, but benchmark {self.name!r} has {shape}")
            if graph is not None:
                allowed = self.admissible(graph.rows, graph.indices)
                object.__setattr__(self, side, graph if allowed.all() else graph.keep(allowed))
        object.__setattr__(self, "stricter", {name: self._allowed(graph) for name, graph in self.stricter.items()})

    def _allowed(self, graph: SimilarityGraph) -> SimilarityGraph:
        """The relevant pairs of a graph that the protocol lets match."""
        return positives(graph.keep(self.admissible(graph.rows, graph.indices)))

    def __repr__(self) -> str:
        return f"Benchmark({self.name!r}, {len(self.queries)} queries, {len(self.database)} map images, {self.rule})"

    def _repr_html_(self) -> str:
        facts = {"queries": len(self.queries), "map images": len(self.database), "relevant": self.rule,
                 "matches": f"{self.groups} group", "divided by": f"{self.denominator} queries"}  # fmt: skip
        return card(f"Benchmark {self.name}", facts, self.database.poses.xy)

    @property
    def depth(self) -> int:
        """How many results to search for a query."""
        return min(max(self.ks) * self.search_factor, len(self.database))

    @property
    def one_set(self) -> bool:
        """Whether the set is matched with itself."""
        return self.queries is self.database

    @cached_property
    def group_codes(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Group codes of queries and map in one numbering, whatever the order in which each side names its groups."""
        if self.one_set:
            return self.queries.group, self.database.group
        code = {name: i for i, name in enumerate(sorted({*self.queries.group_names, *self.database.group_names}))}
        sides = (self.queries, self.database)
        first, second = (np.array([code[n] for n in side.group_names], np.int32)[side.group] for side in sides)
        return first, second

    def admissible(self, query: NDArray[Any], image: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each query may be matched with each map image; both broadcast, images must not be −1."""
        allowed = np.ones(np.broadcast(query, image).shape, bool)
        if self.one_set:
            allowed &= query != image
        if self.groups != "any":
            mine, theirs = self.group_codes
            same = mine[query] == theirs[image]
            allowed &= same if self.groups == "same" else ~same
        if self.apart:
            allowed &= self.queries.columns[self.apart][query] != self.database.columns[self.apart][image]
        return allowed

    def settle(self, ranking: Ranked) -> tuple[Ids, NDArray[np.float32]]:
        """Applies the protocol to a raw ranking: removes forbidden and repeated images and cuts it at the largest k.

        Returns ids (Q, max k), −1 where fewer are left, and distances (NaN where none were given). Settling a
        settled ranking changes nothing.
        """
        ids = ranked_ids(ranking, len(self.queries))
        if ids.size and int(ids.max()) >= len(self.database):
            raise InputError(f"the ranking names map image {int(ids.max())}, but the map has {len(self.database)}")
        given = getattr(ranking, "distances", None)
        distances = np.full(ids.shape, np.nan, np.float32) if given is None else np.asarray(given, np.float32)
        width = max(self.ks)
        out = np.full((len(ids), width), -1, np.int64)
        far = np.full((len(ids), width), np.nan, np.float32)
        step = max(1, _BLOCK // max(1, ids.shape[1]))
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            keep = self._kept(np.arange(start, start + len(ids[part]))[:, None], ids[part])
            order = np.argsort(~keep, axis=1, kind="stable")[:, :width]
            kept = np.take_along_axis(keep, order, 1)
            out[part, : order.shape[1]] = np.where(kept, np.take_along_axis(ids[part], order, 1), -1)
            far[part, : order.shape[1]] = np.where(kept, np.take_along_axis(distances[part], order, 1), np.nan)
        return out, far

    def _kept(self, query: Ids, ids: Ids) -> NDArray[np.bool_]:
        keep: NDArray[np.bool_] = (ids >= 0) & self.admissible(query, np.maximum(ids, 0))
        key = self._folds[np.maximum(ids, 0)] if self.fold else ids
        return keep & ~repeated(np.where(keep, key, -1 - np.arange(ids.shape[1])))

    @cached_property
    def _folds(self) -> NDArray[np.int64]:
        return np.unique(self.database.columns[self.fold], return_inverse=True)[1]

    @property
    def graded(self) -> SimilarityGraph:
        """ψ for the figures that use grades: `similarity` where there is one, otherwise `relevance`."""
        if self.similarity is not None:
            return self.similarity
        return self.positives if self.relevance is None else self.relevance

    @cached_property
    def positives(self) -> SimilarityGraph:
        """The relevant pairs."""
        if self.relevance is None:
            raise InputError(
                f"the truth of {self.name!r} is hidden; write a submission file for its server instead of a score"
            )
        return positives(self.relevance)

    def without(self, queries: NDArray[np.bool_], database: NDArray[np.bool_], why: str) -> Benchmark:
        """The benchmark without the images of two masks (Q,) and (M,): another protocol, and its notes say so."""
        if self.one_set:
            queries = database = queries | database
        lost = int(queries.sum()) + (0 if self.one_set else int(database.sum()))
        if not lost:
            return self
        kept = self.queries.subset(~queries)
        return replace(
            self,
            queries=kept,
            database=kept if self.one_set else self.database.subset(~database),
            breakdown={label: values[~queries] for label, values in self.breakdown.items()},
            notes=(*self.notes, f"{lost} images left out: {why}"),
            relevance=_optional_subgraph(self.relevance, ~queries, ~database),
            stricter={name: _subgraph(graph, ~queries, ~database) for name, graph in self.stricter.items()},
            similarity=_optional_subgraph(self.similarity, ~queries, ~database),
        )

    def facts(self) -> dict[str, Any]:
        """The protocol as plain values, for a manifest or a comparison."""
        return {
            "benchmark": self.name,
            "rule": self.rule,
            "measure": _measure(self.relevance),
            "graded_measure": _measure(self.similarity),
            "groups": self.groups,
            "apart": self.apart,
            "fold": self.fold,
            "search_factor": self.search_factor,
            "denominator": self.denominator,
            "thresholds": [list(t) for t in self.thresholds],
            "query_images": _images_fingerprint(self.queries, bool(self.thresholds)),
            "map_images": _images_fingerprint(self.database, bool(self.thresholds)),
            **({"stricter": {name: _measure(graph) for name, graph in self.stricter.items()}} if self.stricter else {}),
            **({"frame": self.frame} if self.frame else {}),
        }

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any image, group, relevant pair or rule of the protocol; not with its name or notes.

        Grades count by the rule that made them, not by their last digits, which may differ between processors.
        """
        facts = {k: v for k, v in self.facts().items() if k not in ("benchmark", "rule")}
        columns = [np.asarray(side.columns[c]) for c in (self.apart,) if c for side in (self.queries, self.database)]
        fold = [np.asarray(self.database.columns[self.fold])] if self.fold else []
        return fingerprint(facts, *self._pairs(), *columns, *fold)

    def _pairs(self) -> list[NDArray[Any]]:
        """Arrays of the relevant pairs, and of grades that come from no stated rule."""
        certain = [] if self.relevance is None else [self.positives]
        unstated = [g for g in (self.relevance, self.similarity) if g is not None and not g.facts]
        parts: list[NDArray[Any]] = [part for graph in certain for part in (graph.indptr, graph.indices)]
        parts += [part for graph in unstated for part in (graph.indptr, graph.indices, graph.values)]
        return [np.asarray(part) for part in parts]


def _measure(graph: SimilarityGraph | None) -> dict[str, Any]:
    facts = {} if graph is None else dict(graph.facts)
    return {key: value for key, value in facts.items() if key not in ("queries", "database")}


def _images_fingerprint(images: ImageSet, with_poses: bool) -> str:
    """Fingerprint of names and groups of images, and of poses where figures use them."""
    width = max(1, int(np.char.str_len(images.names).max(initial=1)))
    groups = np.array(images.group_names)[images.group]
    return fingerprint(images.names.astype(f"S{width}"), groups, images.poses.fingerprint() if with_poses else "")


def _optional_subgraph(
    graph: SimilarityGraph | None, rows: NDArray[np.bool_], columns: NDArray[np.bool_]
) -> SimilarityGraph | None:
    """The graph of the kept rows and columns, where there is one."""
    return None if graph is None else _subgraph(graph, rows, columns)


def _subgraph(graph: SimilarityGraph, rows: NDArray[np.bool_], columns: NDArray[np.bool_]) -> SimilarityGraph:
    """The graph of the kept rows and columns, renumbered."""
    keep = rows[graph.rows] & columns[graph.indices]
    row, column = np.cumsum(rows) - 1, np.cumsum(columns) - 1
    shape = (int(rows.sum()), int(columns.sum()))
    return SimilarityGraph.from_edges(
        row[graph.rows[keep]], column[graph.indices[keep]], graph.psi[keep], shape, graph.facts
    )


@dataclass(frozen=True)
class Protocol:
    """A benchmark before its data is read: which dataset and split it is made from, and how."""

    dataset: str
    split: str
    make: Callable[..., Benchmark]
    """Path of the dataset (and, for a table, `frame`) → the benchmark."""
    hidden: bool = False
    """Whether the truth is on a server, so that a submission file is written instead of figures."""

    def __call__(self, path: Path | None, frame: str = "") -> Benchmark:
        """The benchmark on the data at `path`; the positions of a table are in the metres of `frame`, if given."""
        if frame and self.dataset != "table":
            raise InputError("--frame goes with benchmark table; other datasets bring their own metres")
        chosen = {"frame": frame} if frame else {}
        return replace(self.make(path, **chosen), dataset=self.dataset, split=self.split, frame=frame)


BENCHMARKS: Registry[Protocol] = Registry("benchmark", lambda protocol: first_doc_line(protocol.make))
"""Name → its protocol."""


def register(
    name: str, dataset: str, split: str, *, hidden: bool = False
) -> Callable[[Callable[..., Benchmark]], Callable[..., Benchmark]]:
    """Decorator: the function makes benchmark `name` from that split of that dataset."""

    def bind(make: Callable[..., Benchmark]) -> Callable[..., Benchmark]:
        BENCHMARKS.register(name)(Protocol(dataset, split, make, hidden))
        return make

    return bind


def load_benchmark(name: str, data: Path | str | Mapping[str, Path] | None = None, *, frame: str = "") -> Benchmark:
    """Benchmark `name` on the data at a path; given several paths by dataset, on the one of its own dataset.

    frame: for benchmark `table`, the metric frame of the positions (EPSG code or PROJ text).
    """
    protocol = BENCHMARKS[name]
    path = data.get(protocol.dataset) if isinstance(data, Mapping) else data
    return protocol(None if path is None else Path(path), frame)
