"""Re-ranking by local features beside the ranking without: recall, and what it costs per query.

    python benchmarks/bench_local.py --model MODEL --benchmark campus_west --data campus/ local:sift local:xfeat=xfeat.onnx

Some of the queries are asked, evenly spread; the whole map answers. Descriptors are whitened on the map, without labels.
Without arguments it takes the campus photos and weights of `../shared/data`, if they are there.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import re
from pathlib import Path

import numpy as np
from _common import report

KS = (1, 5, 10)
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
LOCAL = SHARED / "weights" / "local"
NAMES = ("local:sift", f"local:xfeat={LOCAL / 'xfeat.onnx'}", f"local:alike={LOCAL / 'alike-t.pth'}",
         f"local:xfeat={LOCAL / 'xfeat.onnx'}+lighterglue={LOCAL / 'lighterglue_L3.onnx'}")  # fmt: skip


def clusters(images):
    """MobileNetV2's features at two depths in clusters of the images' own."""
    from dataclasses import replace

    from covis.describing.describers import ModelDescriber
    from covis.experiments.campus import DEPTHS
    from covis.models import PlaceModel
    from covis.training.run import start_pooling

    file = SHARED / "weights" / "mobilenetv2_100_imagenet.safetensors"
    model = PlaceModel.build(replace(DEPTHS["mobilenetv2"], weights=str(file)))
    start_pooling(model, images, seed=0, workers=0)
    return ModelDescriber(model, "MobileNetV2, two depths in clusters")


def recalls(ranking, positives) -> dict[str, float]:
    """Recall@k in percent; `positives` one array of ids per query."""
    right = [np.isin(ids, wanted) for ids, wanted in zip(ranking.ids, positives, strict=True)]
    return {f"recall@{k}": 100 * float(np.mean([row[:k].any() for row in right])) for k in KS}


def main() -> None:
    """Ranks once, re-ranks by each name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, help="re-rankers")
    parser.add_argument("--model", help="what gives descriptors")
    parser.add_argument("--benchmark", default="campus_west")
    parser.add_argument("--data", type=Path, default=SHARED / "campus")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--whiten", type=int, default=512)
    parser.add_argument("--topic", default="local")
    given = parser.parse_args()
    from covis.describing.describers import open_describer
    from covis.describing.rerankers import open_reranker
    from covis.evaluation import load_benchmark
    from covis.evaluation.run import Variants, export, fit_whitenings
    from covis.machine import cpu_seconds

    if not given.data.exists():
        print(f"{given.data} is not there: nothing is measured")
        return
    benchmark = load_benchmark(given.benchmark, given.data)
    describer = open_describer(given.model) if given.model else clusters(benchmark.database)
    exported = export(describer, benchmark)
    [whitening] = fit_whitenings(describer, exported, Variants(sizes=(given.whiten,)))
    ranking, _ = exported.whitened(whitening).ranking(describer)
    benchmark, truth = exported.benchmark, exported.benchmark.positives
    answerable = [q for q in range(len(benchmark.queries)) if len(truth.row(q)[0])]
    asked = np.array(answerable)[np.linspace(0, len(answerable) - 1, given.queries).astype(int)]
    ranking, positives = ranking.subset(asked), [truth.row(int(q))[0] for q in asked]
    rows = [{"re-ranking": "none", **recalls(ranking, positives), "cpu_ms_per_query": 0.0}]
    queries = benchmark.queries.subset(asked)
    for name in given.names:
        reranking = open_reranker(name, given.depth).prepare(describer, queries, benchmark.database)
        started = cpu_seconds()
        again = reranking(ranking)
        cost = {"cpu_ms_per_query": 1000 * (cpu_seconds() - started) / len(asked), **getattr(reranking, "cost", {})}
        rows.append({"re-ranking": re.sub(r"=[^+,]*", "", name), **recalls(again, positives), **cost})
        print(rows[-1], flush=True)
    facts = {"benchmark": given.benchmark, "queries": len(asked), "map": len(benchmark.database), "depth": given.depth}
    report(given.topic, rows, facts | {"whitened": given.whiten})


if __name__ == "__main__":
    main()
