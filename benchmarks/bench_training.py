"""A training step against a plain PyTorch loop of the same network, and GCL against NetVLAD with mined triplets.

The plain loop is what one writes first: the network as timm makes it, Pillow, both sides of each pair forwarded one
after the other, gradients everywhere but in frozen parameters. Ours runs the frozen part without gradient (or reads its
cached output), each image once, in the memory layout that suits convolutions. Both run in turn in one process, so the
plain loop also has the memory allocator that covis sets; `system_share` is our share of CPU time in the kernel. `limit`
is the ratio at which the operations of the trained part, or of the whole network where it is streamed, would run as
fast as a matrix product, with nothing else to do, taken in the rounds of the ratio. `profile` in the results shows
where a step's time goes. Memory is what a step keeps for its backward pass. `--recall` measures instead the time that
both losses need to reach a recall on the town.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from _common import cpu_seconds, matrix_product, operations, report, versus
from PIL import Image
from torch import Tensor

from covis import datasets, experiments
from covis.core.machine import prepare_process
from covis.describing.features import Streamed, open_features
from covis.losses import LOSSES, GeneralizedContrastive
from covis.models import ModelConfig, PlaceModel
from covis.sampling import Pairs, PairSampler, Tuples
from covis.training.batch_images import BatchImages
from covis.training.data import TrainingData
from covis.training.recipe import Optimiser
from covis.training.record import read_metrics
from covis.training.run import Resources, train

SIZE = (120, 160)
CASES = ("mobilenetv2_100", "resnet18", "resnet50", "vgg16")
PAIRS = 8
WARM_UP = 3
"""Steps until the process has allocated its memory from the system; a training run takes thousands of steps."""
BASELINE_OPTIMISER = Optimiser("adamw", learning_rate=0.001, schedule="cosine", warmup=0.05)
"""The baseline has its own optimiser: at five times this learning rate it learns nothing."""


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


def plain_loop(model: PlaceModel, data: TrainingData, batch: Any) -> Callable[[], Tensor]:
    """The loss of a batch by the network as timm makes it, in torch's default layout."""
    import timm

    options = {"mlp_ratio": 1 / 4096} if model.config.backbone.startswith("vgg") else {}  # its head is not used
    net = timm.create_model(model.config.backbone, num_classes=0, **options).train()
    net.load_state_dict(model.backbone.net.state_dict(), strict=False)
    trained = {name for name, _ in model.backbone.net.named_parameters() if _.requires_grad}
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in trained)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (model.preprocessing.mean, model.preprocessing.std))
    power = torch.nn.Parameter(torch.full((1,), 3.0))
    psi = torch.from_numpy(batch.psi)

    def read(path: Path) -> Tensor:
        image = Image.open(path).convert("RGB").resize(SIZE[::-1], Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    def describe(images: Any, ids: Any) -> Tensor:
        pixels = torch.stack([read(images.path(int(i))) for i in ids]).float()
        maps = net.forward_features((pixels / 255 - mean) / std).clamp(min=1e-6)
        return torch.nn.functional.normalize(maps.pow(power).mean((-2, -1)).pow(1 / power))

    def step() -> Tensor:
        net.zero_grad(set_to_none=True)
        za, zb = describe(data.split.queries, batch.queries), describe(data.split.database, batch.database)
        squared = (za - zb).pow(2).sum(1)
        apart = torch.relu(0.5 - (squared + 1e-12).sqrt()).pow(2)
        return (0.5 * psi * squared + 0.5 * (1 - psi) * apart).mean()

    return step


def loops(
    model: PlaceModel, data: TrainingData, cache: Path
) -> tuple[Callable[[], Tensor], dict[str, Callable[[], Tensor]]]:
    """Functions that give the loss of a batch, to train the last two blocks: the plain loop's, and ours by name."""
    loss = GeneralizedContrastive()
    batch = data.sampler.batch(0, 0)
    wanted = BatchImages.of(batch, data.one_set)
    common: dict[str, Any] = {"seed": 0, "workers": 0, "device": torch.device("cpu")}
    few = tuple(images.subset(ids) for images, ids in zip(data.sets, wanted.request, strict=True))
    places = tuple(np.arange(len(images)) for images in few)
    sources = {
        "streamed": Streamed(model, few, 0, 0, torch.device("cpu")),
        "cached": open_features(model, few, cache=cache, cache_bytes=1 << 34, **common),
    }

    def ours(source: Any) -> Callable[[], Tensor]:
        def step() -> Tensor:
            model.zero_grad(set_to_none=True)
            fetched = next(iter(source.fetch([places])))
            return wanted.loss(loss, model.suffix(fetched.features)) / batch.total_weight

        return step

    return plain_loop(model, data, batch), {name: ours(source) for name, source in sources.items()}


def town_data() -> TrainingData:
    """The town's training streets with batches of pairs."""
    split = datasets.load("town", None, "train")
    labels = experiments.get("town_gcl").labels(split.queries, split.database)
    return TrainingData(split, labels, PairSampler(Pairs(size=PAIRS), labels, split))


def network(backbone: str) -> PlaceModel:
    """What both loops train: the last two blocks under GeM."""
    return PlaceModel.build(ModelConfig(backbone, "gem", SIZE, "last2"), seed=0).train()


def steps(backbone: str, data: TrainingData, cache: Path, rounds: int) -> Iterator[dict[str, Any]]:
    model = network(backbone)
    plain, ours = loops(model, data, cache)
    kept, product = kept_bytes(plain) / 1e6, matrix_product()
    for name, step in ours.items():
        for _ in range(WARM_UP):
            step().backward()
        figures = versus(lambda step=step: step().backward(), lambda: plain().backward(), rounds, product=product)  # type: ignore[misc]
        yield {
            "model": f"{backbone}, last two blocks", "loop": name, "pairs/s": PAIRS / figures["ours_s"],
            "plain pairs/s": PAIRS / figures["peer_s"], **figures, **limit(model, step, figures["peer_product_GFLOP"]),
            "kept MB": kept_bytes(step) / 1e6, "plain kept MB": kept,
        }  # fmt: skip


PRODUCTS = (
    "aten::mm",
    "aten::bmm",
    "aten::mkldnn_convolution",
    "aten::convolution_backward",
    "aten::_slow_conv2d_forward",
)
KINDS = {
    **dict.fromkeys(PRODUCTS, "products"), "_Winograd": "transforms of tiles", "_WinogradBackward": "transforms of tiles",
    "aten::native_batch_norm": "normalisation", "aten::native_batch_norm_backward": "normalisation",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "decoding",
}  # fmt: skip


def profile(backbone: str, data: TrainingData, cache: Path, count: int = 8) -> Iterator[dict[str, Any]]:
    """Where the time of a step goes, in percent, and how long a step takes in the loop alone and in a whole run."""
    model = network(backbone)
    _, ours = loops(model, data, cache)
    for name, step in ours.items():
        for _ in range(WARM_UP):
            step().backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(count):
                step().backward()
        times = dict.fromkeys([*dict.fromkeys(KINDS.values()), "all else"], 0.0)
        for event in profiler.key_averages():
            times[KINDS.get(event.key, "all else")] += event.self_cpu_time_total
        alone = cpu_seconds(lambda step=step: step().backward(), count)  # type: ignore[misc]
        whole = step_of_a_run(model.config, cache, count, 8.0 if name == "cached" else 0.0)
        shares = {kind: 100 * spent / sum(times.values()) for kind, spent in times.items()}
        yield {"model": f"{backbone}, last two blocks", "loop": name, **shares, "step s": alone, "in a run s": whole}


def step_of_a_run(model: ModelConfig, cache: Path, count: int, cache_gb: float) -> float:
    """CPU seconds that a run takes for each further step: sampling, fetching, optimiser and records included."""
    base = experiments.get("town_gcl")
    spent = []
    for steps in (count, count, 3 * count):  # the first run fills the cache
        recipe = replace(base, model=model, batches=replace(base.batches, size=PAIRS), steps=steps, validation="", cache_gb=cache_gb)  # fmt: skip
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            train(recipe, Path(folder) / "run", resources=Resources(0, cache, tensorboard=False, plan=False))
        spent.append(time.process_time() - started)
    return (spent[2] - spent[1]) / (2 * count)


def limit(model: PlaceModel, step: Callable[[], Tensor], plain_product: float) -> dict[str, float]:
    """The ratio if a step did only its products, at full speed.

    plain_product: GFLOP that a matrix product computes in the time of a plain step.
    """
    if any(isinstance(part, torch.nn.Conv2d) and part.groups > 1 for part in model.modules()):
        return {}  # torch counts their backward pass wrongly
    own = operations(lambda: step().backward()) / 1e9
    return {"limit": plain_product / own, "GFLOP": own}


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
        trained = train(recipe, run, resources=Resources(0, output / "cache", tensorboard=False))
        rows.append(
            {
                "training": name,
                "seconds": trained["seconds"] + trained["mining_seconds"],
                "mining s": trained["mining_seconds"],
                "peak GiB": trained["memory_gib"],
            }
            | {f"recall@{k}": trained.recall[k] for k in (1, 5, 10)}
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
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    if args.recall:
        with tempfile.TemporaryDirectory() as folder:
            report("time_to_recall", time_to_recall(Path(folder)))
        return
    data = town_data()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for case in CASES for row in steps(case, data, Path(folder), args.rounds)]
        profiles = list(profile("resnet50", data, Path(folder)))
    report("training", rows, {"pairs a step": PAIRS, "image size": SIZE, "profile": profiles})


if __name__ == "__main__":
    prepare_process()
    main()
