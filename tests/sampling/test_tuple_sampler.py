"""Tuples: who may be positive, negative and second negative; mining against a loop."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.sampling import TupleMiner, Tuples, TupleSampler
from layouts.worlds import world


def sampler_of(w, *, seed=0, second_negative=False, **fields):
    return TupleSampler(
        Tuples(**fields), w.graph, Split(w.queries, w.database), seed, second_negative=second_negative
    )  # fmt: skip


def every(sampler, epochs=2):
    return [sampler.batch(e, k) for e in range(epochs) for k in range(len(sampler))]


def test_an_epoch_visits_every_query_with_a_positive_once():
    w = world(n=80, seed=2)
    dense = w.dense.copy()
    dense[:20] = np.where(dense[:20] >= 0.5, 0, dense[:20])
    i, j = np.nonzero(dense)
    graph = SimilarityGraph.from_edges(i, j, dense[i, j], dense.shape, {"one_set": True})
    sampler = TupleSampler(Tuples(5, 3), graph)
    usable = np.flatnonzero((dense >= 0.5).any(1))
    seen = np.concatenate([b.queries for b in every(sampler, 1)])
    assert np.array_equal(np.unique(seen), usable)
    assert len(seen) == 5 * len(sampler) < len(usable) + 5


def test_negatives_are_distinct_and_soft_ones_come_where_a_query_has_some():
    w = world()
    for batch in every(sampler_of(w, size=6, negatives=8, soft_share=0.5)):
        soft = ((w.dense > 0) & (w.dense < 0.5)).sum(1)[batch.queries]
        assert np.array_equal((batch.psi[:, 1:] > 0).sum(1), np.minimum(soft, 4))
        assert all(len(set(row)) == 8 for row in batch.database[:, 1:].tolist())


@pytest.mark.parametrize("one_set", [True, False])
def test_second_negatives_overlap_with_no_other(one_set):
    w = world(n=400, m=400, seed=4, one_set=one_set, extent_m=1000)
    xy = w.database.poses.xy
    for batch in every(sampler_of(w, size=10, negatives=4, second_negative=True), 1):
        others, second = batch.database[:, 1:-1], batch.database[:, -1]
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
    for batch in every(TupleSampler(Tuples(2, 3), graph, second_negative=True), 20):
        for query, row in zip(batch.queries, batch.database[:, 1:], strict=True):
            overlaps = [
                sum(dense[c, o] > 0 or c == o for o in row[:-1])
                for c in np.flatnonzero(dense[query] == 0)
                if c != query
            ]
            assert sum(dense[row[-1], o] > 0 or row[-1] == o for o in row[:-1]) == min(overlaps)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match="two negatives"):
        sampler_of(world(), negatives=1, second_negative=True)
    with pytest.raises(InputError, match="share"):
        Tuples(soft_share=1.5)
    with pytest.raises(InputError, match="pool higher"):
        Tuples(mined=True, pool=3)
    with pytest.raises(InputError, match="by position"):
        TupleSampler(Tuples(), world(one_set=False).graph, second_negative=True)
    edge = SimilarityGraph.from_edges([0], [1], [0.3], (2, 2))
    with pytest.raises(InputError, match=r"\[0.5, 1\]"):
        TupleSampler(Tuples(1, 1), edge)


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
    sampler = sampler_of(w, seed=2, size=5, negatives=4, mined=True, refresh=3, pool=40)
    z = [unit(90), unit(90) if w.one_set else unit(80, seed=1)]
    described = [[], []]

    def describe(side, ids):
        described[side].append(ids)
        return z[side][ids]

    miner, first = TupleMiner(sampler), len(sampler) + 4
    assert miner.renew(first, describe) == len(sampler) + 6
    [pool] = described[1]
    group = [np.array(s.group_names)[s.group] for s in (w.queries, w.database)]
    for k in (3, 4, 5):
        batch, plain = miner.batch(len(sampler) + k), sampler.batch(1, k)
        assert np.array_equal(batch.queries, plain.queries)
        assert np.array_equal(batch.database[:, 0], plain.database[:, 0])
        assert np.array_equal(batch.psi, w.dense[batch.queries[:, None], batch.database])
        for s, q in enumerate(batch.queries):
            allowed = [
                (-float(z[0][q] @ z[1][j]), j)
                for j in pool.tolist()
                if w.dense[q, j] == 0
                and not (w.one_set and j == q)
                and not (kind.get("within_group") and group[0][q] != group[1][j])
            ]
            expected = [j for _, j in sorted(allowed)][:4]
            assert batch.database[s, 1 : 1 + len(expected)].tolist() == expected
            assert np.array_equal(batch.database[s, 1 + len(expected) :], plain.database[s, 1 + len(expected) :])


def test_a_round_serves_its_batches_and_no_others_and_survives_a_stop():
    w = world(n=90)
    sampler = sampler_of(w, size=5, negatives=4, second_negative=True, mined=True, refresh=4, pool=30)
    miner, z, pools = TupleMiner(sampler), unit(90), []

    def describe(side, ids):
        pools.extend([ids] if side else [])
        return z[ids]

    limits = [miner.renew(k, describe) for k in range(len(sampler))]
    assert limits == [min(len(sampler), k - k % 4 + 4) for k in range(len(sampler))]
    assert len(pools) == -(-len(sampler) // 4)
    assert not np.array_equal(pools[0], pools[1])
    with pytest.raises(InputError, match="renew it first"):
        miner.batch(0)
    again = TupleMiner(sampler)
    again.restore(miner.state())
    last = len(sampler) - 1
    assert again.renew(last, lambda *_: pytest.fail("mined anew")) == len(sampler)
    assert np.array_equal(again.batch(last).database, miner.batch(last).database)
