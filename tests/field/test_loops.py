"""Loop closures on rounds whose revisits are known."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.field.loops import (
    HEADER,
    LoopClosure,
    lead_up_share,
    line,
    loop_closures,
    probability,
)  # fmt: skip


def places(n, dim=64, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def seen(rows, noise, seed=1):
    noisy = rows + noise * np.random.default_rng(seed).normal(size=rows.shape).astype(np.float32)
    return noisy / np.linalg.norm(noisy, axis=1, keepdims=True)


@pytest.mark.parametrize("back", [False, True])
def test_a_second_round_closes_loops_either_way(back):
    first = places(60)
    second = seen(first[::-1] if back else first, 0.05)
    rows = np.concatenate([first, places(40, seed=5), second])
    found = list(loop_closures(rows, np.arange(160.0)))
    true = {100 + k: (59 - k if back else k) for k in range(60)}
    assert len(found) >= 50
    assert all(true[loop.query] == loop.match for loop in found)


def test_one_alike_image_alone_is_no_loop():
    rows = places(120)
    rows[100] = rows[10]
    assert not list(loop_closures(rows, np.arange(120.0)))


def test_neighbours_in_time_are_no_loops():
    rows = seen(np.repeat(places(8), 5, axis=0), 0.02)
    assert not list(loop_closures(rows, np.arange(40.0), gap_s=50))
    assert list(loop_closures(np.concatenate([rows, rows]), np.arange(80.0), gap_s=35))


def test_a_clock_that_jumps_back_is_refused():
    with pytest.raises(InputError, match="backwards at image 2"):
        list(loop_closures(places(3), np.array([0.0, 2.0, 1.0])))


def test_agreement_allows_other_speeds():
    assert lead_up_share(50, [np.array([46]), np.array([48])]) == 1.0
    assert lead_up_share(50, [np.array([50]), np.array([50])]) == 1.0
    assert lead_up_share(50, [np.array([9]), np.array([49])]) == 0.5


def aliased_walk(seed):
    """Two rounds of 150 places, the second through noise; some corners look much like others."""
    first = places(150, seed=seed)
    for start in range(0, 150, 50):
        there = (start + 90) % 150
        first[start + 5 : start + 9] = seen(first[there : there + 4], 0.2, seed + start)
    other = places(60, seed=seed + 1)
    order = np.concatenate([np.arange(150), np.full(60, -1), np.arange(150)])
    rows = np.concatenate([seen(first, 0.03, seed + 2), other, seen(first, 0.14, seed + 3)])
    return rows, order


def test_a_stream_says_how_likely_each_loop_is():
    """On walks whose loops are known: what it calls likely is right, also without any position; a threshold drops the rest."""
    likely, unlikely = [], []
    for seed in (10, 20, 30):
        rows, order = aliased_walk(seed)
        for loop in loop_closures(rows, np.arange(float(len(rows))), least_agreement=0.4):
            right = order[loop.query] >= 0 and abs(order[loop.query] - order[loop.match]) <= 1
            (likely if probability(loop) >= 0.9 else unlikely).append(right)
    assert len(likely) > 150
    assert np.mean(likely) >= 0.9
    assert np.mean(unlikely) < np.mean(likely)
    assert probability(LoopClosure(1, 0, 0.5, 1.0, 5.0)) > 0.99
    assert probability(LoopClosure(1, 0, 0.5, 0.2, 2.5)) < 0.2
    text = line(LoopClosure(3, 1, 0.5, 1.0, 5.0), ("a.jpg", "b.jpg"), (3.0, 1.0), 0.9)
    assert len(text.split()) == len(HEADER.split()) - 1
