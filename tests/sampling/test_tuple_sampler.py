"""Tuples: who may be positive, negative and second negative; mining against a loop."""

import tracemalloc

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.sampling import TupleBatch, TupleMiner, TupleSampler
from layouts.worlds import world


def every(sampler, epochs=2):
    return [sampler.batch(e, k) for e in range(epochs) for k in range(len(sampler))]


def test_an_epoch_visits_every_query_with_a_positive_once():
    w = world(n=80, seed=2)
    dense = w.dense.copy()
    dense[:20] = np.where(dense[:20] >= 0.5, 0, dense[:20])
    i, j = np.nonzero(dense)
    graph = SimilarityGraph.from_edges(i, j, dense[i, j], dense.shape, {"one_set": True})
    sampler = TupleSampler(graph, 3, 5)
    usable = np.flatnonzero((dense >= 0.5).any(1))
    seen = np.concatenate([b.queries for b in every(sampler, 1)])
    assert np.array_equal(np.unique(seen), usable)
    assert len(seen) == 5 * len(sampler) < len(usable) + 5


def test_negatives_of_a_tuple_are_distinct():
    w = world()
    for batch in every(TupleSampler(w.graph, 12, 6)):
        assert all(len(set(row)) == 12 for row in batch.negatives.tolist())


def test_soft_negatives_come_where_a_query_has_some():
    w = world()
    for batch in every(TupleSampler(w.graph, 8, 6, soft_share=0.5)):
        soft = ((w.dense > 0) & (w.dense < 0.5)).sum(1)[batch.queries]
        assert np.array_equal((batch.psi[:, 1:] > 0).sum(1), np.minimum(soft, 4))


@pytest.mark.parametrize("one_set", [True, False])
def test_second_negatives_overlap_with_no_other(one_set):
    w = world(n=400, m=400, seed=4, one_set=one_set, extent_m=1000)
    sampler = TupleSampler(w.graph, 4, 10, queries=w.queries, database=w.database, second_negative=True)
    xy = w.database.poses.xy
    for batch in every(sampler, 1):
        others, second = batch.negatives[:, :-1], batch.negatives[:, -1]
        assert (w.dense[batch.queries, second] == 0).all()
        assert (others != second[:, None]).all()
        if one_set:
            assert (w.dense[second[:, None], others] == 0).all()
        else:
            assert (np.linalg.norm(xy[second][:, None] - xy[others], axis=-1) >= 2 * w.graph.facts["radius_m"]).all()


def test_where_every_second_negative_overlaps_the_one_that_overlaps_least_is_taken():
    """Image 0 overlaps 1; 2 … 5 all overlap each other but for 5, which leaves 2 alone."""
    dense = np.zeros((6, 6), np.float32)
    dense[0, 1] = dense[1, 0] = 0.9
    dense[2:, 2:] = 0.4
    dense[2, 5] = dense[5, 2] = 0
    np.fill_diagonal(dense, 0)
    i, j = np.nonzero(dense)
    graph = SimilarityGraph.from_edges(i, j, dense[i, j], (6, 6), {"one_set": True})
    sampler = TupleSampler(graph, 3, 2, second_negative=True)
    for batch in every(sampler, 20):
        for query, row in zip(batch.queries, batch.negatives, strict=True):
            overlaps = [
                sum(dense[c, o] > 0 or c == o for o in row[:-1])
                for c in np.flatnonzero(dense[query] == 0)
                if c != query
            ]
            assert sum(dense[row[-1], o] > 0 or row[-1] == o for o in row[:-1]) == min(overlaps)


def test_what_cannot_be_drawn_is_refused():
    w = world()
    with pytest.raises(InputError, match="two negatives"):
        TupleSampler(w.graph, 1, 4, second_negative=True)
    with pytest.raises(InputError, match="share"):
        TupleSampler(w.graph, 4, 4, soft_share=1.5)
    with pytest.raises(InputError, match="both image sets"):
        TupleSampler(world(one_set=False).graph, 4, 4, second_negative=True)
    edge = SimilarityGraph.from_edges([0], [1], [0.3], (2, 2))
    with pytest.raises(InputError, match=r"\[0.5, 1\]"):
        TupleSampler(edge, 1, 1)
    with pytest.raises(InputError, match="3 negatives"):
        TupleBatch(np.arange(2), np.arange(2), np.zeros((2, 3), np.int64), np.zeros((2, 3), np.float32))


