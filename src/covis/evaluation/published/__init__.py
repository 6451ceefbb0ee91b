"""The method's published figures as data, with the caveats that matter when comparing with them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from covis.core.errors import unknown_name
from covis.datasets import DATASETS
from covis.datasets.seven_scenes import SCENES

SOURCE = (
    "M. Leyva-Vallina, N. Strisciuglio, N. Petkov: Data-efficient Large Scale Place Recognition with Graded "
    "Similarity Supervision, CVPR 2023"
)
PUBLISHED_TABLES = {
    "table1_batch_and_loss": "Table 1: labels in batch and loss, MSLS",
    "table2_sota": "Table 2: comparison with other methods, all trained on MSLS",
    "table3_ablation_gem": "Table 3: backbones with GeM, contrastive against generalised contrastive, whitening",
    "table4_losses_cmu": "Table 4: losses, VGG16, CMU Seasons",
    "table5_training_cost": "Table 5: training time and memory",
    "table6_cmu_detailed": "Table 6: Extended CMU Seasons by surroundings",
    "table7_robotcar_detailed": "Table 7: RobotCar Seasons v2 by condition",
    "table8_pitts250k_tokyotm": "Table 8: Pittsburgh 250k and TokyoTM",
    "table9_ablation_avg": "Table 9: backbones with average pooling, whitening",
    "table10_batch_strategies": "Table 10: batch compositions A to D, MSLS",
    "table11_7scenes_ap": "Table 11: average precision, 7Scenes",
}
PROTOCOLS = {
    "msls_val": "msls_val",
    "msls_test": "msls_test",
    "pitts30k": "pitts30k_test",
    "pitts250k": "pitts250k_test",
    "tokyo247": "tokyo247_cutouts",
    "tokyotm": "tokyotm_val",
    "robotcar": "robotcar_v2",
    "cmu": "cmu_extended_one_map",
}
"""Column prefix → our protocol that counts in the same way as the published figures."""


COUNTS = {
    "msls_val": (740, 18871),
    "pitts30k_test": (6816, 10000),
    "pitts250k_test": (8280, 83952),
    "tokyo247_cutouts": (315, 75984),
    "tokyotm_val": (7186, 49056),
    **{f"7scenes_{scene}": counts for scene, counts in SCENES.items()},
}
"""Queries and map images of the whole benchmark; another count is another benchmark."""
AT_LEAST = {
    "msls_test": DATASETS["msls"].at_least["test"],
    "robotcar_v2": (1_800, 6_000),  # one camera of three
    "cmu_extended_one_map": DATASETS["cmu_extended"].at_least["test"],
}
"""Lower bounds of these counts where only servers know the exact ones; fewer means a part of the benchmark."""
DENOMINATORS: dict[str, Literal["answerable", "all"]] = dict.fromkeys(
    ("pitts30k_test", "pitts250k_test", "tokyo247_cutouts", "tokyotm_val"), "answerable"
)
"""What published recalls divide by where that is not the protocol's headline: the authors' loop skips other queries."""
_FIGURE = re.compile(r"(?:(?P<where>.+)_)?(?:r(?P<k>\d+)|(?P<limit>[\d.]+m_\d+deg))")
_WHITENED = "its whitening was fitted on the evaluated set's own map images"
_CAVEATS = {
    "table4_losses_cmu": "CMU Seasons, not Extended CMU Seasons: comparable within its table only",
    "table7_robotcar_detailed": "its header says 10 m where the text says 5 m for the coarse limit",
    "tokyo247": "counted over all cut-outs, without keeping the best of each panorama",
    "pitts": "divided by the queries that have a positive",
    "tokyotm": "divided by the queries that have a positive",
    "ResNeXt": "started from Instagram-pretrained weights, not from plain ImageNet",
}


@dataclass(frozen=True)
class Published:
    """One published figure, in percent."""

    table: str
    method: str
    benchmark: str
    """Our protocol that counts the same way; empty where there is none."""
    part: str
    """The condition or surroundings it is about; empty for all."""
    figure: str
    """`recall@1`, `localised@0.25m_2deg`, `average_precision`."""
    value: float
    loss: str = ""
    whitened: bool | None = None
    dim: int | None = None
    caveats: tuple[str, ...] = ()
    doubtful: bool = False
    """Whether the figure is known or likely to be misprinted: never a target."""

    @property
    def key(self) -> str:
        """The figure, with the part that it is about."""
        return f"{self.part} {self.figure}".strip()


@cache
def rows(table: str) -> tuple[Mapping[str, str], ...]:
    """The rows of one table as printed."""
    if table not in PUBLISHED_TABLES:
        raise unknown_name("published table", table, PUBLISHED_TABLES)
    text = resources.files(__package__).joinpath(f"{table}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@cache
def published(benchmark: str = "") -> tuple[Published, ...]:
    """Every published figure, or those of one benchmark."""
    figures = [f for table in PUBLISHED_TABLES for row in rows(table) for f in printed_figures(table, row).values()]
    return tuple(f for f in figures if benchmark in ("", f.benchmark))


def printed_figures(table: str, row: Mapping[str, str]) -> dict[str, Published]:
    """The figures of one printed row, by column; cells that are no figures or are empty are left out."""
    if table == "table11_7scenes_ap":
        return {column: _scene(row, column) for column in row if column != "scene"}
    matches = {column: _FIGURE.fullmatch(column) for column, cell in row.items() if cell}
    return {column: _figure(table, row, match, float(row[column])) for column, match in matches.items() if match}


def _figure(table: str, row: Mapping[str, str], match: re.Match[str], value: float) -> Published:
    where = match["where"] or ""
    method, benchmark, part = row.get("method") or row["loss"], PROTOCOLS.get(where, ""), ""
    if table == "table10_batch_strategies":
        benchmark = {"Validation": "msls_val", "Test": "msls_test"}[row["msls_set"]]
        method = f"{method}, strategy {where}"
    elif table in ("table4_losses_cmu", "table6_cmu_detailed", "table7_robotcar_detailed"):
        benchmark = {"table6_cmu_detailed": "cmu_extended_one_map", "table7_robotcar_detailed": "robotcar_v2"}.get(
            table, ""
        )
        part = "" if where in ("mean", "all") else where.replace("_", "-")
    if row.get("batch"):
        method = f"{method}, {row['batch']} batches"
    whitened = _whitened(table, row)
    return Published(
        table,
        method,
        benchmark,
        part,
        f"recall@{match['k']}" if match["k"] else f"localised@{match['limit']}",
        value,
        loss=row.get("loss", "") if "method" in row else "",
        whitened=whitened,
        dim=int(row["dim"]) if row.get("dim") else None,
        caveats=_caveats(table, where, method, whitened),
        doubtful=_doubtful(table, where, row, whitened),
    )


def _scene(row: Mapping[str, str], column: str) -> Published:
    scene = row["scene"].lower()
    benchmark = "" if scene == "mean" else f"7scenes_{scene}"
    return Published(
        "table11_7scenes_ap", column, benchmark, "", "average_precision", round(100 * float(row[column]), 6)
    )


def _whitened(table: str, row: Mapping[str, str]) -> bool | None:
    if row.get("pca_whitening"):
        return row["pca_whitening"].startswith("Y")
    # In these two tables a star means whitened; in Table 2 it means re-ranked.
    return row["method"].endswith("*") if table in ("table6_cmu_detailed", "table7_robotcar_detailed") else None


def _caveats(table: str, where: str, method: str, whitened: bool | None) -> tuple[str, ...]:
    caveats = [text for key, text in _CAVEATS.items() if key == table or where.startswith(key)]
    if method.lower().startswith("resnext"):
        caveats.append(_CAVEATS["ResNeXt"])
    return (*caveats, _WHITENED) if whitened else tuple(caveats)


def _doubtful(table: str, where: str, row: Mapping[str, str], whitened: bool | None) -> bool:
    """Table 7 holds CMU figures in its ResNet152 rows and one row twice, which Table 9 repeats; one row is all zero.

    Table 10 gives ResNet152 with strategy D the same 64.8 on MSLS test as ResNeXt, above its other strategies.
    """
    method = row.get("method", "").lower()
    if table == "table10_batch_strategies":
        return where == "D" and method.startswith("resnet152") and row["msls_set"] == "Test"
    if table == "table7_robotcar_detailed":
        return (method.startswith("resnet152") and where != "mean") or method == "resnext-avg-gcl*"
    if table == "table9_ablation_avg":
        return where == "robotcar" and method == "resnext-avg-gcl" and bool(whitened)
    zero = row.get("robotcar_5m_10deg") == "0.0"
    return where == "robotcar" and zero


def other_counts(benchmark: str, queries: int, database: int) -> str:
    """Why published figures cannot be compared with these counts of queries and map images; empty where they can."""
    reason = f"other protocol: {benchmark} has {queries:,} queries and {database:,} map images here"
    if benchmark in COUNTS:
        expected = COUNTS[benchmark]
        return "" if (queries, database) == expected else f"{reason}, published are {expected[0]:,} and {expected[1]:,}"
    least = AT_LEAST.get(benchmark)
    if least is None:
        return f"other protocol: nothing is published that counts as {benchmark} does"
    whole = queries >= least[0] and database >= least[1]
    return "" if whole else f"{reason}, not the whole benchmark (at least {least[0]:,} and {least[1]:,})"
