"""Where a photo was taken by the photos around it in time, by its own camera's clock and by those of others.

Clocks are compared by photos of one place: the most frequent difference between two cameras is that of their clocks, if
it stands out. How much a neighbour in time says is learned from the library's own photos, each hidden in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from covis.core.arrays import Floats, Ids
from covis.geotagging.library import LibraryPhoto
from covis.maps.evidence import Falling

RIGHT_M = 100.0
"""A position this near to the true one is right."""
_LONGEST_S = 2 * 3600.0
"""Neighbours further away in time say nothing."""
_WALK_M_S = 0.7
_SAME_PLACE_M = 30.0
_WINDOW_S = 120.0
"""Clock differences of photos taken together spread over this, since they are not taken at the same second."""
_FEWEST = 4
"""Photos that must agree on the difference of two clocks."""
_MOST_PAIRS = 2000
_AROUND_S = 2 * 86400.0
"""A clock is compared by photos of these days first: it may have been set in between, or carried to another zone."""
_SAMPLES = 3000
_ZONES_S = 14.5 * 3600
"""Clocks differ by a zone and some minutes; only those that were never set differ by more."""
_HIDDEN_S = (0.0, 120.0, 600.0)
"""Photos nearer in time are hidden with the photo asked, so that longer gaps are seen too."""
_HIGHEST = 0.97
_USUAL = Falling((0.0, 60.0, 150.0, 400.0, 1500.0), (0.95, 0.92, 0.6, 0.3, 0.05))
"""Share of right positions by metres of doubt, until a library has photos enough of its own."""
_ENOUGH = 60


class TimeGuess(NamedTuple):
    """A position by the neighbours in time."""

    xy: tuple[float, float]
    """In the library's plane."""
    doubt_m: float
    between: bool
    """Whether there is a neighbour on both sides."""
    probability: float
    neighbours: tuple[tuple[int, float], ...]
    """Photos, and how many seconds later (or, negative, earlier) they were taken."""


class _Track(NamedTuple):
    """The photos of one clock that have a position, in order."""

    photo: Ids
    time: Floats
    xy: Floats


