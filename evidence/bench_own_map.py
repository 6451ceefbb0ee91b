"""What poses teach a map of one's own photos: photos of new walks as queries to maps of other walks of the same places.

A table of photos is cut by its groups (walks) into four: the photos of each quarter are queries to a map of the others,
made as `covis index` makes it. A photo counts as found if its match was taken within 25 m and 40° of it; photos that
have no such match in the map are left out. The whitening that `index` chose (`chosen`) is compared with PCA whitening,
with power 0.75, and with learned whitenings by yes/no labels and by ψ of 25 m as `index` usually weights it, all before
and after consensus; gains over PCA whitening have 95 % intervals over walks and over photos.

What new walks find is compared with what each map estimates of itself (`self`), over several cuts of the walks because
a single cut moves the difference by some points; and with what new walks find in maps that lack one more walk, as a map
does when its own photos are the queries (`fewer`). The cost of fitting is compared with that of describing the photos.

`--labels` compares labels alone, without consensus: none (nearest photos of other walks), yes/no, ψ of 50 m and of 25 m
to several powers, and ψ of 25 m weighted by how often pairs of such ψ look alike on the map's own photos (`measured`).

    python -m evidence.bench_own_map --table photos.csv --weights backbone.safetensors --keep FOLDER

Without arguments it takes the campus photos and the weights of `../shared/data`, if they are there.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evidence.own_map import TABLES, WEIGHTS, Photos, as_map, described, finished, folds, whiten
from evidence.reporting import report

if TYPE_CHECKING:
    from covis.images import ImageSet
    from covis.maps.whitening import Choice
    from covis.ranking import Ranking
    from covis.whitening import WhiteningRule

FOLDS = 4
_DEEP = 200
"""Number of matches, enough that some are of another walk than the one that a map is to lack."""
KS = (1, 5, 10)
POWERS = (1.0, 2.0, 4.0, 6.0)


@dataclass
class Outcomes:
    """Of every query photo: whether each whitening found it, and its walk."""

    found: dict[str, list[NDArray[np.bool_]]] = field(default_factory=dict)
    """(Q, 5) whether found at rank 1, 5, 10, and by consensus at 1 and 5."""
    walk: list[NDArray[np.integer[Any]]] = field(default_factory=list)
    itself: list[NDArray[np.bool_]] = field(default_factory=list)
    """(Q, 5) the same for the map's own photos, by fits that did not see their walk."""
    fewer: list[tuple[int, int]] = field(default_factory=list)
    """For each walk of a map: how many photos the map finds at rank 1 without that walk, and how many it could find."""
    chosen: list[str] = field(default_factory=list)
    seconds: list[dict[str, float]] = field(default_factory=list)
    """How often pairs of each ψ look alike, for each map."""

    def table(self, name: str) -> NDArray[np.float64]:
        """(Q, 5) over all maps."""
        return np.concatenate(self.found[name]).astype(float)


