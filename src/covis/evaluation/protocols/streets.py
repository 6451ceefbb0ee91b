"""Streets within 25 m at any heading: Pittsburgh, Tokyo, and the community's folders with positions in file names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from covis import datasets
from covis.evaluation.benchmark import Benchmark, register
from covis.evaluation.relevance import NEAR, NEAR_RULE, by_rule

_DENOMINATOR_NOTE = "the headline divides by all queries, as the original evaluator does"


def _streets(name: str, path: Path | None, dataset: str, split: str, **more: Any) -> Benchmark:
    """What the four share; `more` is what one of them adds."""
    more = {"words": NEAR_RULE, "notes": (), **more}
    notes = (*more.pop("notes"), _DENOMINATOR_NOTE)
    return by_rule(name, datasets.load(dataset, path, split), NEAR, denominator="all", notes=notes, **more)


def pittsburgh(path: Path | None, dataset: str, split: str) -> Benchmark:
    """A split of Pittsburgh: one map, no second rule."""
    return _streets(
        f"{dataset}_{split}",
        path,
        dataset,
        split,
        training=lambda: datasets.load(dataset, path, "train").database,
        notes=("the validation split: not the set of the published figures",) if split == "val" else (),
    )


register("pitts30k_val", "pitts30k", "val")(partial(pittsburgh, dataset="pitts30k", split="val"))
register("pitts30k_test", "pitts30k", "test")(partial(pittsburgh, dataset="pitts30k", split="test"))
register("pitts250k_val", "pitts250k", "val")(partial(pittsburgh, dataset="pitts250k", split="val"))
register("pitts250k_test", "pitts250k", "test")(partial(pittsburgh, dataset="pitts250k", split="test"))


@register("tokyo247", "tokyo247", "test")
def tokyo247(path: Path | None) -> Benchmark:
    """Tokyo 24/7 as its authors score it: 12·k cut-outs are searched and the best of each panorama is kept."""
    folded: dict[str, Any] = {"fold": "panorama", "search_factor": 12}
    note = "of the 12 cut-outs of a panorama only the best counts"
    return _streets("tokyo247", path, "tokyo247", "test", **folded, notes=(note,))


@register("tokyo247_cutouts", "tokyo247", "test")
def tokyo247_cutouts(path: Path | None) -> Benchmark:
    """Tokyo 24/7 without that step: cut-outs of one panorama may fill the ranking, as in some published figures."""
    note = "cut-outs of one panorama count one by one: not the original protocol"
    return _streets("tokyo247_cutouts", path, "tokyo247", "test", notes=(note,))


@register("tokyotm_val", "tokyotm", "val")
def tokyotm_val(path: Path | None) -> Benchmark:
    """TokyoTM's validation: 10·k are searched, and results of the query's own time stamp are dropped."""
    return _streets(
        "tokyotm_val",
        path,
        "tokyotm",
        "val",
        words=f"{NEAR_RULE}, taken at another time",
        apart="time_stamp",
        search_factor=10,
        training=lambda: datasets.load("tokyotm", path, "train").database,
        notes=("results of the query's own time stamp are dropped",),
    )


def folders(path: Path | None, split: str) -> Benchmark:
    """The community's `images/<split>/{queries,database}` folders with positions in the file names."""
    return by_rule(
        f"folders_{split}",
        datasets.load("utm_folders", path, split),
        NEAR,
        NEAR_RULE,
        denominator="all",
        training=lambda: datasets.load("utm_folders", path, "train").database,
        notes=("the headline divides by all queries, as the community's evaluators do",),
    )


register("folders_val", "utm_folders", "val")(partial(folders, split="val"))
register("folders_test", "utm_folders", "test")(partial(folders, split="test"))
