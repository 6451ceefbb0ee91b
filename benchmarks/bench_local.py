"""Re-ranking by local features beside the ranking without: recall, and what it costs per query.

    python benchmarks/bench_local.py --model MODEL --benchmark campus_west --data campus/ local:sift local:xfeat=xfeat.onnx

Some of the queries are asked, evenly spread; the whole map answers. Descriptors are whitened on the map, without labels.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from pathlib import Path

import numpy as np
from _common import report

KS = (1, 5, 10)


def recalls(ranking, positives) -> dict[str, float]:
    """Recall@k in percent; `positives` one array of ids per query."""
    right = [np.isin(ids, wanted) for ids, wanted in zip(ranking.ids, positives, strict=True)]
    return {f"recall@{k}": 100 * float(np.mean([row[:k].any() for row in right])) for k in KS}


def main() -> None:
    """Ranks once, re-ranks by each name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", help="re-rankers")
    parser.add_argument("--model", required=True, help="what gives descriptors")
    parser.add_argument("--benchmark", default="campus_west")
    parser.add_argument("--data", type=Path)
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

    describer, benchmark = open_describer(given.model), load_benchmark(given.benchmark, given.data)
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
        rows.append({"re-ranking": name.partition("=")[0], **recalls(again, positives), **cost})
        print(rows[-1], flush=True)
    facts = {"benchmark": given.benchmark, "queries": len(asked), "map": len(benchmark.database), "depth": given.depth}
    report(given.topic, rows, facts | {"whitened": given.whiten})


if __name__ == "__main__":
    main()
