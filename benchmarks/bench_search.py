"""Search against faiss: exact search in CPU time and memory, approximate kinds in recall, memory and time.

One thread each. Exact: the same queries through `covis.search.rank` and `faiss.IndexFlatL2`. Approximate: as `covis
search build` makes them, tuned to find 99 % of the ten nearest; queries one by one, as photos come, and a thousand at
once. CPU time. Memory: a million descriptors of 512 numbers, memory-mapped from disk, searched in a process of its own
whose anonymous memory is read.

Descriptors are synthetic, modelled on real ones (2,805 campus photos through MobileNetV2 and DINOv2, whose 64 leading
directions hold 82 to 87 % of the variance and whose twenty nearest spread in 19 to 28 dimensions): here 82 % and 21.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import cpu_seconds, report, versus
from numpy.typing import NDArray

DIM = 512
VIEWS = 10
_CHILD = """
import sys, numpy as np
from covis.search import rank
def anonymous():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon")) / 1024
database = np.load(sys.argv[1], mmap_mode="r")
queries = np.asarray(database[:: len(database) // 1000][:1000], np.float32)
rank(queries[:4], database[:2000], 10)
rank(queries[:2], database[:2000], 10)
before, most = anonymous(), 0.0
import threading, time
done = threading.Event()
def watch():
    global most
    while not done.wait(0.01):
        most = max(most, anonymous())
watcher = threading.Thread(target=watch); watcher.start()
start = time.process_time()
rank(queries, database, 100)
spent = time.process_time() - start
rank(queries[:1], database, 100)
done.set(); watcher.join()
print(most - before, spent)
"""


def drive(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Descriptors as a vehicle makes them: a place resembles the one before it, and is seen ten times, in order.

    Directions, turned at random, fall in variance by a power law; another seed is another day of the same drive.
    """
    from scipy.signal import lfilter

    spread = (1.0 + np.arange(DIM, dtype=np.float32)) ** np.float32(-0.6)
    steps = np.random.default_rng(0).standard_normal((-(-count // VIEWS), DIM), dtype=np.float32)
    places = lfilter([np.sqrt(1 - 0.9**2)], [1.0, -0.9], steps, axis=0).astype(np.float32)
    day = np.random.default_rng((1, seed)).standard_normal((count, DIM), dtype=np.float32)
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((DIM, DIM)))[0].astype(np.float32)
    x = ((np.repeat(places, VIEWS, 0)[:count] + day) * spread) @ turn
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def asked(count: int, database: int) -> NDArray[np.float32]:
    """Views of `count` places of such a map, from another day."""
    return drive(database, 1)[:: database // count][:count]


def exact_rows(database: NDArray[np.float32], queries: NDArray[np.float32]) -> list[dict[str, Any]]:
    import faiss

    from covis.search import rank

    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatL2(DIM)
    flat.add(database)
    rows = []
    for count, k, rounds in ((1, 10, 15), (10, 10, 5), (100, 10, 3), (1000, 10, 3), (1000, 100, 3)):
        some = queries[:count]
        figures = versus(
            lambda some=some, k=k: rank(some, database, k), lambda some=some, k=k: flat.search(some, k), rounds
        )
        same = (rank(some, database, k).ids == flat.search(some, k)[1]).mean()
        rows.append({"what": f"exact, {count} queries, k {k}", **figures, "same_ids": float(same)})
    return rows


def memory_row(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        store = np.lib.format.open_memmap(path, "w+", np.float16, (rows, DIM))
        for start in range(0, rows, 50_000):
            store[start : start + 50_000] = drive(min(50_000, rows - start), 2 + start)
        store.flush()
        out = subprocess.run([sys.executable, "-c", _CHILD, path], check=True, capture_output=True, text=True).stdout
    used, spent = map(float, out.split())
    return {"what": f"exact, {rows} × {DIM} float16 on disk, 1000 queries, k 100", "covis_s": spent, "covis_MB": used}


def approximate_row(kind: str, database: NDArray[np.float32], queries: NDArray[np.float32]) -> dict[str, Any]:
    import faiss

    from covis.search import build_index, rank

    faiss.omp_set_num_threads(1)
    start = time.process_time()
    index, measured = build_index(database, kind, queries=queries)
    built = time.process_time() - start
    alone = [queries[i : i + 1] for i in range(30)]
    alone_ms = 1000 * cpu_seconds(lambda: [index.search(q, 10) for q in alone], 1) / len(alone)
    exact_ms = 1000 * cpu_seconds(lambda: [rank(q, database, 10) for q in alone[:5]], 1) / 5
    return {
        "what": f"{kind}, {len(database)} × {DIM}", "covis_MB": measured.ram_bytes / 2**20, "missed": 100 * measured.loss,
        "missed_nearest": 100 * (1 - measured.recall_at_1), "alone_ms": alone_ms, "exact_alone_ms": exact_ms,
        "times_quicker_alone": exact_ms / alone_ms,
        "batch_ms": 1000 * cpu_seconds(lambda: index.search(queries, 10), 1) / len(queries), "build_s": built,
    }  # fmt: skip


def planned(rows: list[dict[str, Any]], count: int) -> dict[str, dict[str, str]]:
    """What larger maps would cost by these figures, as text: memory, a single query, building.

    Exact search grows with n. A graph grows with log n, and with n log n to build.
    """
    from covis.core.tables import size_text
    from covis.search.kinds import KINDS, ROW_BYTES

    by_kind = {row["what"].split(",")[0]: row for row in rows if "alone_ms" in row}
    exact_ms = float(np.median([row["exact_alone_ms"] for row in by_kind.values()]))
    plan: dict[str, dict[str, str]] = {"exact": {}, **{kind.replace("-", "_"): {} for kind in KINDS}}
    for n in (1_400_000, 10**8, 10**9):
        more, logs = n / count, np.log(n) / np.log(count)
        plan["exact"][str(n)] = f"{size_text(n * ROW_BYTES)}, {_time(exact_ms * more / 1000)}"
        for name, kind in KINDS.items():
            row = by_kind[name]
            times = _time(row["alone_ms"] * logs / 1000), _time(row["build_s"] * more * logs)
            plan[name.replace("-", "_")][str(n)] = f"{size_text(kind.ram(n, DIM))}, {times[0]}, {times[1]}"
    return plan


def _time(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.2g} {unit}" if seconds < 100 * length else f"{seconds / length:.0f} {unit}"
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def main() -> None:
    from covis.search import KINDS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--memory-rows", type=int, default=1_000_000)
    given = parser.parse_args()
    database, queries = drive(given.count), asked(1000, given.count)
    rows = exact_rows(database, queries)
    rows += [approximate_row(kind, database, queries) for kind in KINDS]
    rows.append(memory_row(given.memory_rows))
    facts = {
        "count": given.count,
        "dim": DIM,
        "threads": 1,
        "exact_batch_ms": rows[3]["ours_s"],
        "planned": planned(rows, given.count),
    }
    report("search", rows, facts)


if __name__ == "__main__":
    main()
