"""The whole pipeline on a collection of MSLS's own shape: 22 cities, 1.4 million rows of metadata, streets as dense as real ones.

Positions follow streets in blocks of 100 m, an image every two metres of street, in sequences of 40; headings go along the
street with 8° of scatter. Pictures are a small pool of files behind many names (hard links), since no pixel of MSLS is
here. Each step runs in a process of its own, for its CPU time and peak memory, at a tenth of the size and at the whole
size: the exponent of growth is the logarithm of the quotient of their times. Where a step is measured on a stretch, its row
says so, and how far the whole was missed by what the tenth predicts.

Run: python benchmarks/bench_scale.py [--images N] [--embed N …] [--rows N] [--index-rows N]; needs 3 GB of disk for a while.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import report

PAIRS, LOADED_PAIRS, QUERIES = 500_000, 1_000, 10_000
POOL, PICTURE = 64, (120, 160)
DIM = 512
SHARE = 0.37
"""Queries among all images, as in MSLS."""


def generate(root: Path, images: int) -> None:
    """Writes the collection: CSV files under their official names and columns, and pictures as links into a pool."""
    from bench_embed import photo
    from bench_labels import streets
    from pyproj import Transformer

    from covis.datasets.msls import CITIES

    pool = root / "pool"
    pool.mkdir(parents=True)
    for i in range(POOL):
        (pool / f"{i}.jpg").write_bytes(photo(i, PICTURE))
    rng = np.random.default_rng(0)
    to_degrees = Transformer.from_crs("EPSG:32632", "EPSG:4326", always_xy=True)
    for at, city in enumerate(CITIES["train"]):
        xy, heading = streets(images // len(CITIES["train"]), rng)
        along = np.lexsort((xy[:, 1], np.round(xy[:, 0] / 100), np.round(heading / 90) % 4))
        xy, heading = xy[along] + [0.0, 5.0e6], heading[along]
        lon, lat = to_degrees.transform(*xy.T)
        asked = np.repeat(rng.random(-(-len(xy) // 40)) < SHARE, 40)[: len(xy)]  # whole sequences
        for side, part in (("query", asked), ("database", ~asked)):
            keys = [f"{at:02d}{side[0]}{i:015d}_-Xy" for i in range(int(part.sum()))]
            folder = root / "train_val" / city / side
            _write(folder, keys, xy[part], lon[part], lat[part], heading[part])
            for i, key in enumerate(keys):
                os.link(pool / f"{i % POOL}.jpg", folder / "images" / f"{key}.jpg")


def _write(folder: Path, keys: list[str], xy: Any, lon: Any, lat: Any, heading: Any) -> None:
    import pandas as pd

    (folder / "images").mkdir(parents=True)
    n = len(keys)
    count = np.arange(n)
    flags = {name: (count >> k) & 1 == 1 for k, name in enumerate(("all", "s2w", "w2s", "o2n", "n2o", "d2n", "n2d"))}
    tables = {
        "seq_info": {"sequence_key": [f"{keys[0][:3]}sequence{i // 40:012d}" for i in range(n)], "frame_number": count % 40},
        "subtask_index": flags,
        "raw": {"lon": lon, "lat": lat, "ca": heading % 360, "captured_at": 1500000000000 + count, "pano": count % 50 == 0},
        "postprocessed": {
            "easting": xy[:, 0], "northing": xy[:, 1], "unique_cluster": count // 3, "control_panel": False,
            "night": count % 9 == 0, "view_direction": "Forward",
        },
    }  # fmt: skip
    for name, columns in tables.items():
        pd.DataFrame({"key": keys, **columns}).to_csv(folder / f"{name}.csv")


# Steps: each returns what it did, in words


def read(root: Path, size: int) -> str:
    from covis.datasets import load

    split = load("msls", root, "train")
    return f"{len(split.queries):,} queries, {len(split.database):,} map images"


def doctor(root: Path, size: int) -> str:
    from covis.datasets.doctor import check

    with tempfile.TemporaryDirectory() as out:
        told = check("msls", root, out, quick=True, workers=1)
    return f"{told['images']:,} files looked at"


def _split(root: Path) -> Any:
    from covis.datasets import load

    return load("msls", root, "train")


def labels(root: Path, size: int) -> str:
    from covis.labels import FovOverlap

    split = _split(root)
    graph = FovOverlap(within_group=True)(split.queries, split.database)
    graph.save(root / "graph")
    return f"{graph.pairs:,} pairs with ψ > 0"


def draw(root: Path, size: int) -> str:
    from bench_sampling import draw as drawn

    from covis.graph import SimilarityGraph
    from covis.sampling import PairSampler

    split = _split(root)
    drawn(PairSampler(SimilarityGraph.open(root / "graph"), "A", 32, 0, split.queries, split.database), PAIRS)
    return f"{PAIRS:,} pairs"


def load_pairs(root: Path, size: int) -> str:
    from covis.describing.embedding import joint_batches
    from covis.graph import SimilarityGraph
    from covis.sampling import PairSampler

    split = _split(root)
    sampler = PairSampler(SimilarityGraph.open(root / "graph"), "A", 32, 0, split.queries, split.database)
    before = _cpu()
    batches = (sampler.batch(*divmod(k, len(sampler))) for k in range(LOADED_PAIRS // 32))
    requests = ((batch.queries, batch.database) for batch in batches)
    pairs = sum(len(parts[0].ids) for parts in joint_batches((split.queries, split.database), requests, (224, 224)))
    each = (_cpu() - before) / pairs
    return f"stretch of {pairs:,} pairs, {1000 * each:.2f} ms per pair, so {PAIRS * each / 60:.0f} min for {PAIRS:,}"


def embed_images(root: Path, size: int) -> str:
    import torch

    from covis.describing.embedding import embed
    from covis.models import ModelConfig, PlaceModel

    torch.set_num_threads(1)
    database = _split(root).database
    chosen = database.subset(np.arange(min(size, len(database))))
    before = _cpu()
    with tempfile.TemporaryDirectory() as out:
        embed(PlaceModel.build(ModelConfig("tiny", "gem", (96, 96))), chosen, Path(out) / "store", workers=0)
    return f"{len(chosen):,} images, {1000 * (_cpu() - before) / len(chosen):.2f} ms per image, network tiny"


def _store(path: Path, rows: int) -> None:
    """Descriptors on disk, in half precision, as a vehicle makes them."""
    from bench_search import drive

    store = np.lib.format.open_memmap(path, "w+", np.float16, (rows, DIM))
    for start in range(0, rows, 50_000):
        store[start : start + 50_000] = drive(min(50_000, rows - start), 2 + start)
    store.flush()


def exact(root: Path, size: int) -> str:
    from covis.search import rank

    database = np.load(root / f"{size}.npy", mmap_mode="r")
    queries = np.asarray(database[:: len(database) // 100][:100], np.float32)
    before = _cpu()
    rank(queries, database, 100)
    return f"100 queries over {len(database):,} × {DIM} float16 on disk, {10 * (_cpu() - before):.1f} ms per query"


def approximate(root: Path, size: int) -> str:
    from covis.search import build_index

    database = np.load(root / f"{size}.npy", mmap_mode="r")
    queries = np.asarray(database[:: len(database) // 200][:200], np.float32)
    index, measured = build_index(database, "ivfpq", queries=queries)
    before = _cpu()
    index.search(queries, 10)
    return (
        f"ivfpq over {len(database):,} × {DIM}, {5 * (_cpu() - before):.2f} ms per query, "
        f"{100 * measured.loss:.1f} % missed, {measured.ram_bytes / 2**20:.0f} MB"
    )


def evaluation(root: Path, size: int) -> str:
    from covis.evaluation import Benchmark, evaluate
    from covis.labels import Radius
    from covis.ranking import Ranking

    split = _split(root)
    queries = split.queries.subset(np.arange(0, len(split.queries), max(1, len(split.queries) // QUERIES)))
    relevant = Radius(25.0)(queries, split.database)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, len(split.database), (len(queries), 100))
    ids[:, 3] = [relevant.row(i)[0][0] if len(relevant.row(i)[0]) else 0 for i in range(len(queries))]
    ranking = Ranking(ids, np.sort(rng.random(ids.shape).astype(np.float32), axis=1))
    benchmark = Benchmark("msls_size", queries, split.database, relevant, "within 25 m", denominator="all")
    return f"{len(queries):,} queries, recall@5 {evaluate(ranking, benchmark).recall[5]:.0f} %"


STEPS: dict[str, Callable[[Path, int], str]] = {
    "read metadata": read, "doctor, files looked at": doctor, "labels": labels, "draw pairs": draw,
    "load pairs": load_pairs, "embed": embed_images, "exact search": exact, "approximate search": approximate,
    "evaluate": evaluation,
}  # fmt: skip


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def child(step: str, root: Path, size: int) -> None:
    """Runs one step and prints what it cost."""
    before, started = os.times(), time.monotonic()
    told = STEPS[step](root, size)
    after = os.times()
    print(json.dumps({
        "step": step, "did": told, "cpu_s": _cpu() - sum(before[:4]), "system_s": after.system - before.system,
        "seconds": time.monotonic() - started, "peak_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))  # fmt: skip


def measured(step: str, root: Path, size: int) -> dict[str, Any]:
    line = [sys.executable, __file__, "--step", step, "--root", str(root), "--size", str(size)]
    out = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    print(
        f"… {step}, {size:,}: {found['cpu_s']:.1f} CPU s, {found['peak_MB']:.0f} MB, {found['did']}",
        file=sys.stderr,
        flush=True,
    )
    return found


def grown(step: str, runs: list[tuple[Path, int]], total: int | None = None) -> dict[str, Any]:
    """The row of a step at its largest size, its growth since the smallest, and what that means for `total` images."""
    (_, small), (_, large) = runs[0], runs[-1]
    first, last = (measured(step, *run) for run in runs)
    exponent = float(np.log(last["cpu_s"] / first["cpu_s"]) / np.log(large / small))
    row = {**last, "size": large, "growth": exponent, "tenth_cpu_s": first["cpu_s"], "tenth_peak_MB": first["peak_MB"]}
    row["memory_growth"] = float(np.log(last["peak_MB"] / first["peak_MB"]) / np.log(large / small))
    if total is not None:
        rate = (last["cpu_s"] - first["cpu_s"]) / (large - small)
        predicted = first["cpu_s"] * large / small
        row["missed_by_percent"] = 100 * (predicted / last["cpu_s"] - 1)
        row["did"] += f"; {total:,} images: {(last['cpu_s'] + rate * (total - large)) / 3600:.2f} CPU h"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_400_000, help="rows of metadata")
    parser.add_argument("--embed", type=int, default=10_000, help="images that are embedded, and a tenth of them")
    parser.add_argument("--rows", type=int, default=1_000_000, help="descriptors on disk for exact search")
    parser.add_argument("--index-rows", type=int, default=100_000, help="descriptors of the approximate index")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        child(given.step, given.root, given.size)
        return
    with tempfile.TemporaryDirectory(prefix="covis-scale-") as folder:
        rows = pipeline(Path(folder), given)
    report("scale", rows, {"images": given.images, "cities": 22, "pool": POOL, "threads": 1})


def pipeline(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Every step, in order."""
    sizes = (given.images // 10, given.images)
    roots = [(folder / str(size), size) for size in sizes]
    for root, size in roots:
        generate(root, size)
    over_images = ("read metadata", "doctor, files looked at", "labels", "draw pairs", "load pairs")
    rows = [grown(step, roots) for step in over_images]
    rows.append(grown("embed", [(roots[1][0], given.embed // 10), (roots[1][0], given.embed)], given.images))
    for step, count in (("exact search", given.rows), ("approximate search", given.index_rows)):
        for size in (count // 10, count):
            if not (folder / f"{size}.npy").exists():
                _store(folder / f"{size}.npy", size)
        rows.append(grown(step, [(folder, count // 10), (folder, count)]))
    rows.append(grown("evaluate", roots))
    return rows


if __name__ == "__main__":
    main()
