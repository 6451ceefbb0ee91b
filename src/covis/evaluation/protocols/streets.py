"""Pittsburgh 30k and 250k, Tokyo 24/7 and TokyoTM: 25 m, whatever the heading, and every query in the denominator.

The original evaluator divides by all queries; others leave out those without a relevant image. Both are printed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from covis import datasets
from covis.evaluation.benchmark import BENCHMARKS, Benchmark
from covis.evaluation.protocols.rules import NEAR, NEAR_RULE


def pittsburgh(path: Path | None, dataset: str) -> Benchmark:
    """The test split of Pittsburgh: one map, no second rule."""
    name = f"{dataset}_test"
    queries, database = datasets.load(dataset, path, "test")
    return Benchmark(
        name,
        queries,
        database,
        NEAR(queries, database),
        rule=NEAR_RULE,
        denominator="all",
        notes=(_BOTH,),
        training=lambda: datasets.load(dataset, path, "train").database,
    )


for _name in ("pitts30k", "pitts250k"):
    BENCHMARKS.register(f"{_name}_test")(partial(pittsburgh, dataset=_name))


@BENCHMARKS.register("tokyo247")
def tokyo247(path: Path | None) -> Benchmark:
    """Tokyo 24/7 as its authors score it: 12·k cut-outs are searched and the best of each panorama is kept."""
    queries, database = datasets.load("tokyo247", path, "test")
    return Benchmark(
        "tokyo247",
        queries,
        database,
        NEAR(queries, database),
        rule=NEAR_RULE,
        fold="panorama",
        search_factor=12,
        denominator="all",
        notes=("of the 12 cut-outs of a panorama only the best counts", _BOTH),
    )


@BENCHMARKS.register("tokyo247_cutouts")
def tokyo247_cutouts(path: Path | None) -> Benchmark:
    """Tokyo 24/7 without that step: cut-outs of one panorama may fill the ranking. Some published figures count so."""
    queries, database = datasets.load("tokyo247", path, "test")
    return Benchmark(
        "tokyo247_cutouts",
        queries,
        database,
        NEAR(queries, database),
        rule=NEAR_RULE,
        denominator="all",
        notes=("cut-outs of one panorama count one by one: not the original protocol", _BOTH),
    )


@BENCHMARKS.register("tokyotm_val")
def tokyotm_val(path: Path | None) -> Benchmark:
    """TokyoTM's validation: 10·k are searched, and results of the query's own time stamp are dropped."""
    queries, database = datasets.load("tokyotm", path, "val")
    return Benchmark(
        "tokyotm_val",
        queries,
        database,
        NEAR(queries, database),
        rule=f"{NEAR_RULE}, taken at another time",
        apart="time_stamp",
        search_factor=10,
        denominator="all",
        training=lambda: datasets.load("tokyotm", path, "train").database,
        notes=("results of the query's own time stamp are dropped", _BOTH),
    )


_BOTH = "the headline divides by all queries, as the original evaluator does"
