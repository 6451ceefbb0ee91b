"""Forward and backward of the pair losses against two peers' contrastive losses, and of the tuple losses; one thread.

`slower` is the time relative to the fastest peer on the same batch: below 1 is faster than every peer.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from typing import Any

import torch
from _common import cpu_seconds, report
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss as MetricLearningContrastive
from torch import Tensor

from covis.losses import LOSSES, PairLoss
from covis.models import backbones

backbones.import_timm()  # sentence-transformers imports torchvision, which may have been built for another torch
from sentence_transformers.sentence_transformer import losses as sentence_losses  # noqa: E402

SHAPES = [(32, 512), (32, 2048), (256, 2048)]
NEGATIVES = 10
CALLS = 20
LARGEST_TUPLES = 32
"""Batches of more tuples than this are not usual, and slow to measure."""


def unit(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape), dim=-1).requires_grad_()


def timed(forward: Callable[[], Tensor], inputs: list[Tensor]) -> float:
    """Microseconds of one forward and backward pass."""

    def work() -> None:
        for _ in range(CALLS):
            torch.autograd.grad(forward(), inputs)

    return 1e6 * cpu_seconds(work, 7) / CALLS


def peers(za: Tensor, zb: Tensor, label: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Contrastive losses of others on the same pairs."""
    sentence = sentence_losses.ContrastiveLoss(
        torch.nn.Identity(), sentence_losses.SiameseDistanceMetric.EUCLIDEAN, margin=0.5
    )
    metric = MetricLearningContrastive(0, 0.5, distance=LpDistance(normalize_embeddings=False))
    at = torch.arange(len(za))
    pairs = (at[label == 1], at[label == 1], at[label == 0], at[label == 0])
    return {
        "sentence-transformers ContrastiveLoss": lambda: sentence.compute_loss_from_embeddings([za, zb], label),
        "pytorch-metric-learning ContrastiveLoss": lambda: metric(za, indices_tuple=pairs, ref_emb=zb),
    }


def ours(za: Tensor, zb: Tensor, psi: Tensor) -> dict[str, float]:
    """Microseconds of every loss of covis; tuple losses take zb as positives."""
    batch, dim = za.shape
    zn, graded = unit(batch, NEGATIVES, dim), torch.rand(batch, 1 + NEGATIVES)
    spent = {}
    for name, kind in LOSSES.items():
        if kind.shape not in ("pairs", "tuples"):
            continue
        loss = kind()
        if isinstance(loss, PairLoss):
            spent[name] = timed(lambda f=loss: f(za, zb, psi).mean(), [za, zb])
        elif batch <= LARGEST_TUPLES:
            spent[name] = timed(lambda f=loss: f(za, zb, zn, graded).mean(), [za, zb, zn])
    return spent


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for batch, dim in SHAPES:
        za, zb = unit(batch, dim), unit(batch, dim)
        others = {n: timed(f, [za, zb]) for n, f in peers(za, zb, torch.arange(batch) % 2).items()}
        for name, microseconds in (others | ours(za, zb, torch.rand(batch))).items():
            row = {"batch": batch, "dim": dim, "loss": name, "microseconds": microseconds}
            pair = name in others or issubclass(LOSSES[name], PairLoss)
            rows.append(row | ({"slower": microseconds / min(others.values())} if pair else {}))
    share = [r["slower"] for r in rows if r["loss"] == "generalized_contrastive"]
    headline = {"least": min(share), "most": max(share)}
    report("losses", rows, {"negatives of tuples": NEGATIVES, "headline": headline})


if __name__ == "__main__":
    main()
