"""The compiled part of all-pairs batches: growing neighbourhoods over a graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from covis.compiling import kernel
from covis.sampling.hashing import Int, Key, below
from covis.sampling.kernels import Candidates, pick, pick_zero

_START, _SEED, _GROW = 300, 400, 500
_STUCK = 8
"""Steps in a row that found no new image, after which another place is taken up."""
_STEPS = 64
"""Steps an image, after which a batch stays smaller: the graph has no more images to offer."""


@kernel()
def _add(members: NDArray[np.int64], place: NDArray[np.int64], count: Int, image: Int, where: Int) -> Int:
    """Adds an image to the members unless it is one already; returns their number."""
    for k in range(count):
        if members[k] == image:
            return count
    if count < len(members):
        members[count], place[count] = image, where
        return count + 1
    return count


@kernel()
def _start(
    c: Candidates, key: Key, position: Int, members: NDArray[np.int64], place: NDArray[np.int64]
) -> tuple[Int, Int]:
    """Puts a pair of every band among the members: the anchor's, or another's where it has none.

    The partner without overlap is the first image of place 1. Returns the members' number and how many bands were
    served by another image than the anchor.
    """
    count: Int = 1
    redrawn = 0
    for b in range(c.counts.shape[1]):
        i = members[0]
        if c.counts[i, b] == 0:
            suited = c.band_start[b + 1] - c.band_start[b]
            i = np.int64(c.band_rows[c.band_start[b] + below(key, position, _START + 2 * b, suited)])
            count = _add(members, place, count, i, 0)
            redrawn += 1
        partner, psi = pick(c, i, b, below(key, position, _START + 2 * b + 1, c.counts[i, b]))
        count = _add(members, place, count, partner, 0 if psi > 0 else 1)
    return count, redrawn


@kernel()
def _member_of(members: NDArray[np.int64], place: NDArray[np.int64], count: Int, where: Int, choice: Int) -> Int:
    """A member of a place; any member where it has none."""
    there = 0
    for k in range(count):
        there += place[k] == where
    if there == 0:
        return np.int64(members[choice % count])
    left = choice % there
    for k in range(count):
        if place[k] == where:
            if left == 0:
                return np.int64(members[k])
            left -= 1
    return np.int64(members[0])


@kernel()
def grow(c: Candidates, key: Key, position: Int, places: Int, members: NDArray[np.int64]) -> tuple[Int, Int]:
    """Fills `members`, whose first is the anchor, with images around it and around places apart from it.

    In turn each place adds an image that overlaps with one of its own; where it finds no new one for a while, it goes
    on from an image that does not overlap with the anchor. Returns how many members there are and how many bands had
    no pair at the anchor.
    """
    size, anchor = len(members), members[0]
    place = np.zeros(size, np.int64)
    count, redrawn = _start(c, key, position, members, place)
    t, zeros = c.tables, c.zeros
    for where in range(2, places):
        if zeros[anchor] > 0:
            k = below(key, position, _SEED + where, zeros[anchor])
            count = _add(members, place, count, pick_zero(t, anchor, k), where)
    stuck = 0
    for step in range(_STEPS * size):
        if count == size:
            break
        turn, stream = step % places, _GROW + 3 * step
        before: Int = count
        if stuck < _STUCK:
            member = _member_of(members, place, count, turn, below(key, position, stream, 1 << 30))
            row = t.indptr[member + 1] - t.indptr[member]
            if row > 0:
                at = t.indptr[member] + below(key, position, stream + 1, row)
                count = _add(members, place, count, np.int64(t.indices[at]), turn)
        elif zeros[anchor] > 0:
            k = below(key, position, stream + 2, zeros[anchor])
            count = _add(members, place, count, pick_zero(t, anchor, k), turn)
        stuck = 0 if count > before else (stuck + 1) % (2 * _STUCK)
    return count, redrawn
