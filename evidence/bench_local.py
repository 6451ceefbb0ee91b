"""Re-ranking by local features against the ranking without it: recall, and what it costs per query.

    python -m evidence.bench_local --model MODEL --benchmark campus_west --data campus/ local:sift local:xfeat=xfeat.onnx
    python -m evidence.bench_local --benchmark town --whiten 0 --topic local_town

Some of the queries, evenly spread, are searched in the whole map. Without a model, photos are described by a network
trained on ImageNet and whitened on the map without labels, and the town by a model of the recipe town_quick. Without
arguments it takes the campus photos and weights of `../shared/data`, if they are there.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evidence.reporting import report

if TYPE_CHECKING:
    from covis.describing.describers import ModelDescriber
    from covis.descriptors import Describer
    from covis.images import ImageSet
    from covis.ranking import Ranking

KS = (1, 5, 10)
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
LOCAL = SHARED / "weights" / "local"
NAMES = ("local:sift", f"local:xfeat={LOCAL / 'xfeat.onnx'}")


def clusters(images: ImageSet) -> ModelDescriber:
    """MobileNetV2's features at two depths, in clusters fitted to the images themselves."""
    from dataclasses import replace

    from covis.describing.describers import ModelDescriber
    from covis.models import PlaceModel
    from covis.training.pooling_start import start_pooling
    from evidence.campus import DEPTHS

    file = SHARED / "weights" / "mobilenetv2_100_imagenet.safetensors"
    model = PlaceModel.build(replace(DEPTHS["mobilenetv2"], weights=str(file)))
    start_pooling(model, images, seed=0, workers=0)
    return ModelDescriber(model, "MobileNetV2, two depths in clusters")


def trained(folder: Path) -> Describer:
    """A small network that learned the town's other streets from scratch."""
    from covis import experiments
    from covis.describing.describers import open_describer
    from covis.training.run import Resources, train

    train(experiments.get("town_quick"), folder, resources=Resources(workers=0, tensorboard=False))
    return open_describer(str(folder / "model"))


def recalls(ranking: Ranking, positives: Sequence[NDArray[np.int32]]) -> dict[str, float]:
    """Recall@k in percent; `positives` has one array of ids per query."""
    right = [np.isin(ids, wanted) for ids, wanted in zip(ranking.ids, positives, strict=True)]
    return {f"recall@{k}": 100 * float(np.mean([row[:k].any() for row in right])) for k in KS}


def compared(
    given: argparse.Namespace, data: Path | None, cache: Path
) -> tuple[list[dict[str, Any]], dict[str, object]]:
    """Rows of a benchmark, ranked once and re-ranked by each name, with features kept in `cache`; and its counts."""
    from covis.core.machine import cpu_seconds
    from covis.describing.describers import open_describer
    from covis.describing.rerankers import open_reranker
    from covis.evaluation import load_benchmark
    from covis.evaluation.run import Variants, export, fit_whitenings

    loaded = load_benchmark(given.benchmark, data)
    if given.model:
        describer = open_describer(given.model)
    else:
        describer = trained(cache / "run") if given.benchmark == "town" else clusters(loaded.database)
    exported = export(describer, loaded)
    if given.whiten:
        [whitening] = fit_whitenings(describer, exported, Variants(sizes=(given.whiten,)))
        exported = exported.whitened(whitening)
    ranking, _ = exported.ranking(describer)
    loaded, truth = exported.benchmark, exported.benchmark.positives
    answerable = [q for q in range(len(loaded.queries)) if len(truth.row(q)[0])]
    asked = np.array(answerable)[np.linspace(0, len(answerable) - 1, given.queries).astype(int)]
    ranking, positives = ranking.subset(asked), [truth.row(int(q))[0] for q in asked]
    rows = [{"re-ranking": "none", **recalls(ranking, positives), "cpu_ms_per_query": 0.0}]
    queries = loaded.queries.subset(asked)
    for name in given.names:
        os.environ["COVIS_CACHE"] = str(cache / str(len(rows)))  # no features of another run
        reranking = open_reranker(name, given.depth).prepare(describer, queries, loaded.database)
        started = cpu_seconds()
        again = reranking(ranking)
        cost = {"cpu_ms_per_query": 1000 * (cpu_seconds() - started) / len(asked), **getattr(reranking, "cost", {})}
        rows.append({"re-ranking": re.sub(r"=[^+,]*", "", name), **recalls(again, positives), **cost})
        print(rows[-1], flush=True)
    facts = {"benchmark": given.benchmark, "queries": len(asked), "map": len(loaded.database), "depth": given.depth}
    return rows, facts | {"whitened": given.whiten}


def main() -> None:
    """Re-ranks on one benchmark, with features extracted anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, help="re-rankers")
    parser.add_argument("--model", help="what gives descriptors")
    parser.add_argument("--benchmark", default="campus_west")
    parser.add_argument("--data", type=Path, help="its folder")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--whiten", type=int, default=512, help="0: as they are")
    parser.add_argument("--topic", default="local")
    given = parser.parse_args()
    data = given.data or (SHARED / "campus" if given.benchmark == "campus_west" else None)
    if data is not None and not data.exists():
        print(f"{data} is not there: nothing is measured")
        return
    with tempfile.TemporaryDirectory() as cache:
        rows, counts = compared(given, data, Path(cache))
    report(given.topic, rows, counts)


if __name__ == "__main__":
    main()
