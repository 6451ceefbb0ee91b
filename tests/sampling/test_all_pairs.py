"""Neighbourhood batches: how many pairs, of what, with which weights."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.sampling import STRATEGIES, AllPairs, AllPairsSampler, Pairs, PairSampler
from layouts.worlds import world


def every(sampler, epochs=2):
    return [sampler.batch(e, k) for e in range(epochs) for k in range(len(sampler))]


def test_one_set_gives_every_pair_of_its_images_once():
    w, size = world(n=90), 12
    for batch in every(AllPairsSampler(AllPairs("A", size), w.graph)):
        images = np.unique(np.concatenate([batch.queries, batch.database]))
        assert len(images) == size
        assert len(batch) == size * (size - 1) // 2
        pairs = {frozenset(p) for p in zip(batch.queries.tolist(), batch.database.tolist(), strict=True)}
        assert len(pairs) == len(batch)


def test_two_sets_give_every_pair_of_a_query_and_a_map_image():
    w = world(n=90, m=80, one_set=False)
    for batch in every(AllPairsSampler(AllPairs("A", 20), w.graph)):
        queries, database = np.unique(batch.queries), np.unique(batch.database)
        assert len(queries) + len(database) == 20
        assert len(batch) == len(queries) * len(database)
        assert min(len(queries), len(database)) >= 4


@pytest.mark.parametrize("name", ["B", "D"])
def test_weights_restore_the_shares(name):
    w = world(n=90)
    for batch in every(AllPairsSampler(AllPairs(name, 16), w.graph)):
        band = STRATEGIES[name].band_of(batch.psi)
        for k, wanted in enumerate(STRATEGIES[name].bands):
            own = batch.weight[band == k]
            assert len(own)
            assert own == pytest.approx(np.full(len(own), float(wanted.share) * len(batch) / len(own)))


def test_images_are_neighbours():
    """Most images of a batch overlap with another one of it, far more than among random images."""
    w = world(n=300, seed=6, extent_m=400)
    rng = np.random.default_rng(0)
    together, random = [], []
    for batch in every(AllPairsSampler(AllPairs("A", 20, places=1), w.graph), 1):
        together.append((batch.psi > 0).mean())
        some = rng.choice(300, 20, replace=False)
        random.append((w.dense[np.ix_(some, some)] > 0).mean())
    assert np.mean(together) > 3 * np.mean(random)


def test_more_places_give_more_pairs_without_overlap():
    w = world(n=300, seed=6)
    share = [
        np.mean([(b.psi == 0).mean() for b in every(AllPairsSampler(AllPairs("A", 24, places=p), w.graph), 1)])
        for p in (1, 2, 4)
    ]
    assert share[0] < share[1] < share[2]


def test_a_band_that_the_anchor_lacks_is_served_by_another_image():
    """Two far pairs carry the only positives: every batch has one of them all the same."""
    n = 60
    edges = [(i, (i + s) % n, 0.3) for i in range(n) for s in (1, n - 1)]
    edges = [(i, j, p) for i, j, p in edges if {i, j} not in ({0, 1}, {30, 31})]
    edges += [(0, 1, 0.9), (1, 0, 0.9), (30, 31, 0.9), (31, 30, 0.9)]
    i, j, psi = zip(*edges, strict=True)
    graph = SimilarityGraph.from_edges(i, j, psi, (n, n), {"one_set": True})
    batches = every(AllPairsSampler(AllPairs("A", 12), graph), 4)
    assert all((b.psi >= 0.5).any() for b in batches)
    assert sum(b.redrawn for b in batches) > 0.7 * len(batches)


def test_an_epoch_takes_as_many_forward_passes_as_one_of_pairs():
    w = world(n=90)
    pairs, all_pairs = PairSampler(Pairs("A", 8), w.graph), AllPairsSampler(AllPairs("A", 16), w.graph)
    assert len(pairs) * 2 * 8 == len(all_pairs) * 16


def test_a_small_graph_gives_small_batches_rather_than_repeated_images():
    w = world(n=9, seed=1)
    for batch in every(AllPairsSampler(AllPairs("A", 32), w.graph)):
        assert len(np.unique(np.concatenate([batch.queries, batch.database]))) <= 9
        assert (batch.queries != batch.database).all()


def test_composition_by_one_graph_with_labels_of_another():
    yes_no, graded = world(n=90, seed=8, binary=True), world(n=90, seed=8)
    sampler = AllPairsSampler(AllPairs("binary", 16), yes_no.graph, labels=graded.graph)
    for batch in every(sampler, 1):
        assert np.array_equal(batch.psi, graded.dense[batch.queries, batch.database])
        positive = yes_no.dense[batch.queries, batch.database] == 1
        assert batch.weight[positive].sum() == pytest.approx(len(batch) / 2, rel=1e-5)


def test_too_small_a_batch_is_refused():
    with pytest.raises(InputError, match=r"set batches\.size=8 or more"):
        AllPairs("A", 7)
