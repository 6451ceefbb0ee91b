"""Which pairs a batch draws and how it weighs them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from covis import datasets
from covis.losses import GeneralizedContrastive
from covis.sampling import AllPairs, PairBatch, Pairs
from covis.training.batch_images import BatchImages


@pytest.fixture
def walks(tmp_path):
    """Four walks up and down one street."""
    rows = ["image,easting,northing,heading,group"]
    rows += [f"w{w}_{i}.jpg,{4 * i},{w},{90 + 3 * w},walk{w}" for w in range(4) for i in range(40)]
    (tmp_path / "street.csv").write_text("\n".join(rows) + "\n")
    return datasets.load("table", tmp_path / "street.csv", "all")


@pytest.mark.parametrize("batches", [Pairs("A", 16), AllPairs("A", 16, places=4)], ids=["pairs", "all pairs"])
def test_partners_of_other_groups_alone_are_drawn_and_graded_as_ever(quick, walks, batches):
    labels = quick.labels(walks.queries, walks.database)
    batches = replace(batches, partners="other_groups")
    sampler = batches.sampler(labels, walks, 0, loss=quick.loss, graphs={})
    group = walks.queries.group
    drawn_alike = 0
    for index in range(len(sampler)):
        batch = sampler.batch(0, index)
        np.testing.assert_array_equal(batch.psi, labels.lookup(batch.queries, batch.database))
        drawn_alike += int(
            (sampler.graph.lookup(batch.queries, batch.database)[group[batch.queries] == group[batch.database]]).sum()
        )
        if isinstance(batches, Pairs):
            half = len(batch.psi) // 2
            assert (np.sort(batch.psi)[-half:] >= 0.5).all()
    assert drawn_alike == 0


def test_focus_moves_the_weight_of_pairs_that_are_far_enough_apart():
    z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]], requires_grad=True)
    queries, database = np.array([0, 0, 0, 0]), np.array([1, 1, 2, 3])
    psi = np.array([0.8, 0.0, 0.0, 0.0], np.float32)
    batch = PairBatch(queries, database, psi, np.array([1.0, 0.5, 0.5, 0.5], np.float32), 0)
    loss = GeneralizedContrastive(margin=0.7)
    wanted = BatchImages.of(batch, one_set=True)
    focused = replace(wanted, batch=replace(batch, focus=True))
    each = loss(z[queries], z[database], torch.from_numpy(psi)).detach().numpy()
    assert (each[2:] == 0).all()
    assert wanted.loss(loss, z).item() == pytest.approx(each[0] + 0.5 * each[1])
    assert focused.loss(loss, z).item() == pytest.approx(each[0] + 1.5 * each[1])
    assert batch.total_weight == 2.5
    far = replace(focused.batch, queries=queries[2:], database=database[2:], psi=psi[2:], weight=batch.weight[2:])
    nothing = BatchImages.of(far, one_set=True).loss(loss, z[[0, 2, 3]])
    nothing.backward()
    assert nothing.item() == 0
    assert torch.isfinite(z.grad).all()
