"""Batches of pairs: what is drawn, how often, and that nothing is remembered."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.sampling import STRATEGIES, Pairs, PairSampler
from covis.sampling.draws import epoch_key, permute
from layouts.worlds import world


def sets(w):
    return Split(w.queries, w.database)


def every(sampler, epochs=1):
    return [sampler.batch(e, k) for e in range(epochs) for k in range(len(sampler))]


def test_an_epoch_visits_every_query_once_and_fills_up_the_last_batch():
    w = world(n=60)
    sampler = PairSampler(Pairs("D", 16), w.graph, sets(w))
    batches = every(sampler)
    assert sum(b.redrawn for b in batches) == 0
    assert len(batches) == 4
    seen = np.concatenate([b.queries for b in batches])
    assert np.array_equal(np.unique(seen), np.arange(60))
    assert len(seen) == 64
    assert np.array_equal(
        np.sort(seen), np.sort(np.concatenate([np.arange(60), permute(epoch_key(0, 0), np.arange(4), 60)]))
    )


def sparse_positives(n=40, every_nth=8):
    """Every query has soft negatives; only one in eight has a positive."""
    edges = [(i, (i + 1) % n, 0.3) for i in range(n)]
    edges += [(i, (i + 2) % n, 0.8) for i in range(0, n, every_nth)]
    i, j, psi = zip(*edges, strict=True)
    return SimilarityGraph.from_edges(i, j, psi, (n, n), {"one_set": False})


def test_queries_without_a_candidate_are_redrawn_and_counted():
    graph = sparse_positives()
    sampler = PairSampler(Pairs("A", 8), graph, seed=3)
    order = permute(epoch_key(3, 0), np.arange(40), 40)
    for k in range(len(sampler)):
        batch = sampler.batch(0, k)
        planned = order[8 * k : 8 * k + 8]
        usable = sum(q % 8 == 0 for q in planned)
        assert batch.redrawn == max(0, 4 - usable)
        stayed = np.intersect1d(batch.queries, planned)
        assert len(stayed) >= 8 - batch.redrawn
        assert (batch.psi >= 0.5).sum() == 4
        assert all(q % 8 == 0 for q in batch.queries[batch.psi >= 0.5])


def test_queries_that_suit_another_slot_of_the_batch_change_places_instead():
    """Half of the queries have positives: each batch of eight has its four without losing any query."""
    n = 64
    edges = [(i, (i + 1) % n, 0.3) for i in range(n)] + [(i, (i + 2) % n, 0.8) for i in range(n)]
    few = [(i, j, p) for i, j, p in edges if p < 0.5 or i % 8 < 6]
    i, j, psi = zip(*few, strict=True)
    sampler = PairSampler(Pairs("A", 16), SimilarityGraph.from_edges(i, j, psi, (n, n)))
    batches = every(sampler, epochs=5)
    assert sum(b.redrawn for b in batches) == 0
    assert np.array_equal(np.sort(np.concatenate([b.queries for b in batches[:4]])), np.arange(n))


def test_queries_without_any_candidate_are_in_no_batch_and_counted():
    w = world(unknown=6)
    sampler = PairSampler(Pairs("A", 8), w.graph, sets(w))
    assert len(sampler.candidates.eligible) == 54
    seen = np.concatenate([np.concatenate([b.queries, b.database]) for b in every(sampler, 3)])
    assert seen.max() < 54


@pytest.mark.parametrize("name", ["A", "D"])
def test_partners_are_uniform_within_a_band(name):
    w = world(n=24, seed=5)
    sampler = PairSampler(Pairs(name, 24), w.graph, sets(w), seed=1)
    drawn = np.zeros(w.dense.shape)
    for b in every(sampler, epochs=1500):
        np.add.at(drawn, (b.queries, b.database), 1)
    band = STRATEGIES[name].band_of(w.dense)
    statistic = freedom = 0
    for i in range(len(w.queries)):
        for k in range(len(STRATEGIES[name].bands)):
            own = drawn[i, (band[i] == k) & (np.arange(24) != i)]
            if len(own) > 1 and own.sum():
                statistic += ((own - own.mean()) ** 2 / own.mean()).sum()
                freedom += len(own) - 1
    assert drawn.trace() == 0
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


def test_batches_do_not_depend_on_how_they_are_asked_for():
    w = world()
    sampler = PairSampler(Pairs("B", 12), w.graph, sets(w), seed=4)
    alone = [sampler.batch(2, k) for k in reversed(range(len(sampler)))][::-1]
    together = sampler.draw(2, 0, len(sampler))
    for name in ("queries", "database", "psi"):
        assert np.array_equal(np.concatenate([getattr(one, name) for one in alone]), getattr(together, name))
    assert sum(one.redrawn for one in alone) == together.redrawn


def test_a_graph_on_disk_gives_the_same_batches(tmp_path):
    w = world()
    w.graph.save(tmp_path / "graph")
    here, there = (PairSampler(Pairs("C", 10), g, seed=2) for g in (w.graph, SimilarityGraph.open(tmp_path / "graph")))
    assert np.array_equal(here.batch(1, 2).database, there.batch(1, 2).database)


def test_composition_by_yes_and_no_with_graded_labels():
    yes_no, graded = world(seed=8, binary=True), world(seed=8)
    plain = PairSampler(Pairs("binary", 16), yes_no.graph, seed=6)
    looked_up = PairSampler(Pairs("binary", 16), yes_no.graph, seed=6, labels=graded.graph)
    for k in range(len(plain)):
        one, other = plain.batch(0, k), looked_up.batch(0, k)
        assert np.array_equal(one.queries, other.queries)
        assert np.array_equal(one.database, other.database)
        assert set(one.psi.tolist()) == {0.0, 1.0}
        assert (one.psi == 1).sum() == 8
        assert np.array_equal(other.psi, graded.dense[other.queries, other.database])
    assert len(np.unique(other.psi)) > 4


def small_room(n=12):
    """One set whose images all overlap, near ones more: nothing in it has ψ = 0."""
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    psi = 1 - 0.9 * np.abs(i - j) / n
    return SimilarityGraph.from_edges(i, j, psi.astype(np.float32), (n, n), {"one_set": True})


@pytest.mark.parametrize(("name", "low"), [("A", 8), ("B", 8), ("D", 8)])
def test_where_all_images_overlap_the_share_of_zero_goes_to_the_least_overlap(name, low, capsys):
    sampler = PairSampler(Pairs(name, 16), small_room())
    for batch in every(sampler, epochs=3):
        assert (batch.psi > 0).all()
        assert (batch.psi < 0.5).sum() == low
        if name == "B":
            assert (batch.psi >= 0.75).sum() == 4
    said = "every pair of images overlaps: strategy" in capsys.readouterr().err
    assert said == (name != "D"), "D asks for negatives of either kind"


def test_errors_name_what_is_wrong():
    w = world(groups=2, within_group=True)
    with pytest.raises(InputError, match="within groups"):
        PairSampler(Pairs("A", 8), w.graph)
    with pytest.raises(InputError, match="the sets it was made from"):
        PairSampler(Pairs("A", 8), w.graph, Split(w.queries, w.database.subset(np.arange(59))))
    with pytest.raises(InputError, match="not one of the epoch's"):
        PairSampler(Pairs("A", 8), world().graph).batch(0, 8)
    with pytest.raises(InputError, match=r"no query has a pair with ψ in \(0, 0.5\), which strategy 'A'"):
        PairSampler(Pairs("A", 8), world(binary=True).graph)
    itself = SimilarityGraph.from_edges([0, 1, 2], [1, 1, 0], [0.9, 1.0, 0.3], (3, 3), {"one_set": True})
    with pytest.raises(InputError, match=r"pair \(1, 1\)"):
        PairSampler(Pairs("A", 8), itself)
