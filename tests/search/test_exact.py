"""Exact search against a loop in float64, under ties, groups, masks and block borders."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.ranking import Ranking
from covis.search import exact as exact_module
from covis.search import rank


def unit(rng, n, dim):
    x = rng.standard_normal((n, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def naive(queries, database, k, may=lambda q, d: True):
    """Sorts (distance, id) of every permitted pair in plain Python."""
    rows = []
    for q, a in enumerate(queries.astype(np.float64)):
        pairs = [
            (np.float32(np.sqrt(((a - b) ** 2).sum())), d)
            for d, b in enumerate(database.astype(np.float64))
            if may(q, d)
        ]
        rows.append(sorted(pairs)[:k])
    return rows


def assert_equal(ranking, expected):
    for q, row in enumerate(expected):
        ids, distances = ranking.row(q)
        assert ids.tolist() == [d for _, d in row]
        np.testing.assert_allclose(distances, [v for v, _ in row], rtol=1e-6, atol=1e-7)
        assert (ranking.ids[q, len(row) :] == -1).all()
        assert np.isinf(ranking.distances[q, len(row) :]).all()


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(exact_module, "_BLOCK_ROWS", 37)
    monkeypatch.setattr(exact_module, "_QUERY_ROWS", 5)
    monkeypatch.setattr(exact_module, "_STATE_BYTES", 1)


@pytest.mark.parametrize("k", [1, 7, 200, 500])
def test_equals_a_naive_loop_across_block_borders(small_blocks, k):
    rng = np.random.default_rng(k)
    queries, database = unit(rng, 13, 24), unit(rng, 200, 24)
    assert_equal(rank(queries, database, k), naive(queries, database, k))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 12), st.sampled_from(["any", "same", "other"]))
def test_ties_and_groups_on_coarse_grids(seed, n, k, groups):
    """Descriptors on a grid of few values collide often, so ids decide; groups cut the rows short."""
    rng = np.random.default_rng(seed)
    database = rng.integers(-1, 2, (n, 3)).astype(np.float32)
    queries = rng.integers(-1, 2, (6, 3)).astype(np.float32)
    gq, gd = rng.integers(0, 3, 6), rng.integers(0, 3, n)
    may = {"any": lambda q, d: True, "same": lambda q, d: gq[q] == gd[d], "other": lambda q, d: gq[q] != gd[d]}[groups]
    assert_equal(rank(queries, database, k, gq, gd, groups), naive(queries, database, k, may))


def test_a_collapsed_map_keeps_the_order_of_ids(small_blocks):
    """All descriptors equal: far more ties than there is room for candidates."""
    one = unit(np.random.default_rng(0), 1, 64)
    ranking = rank(np.repeat(one, 7, 0), np.repeat(one, 5000, 0), 10)
    assert (ranking.ids == np.arange(10)).all()
    assert (ranking.distances == 0).all()


def test_equal_descriptors_have_equal_distances_wherever_they_stand():
    rng = np.random.default_rng(1)
    base, queries = unit(rng, 50, 512), unit(rng, 9, 512)
    database = np.concatenate([base] * 101)[: 50 * 100 + 3]
    ranking = rank(queries, database, 300)
    for q in range(len(queries)):
        best = naive(queries[q : q + 1], base, 50)[0]
        copies = [[d + 50 * c for c in range(101) if d + 50 * c < len(database)] for _, d in best]
        assert ranking.ids[q].tolist() == [i for group in copies for i in group][:300]


def test_near_ties_follow_the_exact_distance():
    """Differences below the rounding of a float32 product still decide."""
    rng = np.random.default_rng(2)
    query = unit(rng, 1, 512)
    database = np.repeat(query, 400, 0) + rng.standard_normal((400, 512)).astype(np.float32) * 1e-5
    assert_equal(rank(query, database, 50), naive(query, database, 50))


def test_result_does_not_depend_on_blocks(monkeypatch):
    rng = np.random.default_rng(3)
    queries, database = unit(rng, 50, 128), unit(rng, 3000, 128).astype(np.float16)
    whole = rank(queries, database, 20)
    for rows, together in ((100, 1), (999, 7)):
        monkeypatch.setattr(exact_module, "_BLOCK_ROWS", rows)
        monkeypatch.setattr(exact_module, "_QUERY_ROWS", together)
        again = rank(queries, database, 20)
        assert (again.ids == whole.ids).all()
        assert (again.distances == whole.distances).all()


def test_allowed_rows_and_excluded_ids(small_blocks):
    rng = np.random.default_rng(4)
    database = unit(rng, 150, 8)
    mask = rng.random(150) < 0.4
    expected = naive(database[:9], database, 6, lambda q, d: mask[d] and d != q)
    assert_equal(rank(database[:9], database, 6, allowed=mask, exclude=np.arange(9)), expected)
    assert_equal(rank(database[:9], database, 6, allowed=np.flatnonzero(mask), exclude=np.arange(9)), expected)


@pytest.mark.parametrize("share", [0.02, 0.4, 0.95])
def test_ties_stand_in_the_order_of_rows(small_blocks, share):
    rng = np.random.default_rng(7)
    database = rng.integers(-1, 2, (300, 3)).astype(np.float32)
    mask = rng.random(300) < share
    ranking = rank(database[:5], database, 12, allowed=mask)
    for q in range(5):
        distance = np.sqrt(((database[q].astype(float) - database) ** 2).sum(1)).astype(np.float32)
        assert (
            ranking.row(q)[0].tolist()
            == [i for _, i in sorted(zip(distance[mask], np.flatnonzero(mask), strict=True))][:12]
        )


def test_memory_mapped_half_precision(tmp_path):
    rng = np.random.default_rng(5)
    queries, database = unit(rng, 4, 32), unit(rng, 90, 32).astype(np.float16)
    np.save(tmp_path / "x.npy", database)
    assert_equal(rank(queries, np.load(tmp_path / "x.npy", mmap_mode="r"), 5), naive(queries, database, 5))


def test_empty_sides():
    rng = np.random.default_rng(6)
    assert rank(unit(rng, 3, 8), np.zeros((0, 8), np.float32), 5).ids.shape == (3, 0)
    assert rank(np.zeros((0, 8), np.float32), unit(rng, 3, 8), 5).ids.shape == (0, 3)
    nobody = rank(unit(rng, 2, 8), unit(rng, 3, 8), 5, [0, 1], [2, 2, 2], "same")
    assert (nobody.ids == -1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"database": np.zeros((4, 9), np.float32)}, "8 dimensions"),
        ({"database": np.full((4, 8), np.nan, np.float32)}, "descriptor 0 of the map is not finite"),
        ({"queries": np.full((2, 8), np.inf, np.float32)}, "descriptor 0 of the queries is not finite"),
        ({"groups": "same"}, "needs query_group"),
        ({"groups": "mine"}, "use any, same or other"),
        ({"allowed": np.ones(3, bool)}, "mask of allowed"),
        ({"k": 0}, "k must be"),
    ],
)
def test_bad_input_is_named(change, message):
    good = {"queries": np.eye(8, dtype=np.float32)[:2], "database": np.eye(8, dtype=np.float32)[:4], "k": 2}
    with pytest.raises(InputError, match=message):
        rank(**{**good, **change})


def test_ranking_refuses_unequal_shapes():
    with pytest.raises(InputError, match="one \\(Q, K\\) shape"):
        Ranking(np.zeros((2, 3), np.int64), np.zeros((2, 2), np.float32))


def test_spans_cover_every_row_once_and_keep_to_parts():
    from covis.search.exact import _spans

    for borders, most in (
        ([0], 9),
        ([0, 5], 9),
        ([0, 3000, 7096, 7100, 9000], 2048),
        ([0, 1, 2, 3, 2000, 20_000], 8192),
    ):
        spans = list(_spans(borders, most))
        assert [row for low, high in spans for row in range(low, high)] == list(range(borders[-1]))
        assert all(high - low <= most for low, high in spans)
    assert list(_spans([0, 4096, 8192, 8200], 8192)) == [(0, 4096), (4096, 8192), (8192, 8200)]


def test_parts_of_any_size_give_the_answer_of_one_array():
    from covis.descriptors import Stacked

    rng = np.random.default_rng(8)
    x = rng.standard_normal((9000, 8)).astype(np.float32)
    cuts = np.sort(rng.integers(0, 9000, 12))
    inner = Stacked(tuple(np.split(x[:5000], cuts[cuts < 5000])), 8)
    parts = Stacked((inner, *np.split(x[5000:], cuts[cuts > 5000] - 5000)), 8)
    queries = rng.standard_normal((20, 8)).astype(np.float32)
    one, other = rank(queries, x, 7), rank(queries, parts, 7)
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.distances, other.distances)
