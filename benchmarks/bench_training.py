"""A training step against a plain PyTorch loop of the same model, and GCL against NetVLAD with mined triplets.

The plain loop decodes both images of each pair and forwards both sides, keeping gradients everywhere but in frozen
parameters. Ours runs the frozen part without gradient (or reads its cached output) and each image once. Memory is what
a step keeps for its backward pass. `--recall` measures instead the time that both losses need to reach a recall on the town.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _common import cpu_seconds, report
from torch import Tensor

from covis import datasets, experiments
from covis.describing.features import Streamed, open_features
from covis.losses import LOSSES, GeneralizedContrastive
from covis.models import ModelConfig, PlaceModel
from covis.reading.decoding import decode
from covis.sampling import PairSampler, Tuples
from covis.training.data import TrainingData, needed, weighted_loss
from covis.training.loop import read_metrics
from covis.training.recipe import Optimiser
from covis.training.run import Resources, train

SIZE = (120, 160)
CASES = (("resnet18", "last2"), ("resnet18", "last1"), ("mobilenetv2_100", "last2"), ("resnet50", "last2"))
PAIRS = 8
BASELINE_OPTIMISER = Optimiser("adamw", learning_rate=0.001, schedule="cosine", warmup=0.05)
"""The baseline's own: at five times this rate it learns nothing."""


def kept_bytes(work: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps between the forward and the backward pass, weights left out."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        work().backward()
    return sum(kept.values())


def steps(backbone: str, trainable: str, data: TrainingData, cache: Path) -> Iterator[dict[str, Any]]:
    model = PlaceModel.build(ModelConfig(backbone, "gem", SIZE, trainable), seed=0).train()  # type: ignore[arg-type]
    loss = GeneralizedContrastive()
    batch = data.sampler.batch(0, 0)
    wanted = needed(batch, data.one_set)
    common: dict[str, Any] = {"seed": 0, "workers": 0, "device": torch.device("cpu")}
    cached = open_features(model, data.sets, cache=cache, cache_bytes=1 << 34, **common)
    streamed = Streamed(model, data.sets, 0, 0, torch.device("cpu"))

    def plain() -> Tensor:
        sides = []
        for images, ids in ((data.split.queries, batch.queries), (data.split.database, batch.database)):
            pixels = torch.stack([torch.from_numpy(decode(images.path(int(i)), SIZE)).permute(2, 0, 1) for i in ids])
            x = model.normalise(pixels)
            features = model.backbone.run(x, 0, len(model.backbone.plan.steps), model.backbone.grid(SIZE))
            sides.append(
                torch.nn.functional.normalize(
                    model.pool(*model.backbone.to_map(features, model.backbone.grid(SIZE))), dim=1
                )
            )
        return loss(*sides, torch.from_numpy(batch.psi)).mean()

    def ours(source: Any) -> Callable[[], Tensor]:
        def step() -> Tensor:
            fetched = next(iter(source.fetch([wanted.request])))
            return weighted_loss(loss, wanted, model.suffix(fetched.features)) / batch.total_weight

        return step

    base = None
    for name, step in (("plain loop", plain), ("covis, streamed", ours(streamed)), ("covis, cached", ours(cached))):
        seconds = cpu_seconds(lambda step=step: step().backward(), repeats=3)  # type: ignore[misc]
        memory = kept_bytes(step) / 1e6
        base = base or (seconds, memory)
        yield {
            "model": f"{backbone} {trainable}", "loop": name, "pairs/s": len(batch) / seconds,
            "speed ratio": base[0] / seconds, "kept MB": memory, "memory ratio": base[1] / max(memory, 1e-9),
        }  # fmt: skip


def time_to_recall(output: Path) -> list[dict[str, Any]]:
    """Both losses on the town; the time, mining included, until each reaches the best Recall@5 of the weaker one."""
    gcl = replace(experiments.get("town_gcl"), validations=20)
    netvlad = replace(
        gcl, model=replace(gcl.model, pool="netvlad16"), loss=LOSSES["triplet"](),
        batches=Tuples(8, negatives=6, mined=True, refresh=50, pool=400),
        optimiser=BASELINE_OPTIMISER,
    )  # fmt: skip
    rows, curves = [], []
    for name, recipe in (("GCL, GeM", gcl), ("triplet, NetVLAD-16, mined", netvlad)):
        run = output / name.split(",")[0]
        result = train(recipe, run, resources=Resources(0, output / "cache", tensorboard=False))
        rows.append(
            {
                "training": name,
                "seconds": result["seconds"] + result["mining_seconds"],
                "mining s": result["mining_seconds"],
                "step GiB": result["memory_gib"],
            }
            | {f"recall@{k}": result["best"][str(k)] for k in (1, 5, 10)}
        )
        scored = [row for row in read_metrics(run) if row["recall@5"]]
        curves.append([(float(r["seconds"]) + float(r["mining_seconds"]), float(r["recall@5"])) for r in scored])
    target = min(max(recall for _, recall in curve) for curve in curves)
    for row, curve in zip(rows, curves, strict=True):
        row[f"s to recall@5 {target:.1f}"] = next(seconds for seconds, recall in curve if recall >= target)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recall", action="store_true", help="train both on the town instead, several minutes")
    args = parser.parse_args()
    if args.recall:
        with tempfile.TemporaryDirectory() as folder:
            report("time_to_recall", time_to_recall(Path(folder)))
        return
    split = datasets.load("town", None, "train")
    labels = experiments.get("town_gcl").labels(split.queries, split.database)
    data = TrainingData(split, labels, PairSampler(labels, "A", PAIRS, 0, split.queries, split.database))
    with tempfile.TemporaryDirectory() as folder:
        small = TrainingData(data.split, labels, data.sampler)
        rows = [row for case in CASES for row in steps(*case, small, Path(folder))]
        report("training", rows, {"pairs a step": PAIRS, "image size": SIZE})


if __name__ == "__main__":
    main()