class Clocks:
    """The clocks of a library's cameras and the positions along them."""

    def __init__(self, photos: Sequence[LibraryPhoto], known: Sequence[int], xy: Floats) -> None:
        """photos: all of the library; known: those with a position in the plane, xy (K, 2)."""
        self.clock, self.time = _clocks(photos)
        ids, names = np.asarray(known, np.int64), np.array([self.clock[i] for i in known], str)
        self._tracks: dict[str, _Track] = {}
        for name in sorted({*names.tolist()} - {""}):
            at = np.flatnonzero(names == name)
            at = at[np.argsort(self.time[ids[at]], kind="stable")]
            self._tracks[name] = _Track(ids[at], self.time[ids[at]], xy[at])
        self._differences: dict[tuple[str, str], Floats] = defaultdict(lambda: np.zeros((0, 2)))
        self._ahead: dict[tuple[str, str, int], float | None] = {}
        self._compare_positions()
        self._chances = self._learn()

    def compare(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Takes note of pairs of photos that show one place, which may have been taken together."""
        self._ahead.clear()
        rows = defaultdict(list)
        for a, b in pairs:
            clocks = self.clock[a], self.clock[b]
            if "" not in clocks and clocks[0] != clocks[1]:
                rows[clocks].append((self.time[a], self.time[a] - self.time[b]))
        for clocks, found in rows.items():
            self._note(clocks, np.array(found))

    def _note(self, clocks: tuple[str, str], rows: Floats) -> None:
        rows = np.concatenate([self._differences[clocks], rows])
        self._differences[clocks] = rows[np.argsort(rows[:, 0], kind="stable")]

    def _compare_positions(self) -> None:
        from scipy.spatial import cKDTree

        large = sorted(self._tracks, key=lambda name: -len(self._tracks[name].photo))[:12]
        trees = {name: cKDTree(self._tracks[name].xy) for name in large}
        for a, b in ((a, b) for a in large for b in large if a != b):
            near, at = trees[b].query(self._tracks[a].xy, k=16, distance_upper_bound=_SAME_PLACE_M)
            i, j = np.nonzero(np.isfinite(near))
            time = self._tracks[a].time[i]
            self._note((a, b), np.column_stack([time, time - self._tracks[b].time[at[i, j]]]))

    def difference(self, a: str, b: str, time: float) -> float | None:
        """Seconds by which clock a is ahead of clock b around a time of a; None where that cannot be told."""
        if a == b:
            return 0.0
        key = a, b, round(time / 86400)
        if key not in self._ahead:
            rows = self._differences[a, b]
            zones = rows[np.abs(rows[:, 1]) <= _ZONES_S]
            around = (part[np.abs(part[:, 0] - time) <= _AROUND_S] for part in (zones, rows))
            found = (_outstanding(part) for part in (*around, zones, rows))
            self._ahead[key] = next((seconds for seconds in found if seconds is not None), None)
        return self._ahead[key]

    def guess(self, i: int) -> TimeGuess | None:
        """Where photo i was taken, by its neighbours in time; None where it has none near enough."""
        if not self.clock[i]:
            return None
        time, around = float(self.time[i]), []
        for name, track in self._tracks.items():
            ahead = self.difference(self.clock[i], name, time)
            if ahead is not None:
                around += _around(track, time - ahead, 0.0, i)
        guess = _between(around)
        if guess is None:
            return None
        chance = float(self._chances[guess.between](np.array([guess.doubt_m]))[0])
        return guess._replace(probability=min(chance, _HIGHEST))

    def _learn(self) -> dict[bool, Falling]:
        """By whether there are neighbours on both sides: share of positions that are right, by metres of doubt."""
        rows: dict[bool, list[tuple[float, bool]]] = {True: [], False: []}
        step = max(1, sum(len(track.photo) for track in self._tracks.values()) // _SAMPLES)
        hidden = (
            (track, at, s)
            for track in self._tracks.values()
            for at in range(0, len(track.photo), step)
            for s in _HIDDEN_S
        )
        for track, at, hidden_s in hidden:
            around = _around(track, float(track.time[at]), hidden_s, int(track.photo[at]))
            for some in (around, around[:1], around[-1:]) if len(around) > 1 else (around,):
                guess = _between(some)
                if guess is not None:
                    right = float(np.hypot(*(np.array(guess.xy) - track.xy[at]))) <= RIGHT_M
                    rows[guess.between].append((guess.doubt_m, right))
        fitted = {}
        for between, seen in rows.items():
            doubt, right_ones = np.array(seen, np.float64).reshape(-1, 2).T
            fitted[between] = Falling.fit(doubt, right_ones) if len(doubt) >= _ENOUGH else _USUAL
        return fitted


def _clocks(photos: Sequence[LibraryPhoto]) -> tuple[list[str], Floats]:
    """The clock of each photo (empty: none) and its time by it.

    A camera that states its zone in some photos keeps it for those of the same day that do not.
    """
    stated = defaultdict(list)
    for p in photos:
        if p.camera and p.utc_s is not None and p.local_s is not None:
            stated[p.camera].append((p.local_s, p.utc_s - p.local_s))
    shifts = {camera: np.array(sorted(rows)) for camera, rows in stated.items()}
    clock, time = [""] * len(photos), np.full(len(photos), np.nan)
    for i, p in enumerate(photos):
        if not p.camera or (p.utc_s is None and p.local_s is None):
            continue
        seconds, rows = p.utc_s, shifts.get(p.camera)
        if seconds is None and rows is not None and p.local_s is not None:
            local, shift = rows[np.abs(rows[:, 0] - p.local_s).argmin()]
            seconds = p.local_s + float(shift) if abs(local - p.local_s) < 86400 else None
        clock[i] = f"{p.camera} {'UTC' if seconds is not None else 'local time'}"
        time[i] = p.local_s if seconds is None else seconds
    return clock, time


def _outstanding(rows: Floats) -> float | None:
    """The most frequent difference (column 1) of photos taken at different times (column 0), if no other comes near it."""
    if len(rows) < _FEWEST:
        return None
    rows = rows[:: -(-len(rows) // _MOST_PAIRS)]
    time, difference = rows[np.argsort(rows[:, 1], kind="stable")].T
    last = np.searchsorted(difference, difference + _WINDOW_S, side="right")
    order = np.argsort(time, kind="stable")
    before = np.full(len(time), -1)  # where the same time stands before
    before[order[1:]] = np.where(np.diff(time[order]) == 0, order[:-1], -1)
    counts = np.array([np.count_nonzero(before[i:stop] < i) for i, stop in enumerate(last.tolist())])
    best = int(np.argmax(counts))
    others = counts[np.abs(difference - difference[best]) > 2 * _WINDOW_S]
    if counts[best] < max(_FEWEST, 2 * max(others, default=0)):
        return None
    return float(np.median(difference[best : last[best]]))


class _Neighbour(NamedTuple):
    photo: int
    later_s: float
    x: float
    y: float


def _around(track: _Track, time: float, hidden_s: float, photo: int) -> list[_Neighbour]:
    """The last photo before a time and the first after it, further away than `hidden_s`, within reach."""
    before = int(np.searchsorted(track.time, time - hidden_s, side="right")) - 1
    after = int(np.searchsorted(track.time, time + hidden_s, side="left"))
    while before >= 0 and track.photo[before] == photo:
        before -= 1
    while after < len(track.photo) and (track.photo[after] == photo or after == before):
        after += 1
    inside = [at for at in (before, after) if 0 <= at < len(track.photo) and abs(track.time[at] - time) <= _LONGEST_S]
    return [_Neighbour(int(track.photo[at]), float(track.time[at] - time), *track.xy[at].tolist()) for at in inside]


def _between(neighbours: Sequence[_Neighbour]) -> TimeGuess | None:
    """The guess by the nearest neighbour on each side, its probability still to be told."""
    earlier = max((n for n in neighbours if n.later_s <= 0), key=lambda n: n.later_s, default=None)
    later = min((n for n in neighbours if n.later_s > 0), key=lambda n: n.later_s, default=None)
    if earlier is not None and later is not None:
        share = -earlier.later_s / max(later.later_s - earlier.later_s, 1e-9)
        gap_m = float(np.hypot(later.x - earlier.x, later.y - earlier.y))
        if gap_m <= 50_000:
            xy = earlier.x + share * (later.x - earlier.x), earlier.y + share * (later.y - earlier.y)
            doubt_m = gap_m * min(share, 1 - share) + _WALK_M_S * min(-earlier.later_s, later.later_s)
            return TimeGuess(xy, doubt_m, True, 0.0, (earlier[:2], later[:2]))
    one = min((n for n in (earlier, later) if n is not None), key=lambda n: abs(n.later_s), default=None)
    return None if one is None else TimeGuess((one.x, one.y), 2 * _WALK_M_S * abs(one.later_s), False, 0.0, (one[:2],))
