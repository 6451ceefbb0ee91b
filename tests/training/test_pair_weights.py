"""Which pairs a batch draws and how it weighs them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from covis import datasets
from covis.errors import InputError
from covis.losses import GeneralizedContrastive, Triplet
from covis.sampling import PairBatch
from covis.training.data import make_sampler, needed, weight_of, weighted_loss
from covis.training.recipe import Batches


@pytest.fixture
def walks(tmp_path):
    """Four walks up and down one street."""
    rows = ["image,easting,northing,heading,group"]
    rows += [f"w{w}_{i}.jpg,{4 * i},{w},{90 + 3 * w},walk{w}" for w in range(4) for i in range(40)]
    (tmp_path / "street.csv").write_text("\n".join(rows) + "\n")
    return datasets.load("table", tmp_path / "street.csv", "all")


@pytest.mark.parametrize("strategy", ["A", "all_pairs"])
def test_partners_of_other_groups_alone_are_drawn_and_graded_as_ever(quick, walks, strategy):
    labels = quick.labels(walks.queries, walks.database)
    batches = Batches(strategy, 16, partners="other_groups", places=4)
    sampler = make_sampler(replace(quick, batches=batches), walks, labels, None, seed=0)
    group = walks.queries.group
    drawn_alike = 0
    for index in range(len(sampler)):
        batch = sampler.batch(0, index)
        np.testing.assert_array_equal(batch.psi, labels.lookup(batch.queries, batch.database))
        drawn_alike += int(
            (sampler.graph.lookup(batch.queries, batch.database)[group[batch.queries] == group[batch.database]]).sum()
        )
        if strategy == "A":
            half = len(batch.psi) // 2
            assert (np.sort(batch.psi)[-half:] >= 0.5).all()
    assert drawn_alike == 0


def test_tuples_refuse_a_choice_of_partners(quick):
    with pytest.raises(InputError, match="pair losses"):
        replace(quick, loss=Triplet(), batches=Batches("triplet", partners="other_groups"))


def test_focus_moves_the_weight_of_pairs_that_are_far_enough_apart():
    z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]], requires_grad=True)
    queries, database = np.array([0, 0, 0, 0]), np.array([1, 1, 2, 3])
    psi = np.array([0.8, 0.0, 0.0, 0.0], np.float32)
    batch = PairBatch(queries, database, psi, np.array([1.0, 0.5, 0.5, 0.5], np.float32), 0)
    loss = GeneralizedContrastive(margin=0.7)
    wanted = needed(batch, one_set=True)
    each = loss(z[queries], z[database], torch.from_numpy(psi)).detach().numpy()
    assert (each[2:] == 0).all()
    assert weighted_loss(loss, wanted, z).item() == pytest.approx(each[0] + 0.5 * each[1])
    assert weighted_loss(loss, wanted, z, focus=True).item() == pytest.approx(each[0] + 1.5 * each[1])
    assert weight_of(batch) == 2.5
    far = replace(batch, queries=queries[2:], database=database[2:], psi=psi[2:], weight=batch.weight[2:])
    nothing = weighted_loss(loss, needed(far, one_set=True), z[[0, 2, 3]], focus=True)
    nothing.backward()
    assert nothing.item() == 0
    assert torch.isfinite(z.grad).all()