def unit(n, dim=8, seed=0):
    z = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return z / np.linalg.norm(z, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "kind",
    [{"one_set": True}, {"one_set": False}, {"one_set": False, "groups": 3, "within_group": True, "unknown": 3}],
    ids=str,
)
def test_mined_negatives_are_the_hardest_of_the_pool(kind):
    w = world(n=90, m=80, **kind)
    sampler = TupleSampler(w.graph, 4, 5, seed=2, queries=w.queries, database=w.database)
    miner = TupleMiner(sampler, refresh=3, pool=40)
    plan = miner.plan(1, 4)
    zq = unit(90)
    zd = zq if w.one_set else unit(80, seed=1)
    found = miner.mine(plan, zq[plan.queries], zd[plan.pool])
    group = [np.array(s.group_names)[s.group] for s in (w.queries, w.database)]
    mined = 0
    for batch, plain in [(found.batch(1, k), sampler.batch(1, k)) for k in (3, 4, 5)]:
        assert np.array_equal(batch.queries, plain.queries)
        assert np.array_equal(batch.positives, plain.positives)
        assert np.array_equal(batch.psi[:, 1:], w.dense[batch.queries[:, None], batch.negatives])
        for s, q in enumerate(batch.queries):
            allowed = [
                (-float(zq[q] @ zd[j]), j)
                for j in plan.pool.tolist()
                if w.dense[q, j] == 0
                and not (w.one_set and j == q)
                and not (kind.get("within_group") and group[0][q] != group[1][j])
            ]
            expected = [j for _, j in sorted(allowed)][:4]
            assert batch.negatives[s, : len(expected)].tolist() == expected
            assert np.array_equal(batch.negatives[s, len(expected) :], plain.negatives[s, len(expected) :])
            mined += len(expected)
    assert found.mined == mined


def test_a_round_serves_its_batches_and_no_others():
    w = world(n=90)
    sampler = TupleSampler(w.graph, 4, 5, second_negative=True)
    miner = TupleMiner(sampler, refresh=4, pool=30)
    plans = [miner.plan(0, k) for k in range(len(sampler))]
    assert {p.first for p in plans} == set(range(0, len(sampler), 4))
    assert np.array_equal(plans[1].pool, plans[3].pool)
    assert not np.array_equal(plans[0].pool, plans[4].pool)
    last = plans[-1]
    z = unit(90)
    found = miner.mine(last, z[last.queries], z[last.pool])
    assert (0, len(sampler) - 1) in found
    assert (0, last.first - 1) not in found
    assert (1, last.first) not in found
    with pytest.raises(InputError, match="mine it first"):
        found.batch(0, 0)
    with pytest.raises(InputError, match="were described"):
        miner.mine(last, z[:3], z[last.pool])
    with pytest.raises(InputError, match="at least"):
        TupleMiner(sampler, refresh=4, pool=3)


def test_mining_stays_within_its_memory():
    """20 000 images, of which a round describes 900: the peak is that of the plan, not of the map."""
    n = 20_000
    i = np.repeat(np.arange(n), 20)
    j = (i + np.tile(np.arange(1, 21), n)) % n
    graph = SimilarityGraph.from_edges(i, j, np.tile(np.linspace(0.9, 0.1, 20), n), (n, n))
    miner = TupleMiner(TupleSampler(graph, 5, 8), refresh=50, pool=500)
    plan = miner.plan(0, 0)
    zq, zd = unit(len(plan.queries), 64), unit(len(plan.pool), 64, seed=1)
    tracemalloc.start()
    miner.mine(plan, zq, zd)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan.queries) == 400
    assert len(plan.pool) == 500
    assert peak < 150e6