def right(images: ImageSet, asked: ImageSet, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(Q, K) which matches stand within 25 m of the query photo and face within 40° of it."""
    from covis.evaluation.relevance import NEAR_ALIKE

    graph = NEAR_ALIKE(asked, images).to_scipy()
    rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    return (np.asarray(graph[rows.ravel(), np.maximum(ids, 0).ravel()]).reshape(ids.shape) > 0) & (ids >= 0)


def hits(images: ImageSet, asked: ImageSet, ranking: Ranking, agreed: Ranking) -> NDArray[np.bool_]:
    """(Q, 5) whether found at rank 1, 5, 10, and by consensus at 1 and 5."""
    plain, voted = right(images, asked, ranking.ids), right(images, asked, agreed.ids)
    return np.column_stack([*(plain[:, :k].any(axis=1) for k in KS), *(voted[:, :k].any(axis=1) for k in (1, 5))])


def whitened(
    photos: Photos, images: ImageSet, known: NDArray[np.int64], seconds: dict[str, float], *, alone: bool
) -> tuple[Choice, dict[str, tuple[NDArray[np.float32], WhiteningRule]]]:
    """The choice that `covis index` makes for a map of `known` photos, and all photos' descriptors by each whitening.

    alone: by the chosen one only.
    """
    from covis.evaluation.whitening_fits import affordable, labelled_pairs
    from covis.maps.whitening import USUAL, Choice, WhiteningTrial, shared_dims
    from covis.whitening import PCA, WhiteningRule, moments

    raw, clock = photos.raw[known], time.process_time
    dim, start = affordable(photos.recipe.whiten, len(images)), clock()
    rules = {"pca": PCA, "power 0.75": WhiteningRule(power=0.75), "yes/no": WhiteningRule("binary"), "graded": USUAL}
    with moments(raw, shared_dims(dim, raw), fewer=True) as fitted:
        seconds["moments"] = clock() - start
        made = {}
        if not alone:
            basis = fitted.directions[:, :dim].astype(np.float32)
            turned = (photos.raw - fitted.mean.astype(np.float32)) @ basis
        for name, rule in () if alone else rules.items():
            start = clock()
            pairs = None if rule.labels == "none" else labelled_pairs(images, raw, rule, photos.recipe.labels)
            metric = fitted.metric(dim, rule, within=None if pairs is None else fitted.within(pairs))[:dim]
            seconds[name] = clock() - start
            made[name] = unit(turned @ metric.astype(np.float32)), rule
        start = clock()
        across = WhiteningTrial(images, fitted, dim, photos.recipe.labels)
        tried, chosen = across.choose()
        seconds["choice"] = clock() - start
        choice = Choice(across.whitening(chosen.rules[0]), tried, chosen)  # as `choose_whitening` does
    return choice, made | {"chosen": (whiten(choice.whitening, photos.raw), choice.tried.rules[choice.tried.best])}


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def ask(
    photos: Photos, known: NDArray[np.int64], new: NDArray[np.int64], kept: Outcomes, *, alone: bool = False
) -> None:
    """Makes one map, queries it, and notes what every whitening found, or only the chosen one if `alone`."""
    from covis.maps.settings import EVIDENCE
    from covis.search import Consensus, rank

    images, asked, seconds = as_map(photos.images, known), photos.images.subset(new), {}
    choice, made = whitened(photos, images, known, seconds, alone=alone)
    tried, best, held = choice.tried, choice.tried.rules[choice.tried.best], choice.held_out()
    questions = {rule: tried.held_out(i) for i, rule in enumerate(tried.rules)} | {best: held}
    poses = images.poses
    agreed = {
        r: Consensus(poses, EVIDENCE.context).fit(q.ranking, poses.subset(q.queries)) for r, q in questions.items()
    }
    answerable = right(images, asked, np.broadcast_to(np.arange(len(known)), (len(new), len(known)))).any(axis=1)
    for name, (white, rule) in made.items():
        ranking = rank(white[new], white[known], EVIDENCE.context)
        consensus = agreed.get(rule, agreed[best])  # a rule outside the map's choice votes as the map does
        kept.found.setdefault(name, []).append(hits(images, asked, ranking, consensus(ranking))[answerable])
    kept.walk.append(np.asarray(asked.group)[answerable])
    white, _ = made["chosen"]
    kept.fewer += one_walk_fewer(images, asked, rank(white[new], white[known], _DEEP).ids)
    mine = hits(images, images.subset(held.queries), held.ranking, agreed[best](held.ranking))
    kept.itself.append(mine[choice.asked.answerable[held.queries]])
    kept.chosen.append(f"a = {best.total_share:g}, p = {best.exponent:g}")
    kept.seconds.append(seconds)


def one_walk_fewer(images: ImageSet, asked: ImageSet, ids: NDArray[np.int64]) -> list[tuple[int, int]]:
    """For each walk of a map, how many queries the map finds at rank 1 without that walk, and how many it could find.

    ids (Q, K): positions of their matches in the whole map.
    """
    from covis.evaluation.relevance import NEAR_ALIKE

    graph, walk = NEAR_ALIKE(asked, images).to_scipy(), np.asarray(images.group, np.int64)
    by_walk = np.stack([np.asarray((graph[:, walk == one] > 0).sum(axis=1)).ravel() for one in np.unique(walk)], axis=1)
    near, counts = right(images, asked, ids), []
    for column, one in enumerate(np.unique(walk)):
        first = (walk[ids] != one).argmax(axis=1)
        could = by_walk.sum(axis=1) > by_walk[:, column]
        counts.append((int(near[np.arange(len(ids)), first][could].sum()), int(could.sum())))
    return counts


def compare_labels(photos: Photos, known: NDArray[np.int64], new: NDArray[np.int64], kept: Outcomes) -> None:
    """Fits whitenings by several labels to one map, queries it by each, and notes what was found."""
    from covis.evaluation.whitening_fits import affordable, labelled_pairs
    from covis.search import rank
    from covis.whitening import PCA, WhiteningRule, moments

    images, asked, raw = as_map(photos.images, known), photos.images.subset(new), photos.raw[known]
    dim, near = affordable(photos.recipe.whiten, len(images)), photos.recipe.labels
    wide = replace(near, radius_m=50.0)
    labels = {
        "pca": (PCA, near),
        "nearest": (WhiteningRule("nearest"), near),
        "yes/no": (WhiteningRule("binary"), near),
    }
    labels |= {
        f"ψ^{p:g}, {rule.radius_m:g} m": (WhiteningRule("graded", p), rule) for rule in (wide, near) for p in POWERS
    }
    answerable = right(images, asked, np.broadcast_to(np.arange(len(known)), (len(new), len(known)))).any(axis=1)
    with moments(raw, dim, fewer=True) as fitted:
        turned = (photos.raw - fitted.mean.astype(np.float32)) @ fitted.directions.astype(np.float32)
        for name, (rule, grades) in labels.items():
            pairs = None if rule.labels == "none" else labelled_pairs(images, raw, rule, grades)
            metric = fitted.metric(dim, rule, within=None if pairs is None else fitted.within(pairs))
            white = unit(turned @ metric.astype(np.float32))
            ranking = rank(white[new], white[known], max(KS))
            kept.found.setdefault(name, []).append(hits(images, asked, ranking, ranking)[answerable])
    kept.walk.append(np.asarray(asked.group)[answerable])


def rows_of(name: str, backbone: str, kept: Outcomes) -> list[dict[str, Any]]:
    """One row for each whitening, in percent."""
    from covis.evaluation.statistics import bootstrap_interval

    walk, base = np.concatenate(kept.walk), kept.table("pca")
    rows = []
    for whitening in kept.found:
        outcomes = kept.table(whitening)
        mean = 100 * outcomes.mean(axis=0)
        row: dict[str, Any] = {"table": name, "backbone": backbone, "whitening": whitening, "photos": len(outcomes)}
        row |= dict(zip(("r1", "r5", "r10", "consensus_r1", "consensus_r5"), map(float, mean), strict=True))
        for label, column in (("r1", 0), ("r5", 1), ("consensus_r1", 3)):
            gap = 100 * (outcomes - base)[:, column]
            (low, high), (q_low, q_high) = bootstrap_interval(gap, walk)[0], bootstrap_interval(gap)[0]
            row |= {f"gain_{label}": gap.mean(), f"gain_{label}_low": low, f"gain_{label}_high": high}
            row |= {f"gain_{label}_photos_low": q_low, f"gain_{label}_photos_high": q_high}
        rows.append({key: float(v) if isinstance(v, np.floating) else v for key, v in row.items()})
    return rows


def measured(table: Path, weights: Path, keep: Path, *, labels: bool) -> dict[str, Any]:
    """The outcome of each photo of one table, and a row about its maps, as JSON."""
    photos, kept = described(table, weights, keep), Outcomes()
    for known, new in folds(photos.images, FOLDS, 0):
        (compare_labels if labels else ask)(photos, known, new, kept)
    about = {"table": photos.name, "backbone": photos.backbone} | ({} if labels else costs(photos, kept))
    itself = {} if labels else {"cut": compared(kept)}
    plain = {name: [part.astype(int).tolist() for part in parts] for name, parts in kept.found.items()}
    lists = {"found": plain, "walk": [part.tolist() for part in kept.walk]}
    return {"map": about, "outcomes": lists} | itself


def another_cut(table: Path, weights: Path, keep: Path, *, seed: int) -> dict[str, Any]:
    """What maps of another cut of the walks found, as JSON."""
    photos, kept = described(table, weights, keep), Outcomes()
    for known, new in folds(photos.images, FOLDS, seed):
        ask(photos, known, new, kept, alone=True)
    return compared(kept)


def compared(kept: Outcomes) -> dict[str, Any]:
    """Percent found at rank 1, 5, 10, and by consensus at 1 and 5, of own photos and of new walks, in one cut."""
    itself, new = (100 * np.concatenate(part).mean(axis=0) for part in (kept.itself, kept.found["chosen"]))
    hit, could = np.array(kept.fewer).sum(axis=0)
    return {"self": itself.tolist(), "new": new.tolist(), "fewer": float(100 * hit / could), "chosen": kept.chosen}


def over_cuts(cuts: list[dict[str, Any]]) -> dict[str, Any]:
    """What maps estimate of themselves and what new walks find: means over cuts, and the difference in each cut."""
    summary: dict[str, Any] = {"cuts": len(cuts), "chosen": sorted({rule for cut in cuts for rule in cut["chosen"]})}
    for key, column in (("r1", 0), ("r5", 1), ("consensus_r1", 3)):
        itself, new = (np.array([cut[name][column] for cut in cuts]) for name in ("self", "new"))
        summary |= {f"self_{key}": float(itself.mean()), f"new_{key}": float(new.mean())}
        summary |= {f"gap_{key}": float((new - itself).mean()), f"gap_{key}_each": (new - itself).tolist()}
    return summary | {"fewer_r1": float(np.mean([cut["fewer"] for cut in cuts]))}


def costs(photos: Photos, kept: Outcomes) -> dict[str, float]:
    """CPU seconds of fitting a map, and their percentage of the seconds for describing its photos."""
    embedding = photos.embedding_s() * (FOLDS - 1) / FOLDS
    names = {"pca": "moments", "learned": "graded", "choice": "choice"}
    spent = {name: float(np.mean([s[key] for s in kept.seconds])) for name, key in names.items()}
    shares = {f"{name}_share": 100 * seconds / embedding for name, seconds in spent.items()}
    return {"embedding_s": embedding, **{f"{name}_s": seconds for name, seconds in spent.items()}, **shares}


def together(parts: dict[str, Outcomes]) -> Outcomes:
    """All tables as one, with their walks kept apart."""
    both = Outcomes()
    for number, kept in enumerate(parts.values()):
        for name, tables in kept.found.items():
            both.found.setdefault(name, []).extend(tables)
        both.walk += [np.asarray(walk) + 100_000 * number for walk in kept.walk]
    return both


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Gains over PCA whitening with intervals over walks."""
    import matplotlib.pyplot as plt

    from covis.report.style import STYLE

    plt.rcParams.update(STYLE)
    backbones = list(dict.fromkeys(row["backbone"] for row in rows))
    figure, axes = plt.subplots(1, len(backbones), figsize=(4.6 * len(backbones), 3.4), sharex=True, squeeze=False)
    names = [name for name in dict.fromkeys(row["whitening"] for row in rows) if name != "pca"]
    tables = list(dict.fromkeys(row["table"] for row in rows))
    for axis, backbone in zip(axes[0], backbones, strict=True):
        for t, table in enumerate(tables):
            mine = {r["whitening"]: r for r in rows if r["backbone"] == backbone and r["table"] == table}
            y = np.arange(len(names)) + 0.22 * (t - (len(tables) - 1) / 2)
            gain = np.array([[mine[n][f"gain_r1{end}"] for end in ("", "_low", "_high")] for n in names])
            span = np.abs(gain[:, 1:].T - gain[:, 0])
            axis.errorbar(gain[:, 0], y, xerr=span, fmt="o", markersize=4, capsize=3, label=table)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set(
            title=backbone, yticks=range(len(names)), yticklabels=names, xlabel="points of Recall@1 over PCA whitening"
        )
        axis.invert_yaxis()
    axes[0, 0].legend(frameon=False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, nargs="*", default=TABLES, help="photos with positions and groups")
    parser.add_argument("--weights", type=Path, nargs="*", default=WEIGHTS, help="backbones (.safetensors)")
    parser.add_argument("--keep", type=Path, help="folder that keeps descriptors and finished tables for another run")
    parser.add_argument("--labels", action="store_true", help="compare labels alone")
    parser.add_argument("--cuts", type=int, default=3, help="of the walks, over which maps are compared with new walks")
    parser.add_argument("--plot", type=Path, help="write gains with their intervals as a picture")
    given = parser.parse_args()
    if not all(path.is_file() for path in (*given.table, *given.weights)):
        print("no photos here: give --table and --weights")
        return
    rows, maps, topic = [], [], "own_map_labels" if given.labels else "own_map"
    with tempfile.TemporaryDirectory() as folder:
        keep = given.keep or Path(folder)
        for weights in given.weights:
            parts: dict[str, Outcomes] = {}
            for table in given.table:
                name = f"{topic}-{table.stem}-{weights.stem}"
                record = finished(keep, name, partial(measured, table, weights, keep, labels=given.labels))
                kept = parts[table.stem] = Outcomes(**record["outcomes"])
                rows += rows_of(table.stem, record["map"]["backbone"], kept)
                maps.append(record["map"])
                if not given.labels:
                    cut = partial(another_cut, table, weights, keep)
                    more = [finished(keep, f"{name}-{n}", partial(cut, seed=n)) for n in range(1, given.cuts)]
                    maps[-1] |= over_cuts([record["cut"], *more])
            if len(parts) > 1:
                rows += rows_of("both", maps[-1]["backbone"], together(parts))
    report(topic, rows, {"folds": FOLDS, "maps": maps})
    if given.plot:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
