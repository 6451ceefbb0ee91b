"""Patch matching: what moves together counts, and only the head of a ranking moves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.describing.patches import PatchReranker, PatchVectors, agreement, windows
from covis.ranking import Ranking

ROWS, COLUMNS, DIM = 6, 8, 16


def scene(seed):
    """A wide map of unit patch vectors (ROWS, 3 · COLUMNS, DIM)."""
    x = np.random.default_rng(seed).standard_normal((ROWS, 3 * COLUMNS, DIM))
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def view(wide, shift):
    return wide[:, shift : shift + COLUMNS].reshape(-1, DIM)


PLACES = windows(ROWS, COLUMNS, 1)


def patches(vectors):
    return PatchVectors(np.arange(len(vectors)), vectors, PLACES)


def naive(query, candidate):
    """Mutual nearest patches, each weighed by its distance from the median movement, in plain loops."""
    cosine = [[float(a @ b) for b in candidate] for a in query]
    matches = []
    for i, row in enumerate(cosine):
        j = int(np.argmax(row))
        if int(np.argmax([cosine[m][j] for m in range(len(query))])) == i:
            matches.append((i, j))
    moves = np.array([PLACES[j] - PLACES[i] for i, j in matches])
    middle = np.median(moves, axis=0)
    limit = 0.25 * np.hypot(COLUMNS - 1, ROWS - 1)
    weights = [max(0.0, 1 - np.hypot(*(m - middle)) / limit) for m in moves]
    return sum(max(cosine[i][j], 0) * w for (i, j), w in zip(matches, weights, strict=True)) / len(query)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_agreement_equals_plain_loops(seed):
    query, other = view(scene(seed), 2), view(scene(seed), 4)
    other = other + 0.3 * view(scene(seed + 1), 0)
    other = (other / np.linalg.norm(other, axis=1, keepdims=True)).astype(np.float32)
    assert agreement(query, other[None], PLACES)[0] == pytest.approx(naive(query, other), abs=1e-5)


def test_a_moved_view_agrees_and_a_shuffled_one_does_not():
    """The same patches in another arrangement are another place."""
    wide = scene(0)
    query = view(wide, 4)
    shuffled = query[np.random.default_rng(1).permutation(len(query))]
    same, moved, mixed, foreign = agreement(
        query, np.stack([query, view(wide, 6), shuffled, view(scene(9), 0)]), PLACES
    )
    assert same == pytest.approx(1)
    assert 0.5 < moved < same
    assert mixed < 0.4 * moved
    assert foreign < 0.4 * moved


def test_only_the_head_moves_and_nothing_is_lost():
    wide = [scene(s) for s in range(7)]
    maps = np.stack([view(w, 5) for w in wide])
    ranking = Ranking(
        [[0, 1, 3, 2, 5, 4], [0, 1, 2, 4, 5, -1]], [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.2, 0.3, 0.4, 0.5, np.inf]]
    )
    again = PatchReranker(depth=4).by_patches(patches(maps[[3, 5]]), patches(maps), ranking)
    assert again.ids[0, 0] == 3
    assert again.ids[0, 4:].tolist() == [5, 4]
    assert again.ids[1, 4:].tolist() == [5, -1]
    for q in range(2):
        before = dict(zip(ranking.ids[q].tolist(), ranking.distances[q].tolist(), strict=True))
        assert before == dict(zip(again.ids[q].tolist(), again.distances[q].tolist(), strict=True))


def test_without_evidence_the_order_stays():
    """Patches that say nothing leave the order to the descriptors."""
    flat = np.ones((5, len(PLACES), DIM), np.float32) / np.sqrt(DIM)
    ranking = Ranking([[4, 1, 0]], [[0.1, 0.2, 0.3]])
    assert PatchReranker().by_patches(patches(flat), patches(flat), ranking).ids.tolist() == [[4, 1, 0]]


def test_empty_rankings_and_wrong_shapes():
    none = patches(np.zeros((0, len(PLACES), DIM), np.float32))
    nothing = PatchReranker().by_patches(none, none, Ranking(np.full((2, 3), -1), np.full((2, 3), np.inf)))
    assert (nothing.ids == -1).all()
    with pytest.raises(InputError, match="do not fit"):
        agreement(view(scene(0), 0), np.zeros((2, 3, DIM), np.float32), PLACES)


def test_windows_are_placed_by_their_middle():
    assert windows(2, 3, 2).tolist() == [[0.5, 0.5], [1.5, 0.5]]
    assert len(windows(ROWS, COLUMNS, 1)) == ROWS * COLUMNS
