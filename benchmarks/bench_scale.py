"""The whole pipeline on a collection like MSLS: 22 cities, 1.4 million rows of metadata, streets as dense as real ones.

Positions follow streets in blocks of 100 m, an image every two metres of street, in sequences of 40; headings go along
the street with 8° of scatter. Pictures are a small pool of files behind many names (hard links), since the photos of
MSLS are not available here. Each step runs in a process of its own, for its CPU time and peak memory, at three sizes up
to the full one. The exponents of growth are slopes of logarithms by least squares, of CPU time and of peak memory, over
all three sizes and over the last two, where starting the program weighs less. Embedding also runs on a hundredth and on
a tenth of its images; a line through these two predicts the full number, which is then measured.

Run: python benchmarks/bench_scale.py [--images N] [--embed N] [--rows N] [--index-rows N] [--folder DIR]; needs 5 GB
of disk temporarily. With --folder, an interrupted run continues at the step that it had reached.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import peak_mb, report

PAIRS, LOADED_PAIRS, QUERIES = 500_000, 4_000, 10_000
WARM = 4_400
POOL, PICTURE = 64, (120, 160)
DIM = 512
KIND = "hnsw-sq8"
"""Builds in the least time of all kinds at a million descriptors (docs/search.md)."""
SHARE = 0.37
"""The share of queries among all images, as in MSLS."""


def generate(root: Path, images: int) -> str:
    """Writes the collection: CSV files under their official names and columns, and pictures as links into a pool."""
    from bench_embed import photo
    from bench_labels import streets
    from pyproj import Transformer

    from covis.datasets.msls import CITIES

    shutil.rmtree(root, ignore_errors=True)  # of a run that was interrupted
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
    return f"{images:,} rows of metadata and as many links to {POOL} pictures"


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
        summary = check("msls", root, out, quick=True, workers=1)
    return f"{summary['images']:,} files looked at"


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
    from covis.sampling import Pairs, PairSampler

    split = _split(root)
    drawn(PairSampler(Pairs(), SimilarityGraph.open(root / "graph"), split), PAIRS)
    return f"{PAIRS:,} pairs"


def load_pairs(root: Path, size: int) -> str:
    from covis.describing.loading import joint_batches
    from covis.graph import SimilarityGraph
    from covis.sampling import Pairs, PairSampler

    split = _split(root)
    sampler = PairSampler(Pairs(), SimilarityGraph.open(root / "graph"), split)
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


def make_descriptors(root: Path, rows: int) -> str:
    """Descriptors on disk, in half precision, as a vehicle makes them."""
    from bench_search import drive

    store = np.lib.format.open_memmap(root / f"{rows}.npy", "w+", np.float16, (rows, DIM))
    for start in range(0, rows, 50_000):
        store[start : start + 50_000] = drive(min(50_000, rows - start), 2 + start)
    store.flush()
    return f"{rows:,} × {DIM} float16"


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
    before = _cpu()
    index, measured = build_index(database, KIND, queries=queries)
    built = _cpu() - before
    before = _cpu()
    index.search(queries, 10)
    return (
        f"{KIND} over {len(database):,} × {DIM} float16 on disk, built in {built:.0f} CPU s, "
        f"{5 * (_cpu() - before):.2f} ms per query, {100 * measured.loss:.1f} % missed, {measured.ram_bytes / 2**20:.0f} MB"
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
    "make the collection": generate, "make descriptors": make_descriptors, "read metadata": read,
    "doctor, files looked at": doctor, "labels": labels, "draw pairs": draw,
    "load pairs": load_pairs, "embed": embed_images, "exact search": exact, "approximate search": approximate,
    "evaluate": evaluation,
}  # fmt: skip


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def child(step: str, root: Path, size: int) -> None:
    """Runs one step and prints what it cost."""
    before, started = os.times(), time.monotonic()
    did = STEPS[step](root, size)
    after = os.times()
    print(json.dumps({
        "step": step, "did": did, "cpu_s": _cpu() - sum(before[:4]), "system_s": after.system - before.system,
        "seconds": time.monotonic() - started, "peak_MB": peak_mb(),
    }))  # fmt: skip


def measured(step: str, folder: Path, root: Path, size: int) -> dict[str, Any]:
    """What a step cost at a size: as an earlier run left it in `folder`, or measured in a new process."""
    kept = folder / f"{step}-{size}.json"
    if not kept.exists():
        line = [sys.executable, __file__, "--step", step, "--root", str(root), "--size", str(size)]
        out = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
        kept.write_text(out.splitlines()[-1], encoding="utf-8")
    record: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    print(
        f"… {step}, {size:,}: {record['cpu_s']:.1f} CPU s, {record['peak_MB']:.0f} MB, {record['did']}", file=sys.stderr
    )
    return record


def grown(step: str, folder: Path, runs: list[tuple[Path, int]], total: int | None = None) -> dict[str, Any]:
    """The row of a step at its largest size, the exponents of its growth, and a prediction for `total` images."""
    sizes = np.array([size for _, size in runs], float)
    records = [measured(step, folder, *run) for run in runs]
    cpu, peak = (np.array([one[key] for one in records]) for key in ("cpu_s", "peak_MB"))
    row: dict[str, Any] = {**records[-1], "size": runs[-1][1]}
    row |= {"time_growth": _exponent(sizes, cpu), "memory_growth": _exponent(sizes, peak)}
    row |= {"last_time_growth": _exponent(sizes[1:], cpu[1:]), "last_memory_growth": _exponent(sizes[1:], peak[1:])}
    row["smaller"] = [{"size": size, **one} for (_, size), one in zip(runs[:-1], records[:-1], strict=True)]
    if total is not None:
        rate, fixed = np.polyfit(sizes[:2], cpu[:2], 1)
        row["missed_by_percent"] = float(100 * ((fixed + rate * sizes[-1]) / cpu[-1] - 1))
        rate, fixed = np.polyfit(sizes[1:], cpu[1:], 1)
        row["total_images"], row["total_cpu_h"] = total, float((fixed + rate * total) / 3600)
    return row


def _exponent(sizes: Any, values: Any) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_400_000, help="rows of metadata")
    parser.add_argument(
        "--embed", type=int, default=100_000, help="images that are embedded, a tenth and a hundredth of them"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="descriptors on disk that are searched")
    parser.add_argument(
        "--index-rows", type=int, default=1_000_000, help="descriptors of the approximate index; 0 for none"
    )
    parser.add_argument("--folder", type=Path, help="where the collection is kept; a temporary folder unless given")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        child(given.step, given.root, given.size)
        return
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="covis-scale-")))
        folder.mkdir(parents=True, exist_ok=True)
        rows = pipeline(folder, given)
    facts = {"images": given.images, "cities": 22, "pool": POOL, "picture": PICTURE, "threads": 1}
    report("scale", rows, facts)


def pipeline(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Every step, in order."""
    roots = [(folder / str(size), size) for size in (given.images // 10, given.images // 3, given.images)]
    for root, size in [(folder / str(WARM), WARM), *roots]:
        measured("make the collection", folder, root, size)
    for step in ("labels", "draw pairs", "evaluate"):  # compiles the kernels, once on a machine
        measured(step, folder, folder / str(WARM), WARM)
    over_images = ("read metadata", "doctor, files looked at", "labels", "draw pairs", "load pairs")
    rows = [grown(step, folder, roots) for step in over_images]
    whole = roots[-1][0]
    rows.append(grown("embed", folder, [(whole, given.embed // part) for part in (100, 10, 1)], given.images))
    for step, count in (("exact search", given.rows), ("approximate search", given.index_rows)):
        sizes = [count // part for part in (10, 3, 1)] if count else []
        for size in sizes:
            measured("make descriptors", folder, folder, size)
        rows += [grown(step, folder, [(folder, size) for size in sizes])] if sizes else []
    rows.append(grown("evaluate", folder, roots))
    return rows


if __name__ == "__main__":
    main()
