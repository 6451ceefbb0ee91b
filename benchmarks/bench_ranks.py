"""One, two and four processes under torchrun (gloo): what a step spends on communication, and a model of it for more.

The CPU time of a rank is measured, since the processes share the cores of one machine and a rank that waits for gloo
sleeps. A step of `w` ranks costs the computation of 1/w of the images, measured alone, and the exchange of gradients: 2
(w − 1) / w times their bytes. The cost of a byte is measured with two ranks; what it predicts for four is compared with
what four took. For GPUs the same bytes are divided by the bandwidth of their links, which is assumed and stated.
Embedding exchanges nothing: each rank does whole shards. Frozen features are computed by the first rank and mapped into
memory by the others, which read the files once for their checksums. The ids of all batches must be the same for every
number of ranks. Four ranks on fewer cores take turns: that costs time, which is not reported, and little CPU time.

Run: python benchmarks/bench_ranks.py
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _common import report

WORLDS = (1, 2, 4)
PAIRS, STEPS = 16, 6
BACKBONE, SIZE = "resnet18", (96, 128)
LINKS = {"PCIe 4.0, 20 GB/s": 20e9, "NVLink, 200 GB/s": 200e9}
"""Assumed bandwidths of all-reduce between GPUs of one machine, bytes per second."""
GPU_STEP_S = 0.1
"""Assumed computation of a step on one GPU of eight, for the share of communication."""
EMBEDDED = 512


def step_seconds(pairs: int) -> dict[str, Any]:
    """CPU seconds of a training step of this rank, its gradients' bytes, and which images the batches held."""
    import torch

    from covis import experiments
    from covis.describing.features import Fetched
    from covis.images import ImageSet, Split
    from covis.labels import FovOverlap
    from covis.models import ModelConfig, PlaceModel
    from covis.poses import Poses
    from covis.sampling import Pairs, PairSampler
    from covis.training.data import TrainingData
    from covis.training.loop import Loop
    from covis.training.ranks import Ranks
    from covis.training.step import Step

    torch.set_num_threads(1)
    ranks = Ranks.join()
    rng = np.random.default_rng(0)
    images = ImageSet.of(
        ".", np.arange(2_000).astype("S5"), Poses(rng.uniform(0, 400, (2_000, 2)), rng.uniform(0, 360, 2_000))
    )
    graph = FovOverlap()(images, images)
    split = Split(images, images)
    data = TrainingData(split, graph, PairSampler(Pairs(size=pairs), graph, split))
    model = PlaceModel.build(ModelConfig(BACKBONE, "gem", SIZE, "last2"), seed=0)
    features = model.prefix(torch.rand(4 * pairs, 3, *SIZE))

    class Made:
        """Features of the right shape; computing them is not what is measured."""

        precision = "float32"

        def fetch(self, requests: Iterable[tuple[Any, ...]], first: int = 0) -> Iterator[Fetched]:
            for request in requests:
                yield Fetched(request, features[: sum(map(len, request))])

    recipe = replace(experiments.get("town_quick"), model=model.config, steps=1 + STEPS, validation="")
    step = Step(recipe, model, data, ranks, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(recipe, Path(folder), model, data, Made(), ranks, step, None, None, tensorboard=False, plan=False)
        stream = loop._stream(0, 1 + STEPS)
        spent, ids = [], []
        for number in range(1 + STEPS):
            micro = list(itertools.islice(stream, 1))
            ids.append([int(i) for part in micro[0][0].request for i in part])
            start = time.process_time()
            loop._do_step(number, micro)
            spent.append(time.process_time() - start)
    trained = sum(p.numel() * 4 for _, p in model.trained_parameters())
    record = {"cpu_s": float(np.median(spent[1:])), "bytes": trained, "ids": ids, "first": ranks.first}
    ranks.leave()
    return record


def embed_seconds(folder: Path) -> dict[str, Any]:
    """CPU seconds per image of this rank."""
    import torch

    from covis.describing.embedding import embed
    from covis.models import ModelConfig, PlaceModel
    from covis.reading.sources import list_images

    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    images = list_images(folder / "photos")
    model = PlaceModel.build(ModelConfig("tiny", "gem", (96, 96)))
    start = time.process_time()
    embed(model, images, folder / f"store{world}", shard_rows=64, workers=0)
    return {"cpu_s": time.process_time() - start, "first": rank == 0}


def cache_seconds(folder: Path) -> dict[str, Any]:
    """CPU seconds in which this rank gets the frozen features of all photos."""
    import torch

    from covis.describing.features import Cached, open_features
    from covis.models import ModelConfig, PlaceModel
    from covis.reading.sources import list_images
    from covis.training.ranks import Ranks

    torch.set_num_threads(1)
    ranks = Ranks.join()
    images = list_images(folder / "photos")
    model = PlaceModel.build(ModelConfig(BACKBONE, "gem", SIZE, "last2"))
    settings: dict[str, Any] = {"seed": 0, "workers": 0, "cache_bytes": 1 << 34, "device": torch.device("cpu")}
    start = time.process_time()
    source = ranks.first_then_all(
        lambda: open_features(model, (images,), cache=folder / f"cache{ranks.world}", **settings)
    )
    spent = time.process_time() - start
    assert isinstance(source, Cached)
    assert isinstance(source.rows[0], np.memmap)
    record = {"cpu_s": spent, "first": ranks.first, "file": source.rows[0].filename}
    ranks.leave()
    return {**record, "file": str(record["file"])}


def launched(world: int, job: str, pairs: int, folder: Path) -> list[dict[str, Any]]:
    """The record that each of `world` ranks writes."""
    line = [sys.executable]
    if world > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        line += ["-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-addr", "127.0.0.1",
                 "--master-port", str(port)]  # fmt: skip
    line += [__file__, "--job", job, "--pairs", str(pairs), "--folder", str(folder)]
    for old in folder.glob("rank-*"):
        old.unlink()
    subprocess.run(line, check=True, stdout=subprocess.PIPE, timeout=900)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*"))]


def training_rows(folder: Path) -> list[dict[str, Any]]:
    """A row per number of ranks, and predictions for eight GPUs."""
    alone = {world: launched(1, "train", PAIRS // world, folder)[0]["cpu_s"] for world in WORLDS}
    rows: list[dict[str, Any]] = []
    batches: list[Any] = []
    cost = 0.0
    for world in WORLDS[1:]:
        records = launched(world, "train", PAIRS, folder)
        batches += [one["ids"] for one in records]
        whole = float(np.median([one["cpu_s"] for one in records]))
        exchanged = 2 * (world - 1) / world * records[0]["bytes"]
        exchange = max(whole - alone[world], 0.0)
        cost = cost or exchange / exchanged
        predicted = alone[world] + cost * exchanged
        rows.append({
            "kind": "step", "work": f"training, {BACKBONE}, last two blocks", "ranks": world, "step CPU s": whole,
            "computation CPU s": alone[world], "exchanged MB": exchanged / 1e6, "communication %": 100 * exchange / whole,
            "predicted CPU s": predicted, "missed by %": 100 * (predicted / whole - 1),
        })  # fmt: skip
    assert all(one == batches[0] for one in batches), "batches depend on the number of ranks"
    gradients = launched(1, "train", 1, folder)[0]["bytes"]
    for link, bandwidth in LINKS.items():
        seconds = 2 * 7 / 8 * gradients / bandwidth
        rows.append({
            "kind": "step", "work": f"by the same model: 8 GPUs, {link}, {GPU_STEP_S} s of computation a step", "ranks": 8,
            "exchanged MB": 2 * 7 / 8 * gradients / 1e6, "communication %": 100 * seconds / (seconds + GPU_STEP_S),
        })  # fmt: skip
    return rows


def embedding_rows(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for world in WORLDS:
        total = sum(one["cpu_s"] for one in launched(world, "embed", 0, folder))
        rows.append({"kind": "photos", "work": f"embedding, {EMBEDDED} photos", "ranks": world, "CPU s of all": total})
    first = rows[0]["CPU s of all"]
    return [{**row, "more than one rank %": 100 * (row["CPU s of all"] / first - 1)} for row in rows]


def cache_rows(folder: Path) -> list[dict[str, Any]]:
    """The CPU time that the first rank and the others spend on frozen features."""
    rows = []
    for world in WORLDS[1:]:
        records = launched(world, "cache", 0, folder)
        assert len({one["file"] for one in records}) == 1, "ranks have caches of their own"
        first, others = ([one["cpu_s"] for one in records if one["first"] == which] for which in (True, False))
        rows.append({
            "kind": "photos", "work": f"frozen features of {EMBEDDED} photos, {BACKBONE}, into the shared cache", "ranks": world,
            "CPU s of all": sum(first + others), "CPU s of the first": first[0], "CPU s of another": float(np.mean(others)),
        })  # fmt: skip
    return rows


def photos(folder: Path) -> None:
    """Writes the photos that are embedded."""
    from bench_embed import photo

    folder.mkdir()
    for i in range(EMBEDDED):
        (folder / f"{i:04d}.jpg").write_bytes(photo(i % 16, (120, 160)))


JOBS = {"embed": embed_seconds, "cache": cache_seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--job", "--folder", "--pairs"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        folder = Path(given.folder)
        record = step_seconds(int(given.pairs)) if given.job == "train" else JOBS[given.job](folder)
        (folder / f"rank-{os.environ.get('RANK', '0')}").write_text(json.dumps(record))
        return
    with tempfile.TemporaryDirectory() as name:
        photos(Path(name) / "photos")
        rows = training_rows(Path(name)) + embedding_rows(Path(name)) + cache_rows(Path(name))
    report("ranks", rows, {"pairs": PAIRS, "steps": STEPS, "same_batches_for_every_number_of_ranks": True})


if __name__ == "__main__":
    main()
