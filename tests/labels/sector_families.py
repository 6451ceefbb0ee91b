"""Families of sector pairs on which a kernel may stumble, and the error of ψ over one of them."""

from typing import NamedTuple

import numpy as np
from sector_oracle import shared_area, shared_areas

from covis.labels import fov_similarity

ROUND = (1, 10, 15, 22.5, 30, 45, 60, 75, 90, 100, 120, 135, 150, 179, 180, 181, 200, 225, 240, 270, 300, 315, 345, 360)
"""Openings in degrees that make edges of sectors at round headings parallel or square to each other."""


class Family(NamedTuple):
    """Aligned sector pairs (N,): apex, heading in degrees, radius, opening in degrees; twice."""

    name: str
    xy_a: np.ndarray
    heading_a: np.ndarray
    radius_a: np.ndarray
    fov_a: np.ndarray
    xy_b: np.ndarray
    heading_b: np.ndarray
    radius_b: np.ndarray
    fov_b: np.ndarray

    def areas(self):
        """Areas (N,) of the smaller sectors of the pairs."""
        return np.minimum(self.radius_a**2 * np.radians(self.fov_a) / 2, self.radius_b**2 * np.radians(self.fov_b) / 2)

    def widths(self):
        """r θ (N,) of the narrower sectors, as a share of the larger radius."""
        width = np.minimum(self.radius_a * np.radians(self.fov_a), self.radius_b * np.radians(self.fov_b))
        return width / np.maximum(self.radius_a, self.radius_b)


def errors(family, doubt=1e-11):
    """Errors (N,) of ψ (÷ the smaller sector), the larger of both orders of the pair.

    Against Green's theorem; where the difference is above `doubt`, quadrature decides, which is slower and exact.
    """
    _, *sides = family
    (xa, ha, ra, fa), (xb, hb, rb, fb) = sides[:4], sides[4:]
    there = fov_similarity(xa, ha, xb, hb, radius_m=(ra, rb), fov_deg=(fa, fb))
    back = fov_similarity(xb, hb, xa, ha, radius_m=(rb, ra), fov_deg=(fb, fa))
    expected = shared_areas(*sides) / family.areas()
    for k in np.flatnonzero(~(np.maximum(np.abs(there - expected), np.abs(back - expected)) <= doubt)):
        expected[k] = shared_area(*(side[k] for side in sides)) / family.areas()[k]
    return np.maximum(np.abs(there - expected), np.abs(back - expected))


def largest_error(family):
    """The largest error of ψ (÷ the smaller sector) in both orders of the pair."""
    return float(errors(family).max())


def families(n, seed):
    """Every family, n random members each."""
    draw = _Draw(n, seed)
    yield from _plain(draw)
    yield from _aligned(draw)
    yield from _tangent(draw)
    yield from crossing(n, seed)
    for power in range(-15, -2):
        yield from _nearly(draw, 10.0**power)


def crossing(n, seed):
    """Pairs whose corners, edges, rims and tangents fall on each other's, exactly and nearly; any θ and r."""
    draw = _Draw(n, seed)
    yield from _square(draw)
    yield from _on_a_lattice(draw)
    for name in ("apex", "corner", "edge", "rim", "tangent", "lattice", "anywhere"):
        yield _laid(draw, name, nearly=False)
        yield _laid(draw, name, nearly=True)


def thin(n, seed):
    """The same with openings down to 0.001°, radii up to 1 : 300, and far from the origin."""
    draw = _Draw(n, seed)
    for name in ("apex", "corner", "edge", "rim", "tangent"):
        base = _laid(draw, name, nearly=True)
        away = 5e6 * draw.square(1) * draw.choice(0, 1)[:, None]
        yield base._replace(
            name=f"thin, {base.name}",
            xy_a=base.xy_a + away,
            xy_b=base.xy_b + away,
            radius_b=base.radius_b * draw.one_of(np.ones(n), 10 ** draw.uniform(-2.5, 2.5)),
            fov_b=draw.one_of(base.fov_b, 10 ** draw.uniform(-3, 0)),
        )


class _Draw:
    def __init__(self, n, seed):
        self.n, self.rng = n, np.random.default_rng(seed)

    def angle(self):
        return self.rng.uniform(0, 360, self.n)

    def fov(self):
        return self.rng.uniform(1, 360, self.n)

    def uniform(self, low, high):
        return self.rng.uniform(low, high, self.n)

    def choice(self, *values):
        return self.rng.choice(np.array(values, float), self.n)

    def one_of(self, *arrays):
        """For each member one of several arrays (n,) or (n, 2)."""
        return np.stack(arrays)[self.rng.integers(0, len(arrays), self.n), np.arange(self.n)]

    def round_fov(self):
        """Openings: any, round ones, and nearly 180° or 360°."""
        gap = 10.0 ** -self.rng.integers(1, 14, self.n)
        return self.one_of(self.fov(), self.choice(*ROUND), 360 - gap, 180 + self.choice(-1, 1) * gap)

    def square(self, half):
        return self.rng.uniform(-half, half, (self.n, 2))

    def along(self, heading, length):
        return np.stack([np.sin(np.radians(heading)), np.cos(np.radians(heading))], 1) * np.reshape(length, (-1, 1))

    def family(self, name, heading_a, fov_a, xy_b, heading_b, fov_b, radius_a=1.0, radius_b=1.0, origin=0.0):
        full = [
            np.array(np.broadcast_to(v, self.n), float)
            for v in (heading_a, radius_a, fov_a, heading_b, radius_b, fov_b)
        ]
        return Family(name, np.full((self.n, 2), origin), *full[:3], np.asarray(xy_b) + origin, *full[3:])


def _plain(d):
    yield d.family("equal 90°", d.angle(), 90, d.square(1), d.angle(), 90)
    yield d.family("any r and θ", d.angle(), d.fov(), d.square(2), d.angle(), d.fov(), 1, d.uniform(0.2, 3))
    yield d.family("at 5e6", d.angle(), 90, d.square(50), d.angle(), 90, 50, 50, origin=5e6)
    for fov in (1e-3, 180.0, 180.0000001, 270.0, 359.999999, 360.0):
        yield d.family(f"θ = {fov}", d.angle(), fov, d.square(1), d.angle(), fov, 1, d.uniform(0.5, 2))
    steps = d.rng.integers(-4, 5, (d.n, 2)) * 12.5
    for fov in (90, 180):
        turns = d.rng.integers(0, 8, (2, d.n)) * 45.0
        yield d.family(f"lattice {fov}°", turns[0], fov, steps, turns[1], fov, 50, 50)
    place = d.along(d.angle(), d.uniform(0, 1001))
    yield d.family("r 1:1000", d.angle(), d.fov(), place, d.angle(), d.fov(), 1000, 1)
    place = d.along(d.angle(), 1000 + d.uniform(-1.2, 1.2))
    yield d.family("r 1:1000 at the rim", d.angle(), d.fov(), place, d.angle(), d.fov(), 1000, 1)


def _aligned(d):
    zero, h, fov, other = np.zeros((d.n, 2)), d.angle(), d.fov(), d.fov()
    yield d.family("identical", h, fov, zero, h, fov)
    yield d.family("same apex", h, fov, zero, d.angle(), other)
    yield d.family("same apex, other r", h, fov, zero, d.angle(), other, 1, d.uniform(0.5, 2))
    yield d.family("same axis", h, fov, d.along(h, d.uniform(-2, 2)), h, other)
    yield d.family("opposite", h, fov, d.along(h, d.uniform(0, 2)), h + 180, other)
    edge = h + fov / 2
    yield d.family("collinear edges", h, fov, d.along(edge, d.uniform(-1, 1)), h, fov)
    yield d.family("collinear edges, other side", h, fov, d.along(edge, d.uniform(-1, 1)), edge + other / 2, other)
    yield d.family("collinear edges, opposite", h, fov, d.along(edge, d.uniform(0, 2)), edge + 180 + other / 2, other)


def _tangent(d):
    r = d.uniform(0.1, 0.9)
    yield d.family("tangent outside", d.angle(), d.fov(), d.along(d.angle(), 2.0), d.angle(), d.fov())
    yield d.family("tangent inside", d.angle(), d.fov(), d.along(d.angle(), 1 - r), d.angle(), d.fov(), 1, r)
    h, fov = d.angle(), d.fov()
    touching = d.along(h, 1.0) - d.along(h + 90, d.uniform(0, 1))
    yield d.family("edge tangent to arc", d.angle(), d.fov(), touching, h + 90 - fov / 2, fov)
    for gap in (0.0, 6e-14, 1e-9, 1e-6):
        yield d.family(
            f"edges tangent at an apex on the rim, 180 − {gap}", d.angle(), fov, d.along(h, 1.0), h + 180, 180 - gap
        )
        yield d.family(
            f"edges tangent at an apex on the rim, 360 − {gap}", d.angle(), fov, d.along(h, 1.0), h + 90, 360 - gap
        )
        right = d.rng.integers(0, 4, d.n) * 90.0
        yield d.family(
            f"the same at right angles, 180 − {gap}", d.angle(), fov, d.along(right, 1.0), right + 180, 180 - gap
        )
        yield d.family(
            f"the same at right angles, 360 − {gap}", d.angle(), fov, d.along(right, 1.0), right + 90, 360 - gap
        )


def _nearly(d, gap):
    h, fov, by = d.angle(), d.fov(), d.along(d.angle(), gap)
    yield d.family(f"apexes {gap:.0e} apart", h, 90, by, h + gap * d.uniform(-60, 60), 90)
    yield d.family(f"apexes {gap:.0e} apart, any θ", h, fov, by, h, fov)
    yield d.family(f"apexes {gap:.0e} apart, any r", h, fov, by, h, fov, 1, 1 + gap * d.uniform(-2, 2))
    place = d.along(d.angle(), 0.5 + gap * d.uniform(-1, 1))
    yield d.family(f"{gap:.0e} from tangent inside", d.angle(), d.fov(), place, d.angle(), d.fov(), 1, 0.5)
    touching = d.along(h, 1 + gap * d.uniform(-1, 1)) - d.along(h + 90, d.uniform(0, 1))
    yield d.family(f"edge {gap:.0e} from tangent", d.angle(), d.fov(), touching, h + 90 - fov / 2, fov)


def _square(d):
    """An edge, or the cut of a view over 180°, square to one of the other's, so that their arcs' ends may fall on it."""
    for wide in (False, True):
        h, fov = d.angle(), d.one_of(d.uniform(181, 360) if wide else d.uniform(1, 180), d.choice(180, 360, 270, 90))
        other = d.one_of(d.fov(), d.choice(*ROUND))
        edge = h + d.choice(-0.5, 0, 0.5) * fov
        heading = edge + d.choice(90, -90) + d.choice(-0.5, 0, 0.5) * other
        for radius in (1.0, d.uniform(0.5, 2)):
            name = (
                f"edges square to each other, θ {'>' if wide else '≤'} 180°, {'any' if np.ndim(radius) else 'equal'} r"
            )
            place = d.along(h + d.uniform(-0.5, 0.5) * fov, d.uniform(0, 2))
            yield d.family(name, h, fov, place, heading, other, 1.0, radius)


def _on_a_lattice(d):
    """Positions, radii and headings on lattices: many tangents and triple points at once, exact in binary."""
    for step in (15.0, 22.5, 45.0):
        turn = d.rng.integers(0, 24, (2, d.n)) * step
        place = d.rng.integers(-8, 9, (d.n, 2)) * 12.5
        fov, radius = [d.choice(*ROUND) for _ in range(2)], d.choice(50, 50, 25, 37.5, 62.5, 75, 100)
        yield d.family(f"lattice, headings by {step}°", turn[0], fov[0], place, turn[1], fov[1], 50, radius)
    slope = np.degrees(np.arctan2(*d.rng.integers(-4, 5, (2, d.n))))
    square = slope + d.rng.integers(0, 4, d.n) * 90.0
    place = d.rng.integers(-8, 9, (d.n, 2)) * 12.5
    yield d.family(
        "lattice, headings along its lines", slope, d.choice(*ROUND), place, square, d.choice(*ROUND), 50, 50
    )


def _laid(d, name, nearly):
    """B's apex on a feature of A; its edges, or its axis, at others; its rim through a third, or touching A's."""
    ha, fov_a, n = d.one_of(d.angle(), d.rng.integers(0, 24, d.n) * 15.0), d.round_fov(), d.n
    places = _features(d, ha, fov_a)
    xy = places[name]
    first, second = _directions(d, ha, fov_a, xy), _directions(d, ha, fov_a, xy)
    between = (second - first) % 360
    fov_b = d.one_of(d.round_fov(), fov_a, np.where(between < 0.5, 360, between))
    heading = first + d.choice(-0.5, 0, 0.5, 0.5) * fov_b
    distance, edge = np.hypot(*xy.T), d.along(ha + d.choice(-0.5, 0, 0.5) * fov_a, np.ones(n))
    through = np.hypot(*(d.one_of(*places.values()) - xy).T)
    off = np.abs(xy[:, 0] * edge[:, 1] - xy[:, 1] * edge[:, 0])
    one = np.ones(n)
    radius = d.one_of(
        one, one, through, off, np.abs(distance - 1), distance + 1, np.sqrt(distance**2 + 1), d.uniform(0.1, 3)
    )
    radius = np.where((radius > 0.02) & (radius < 50), radius, 1.0)
    if nearly:
        gap, of = 10 ** d.uniform(-16, -5) * d.choice(-1, 1), d.rng.integers(0, 4, n)
        xy = xy + d.along(d.angle(), np.where(of == 0, gap, 0))
        heading, radius = heading + np.where(of == 1, 60 * gap, 0), radius * (1 + np.where(of == 2, gap, 0))
        fov_b = np.clip(fov_b + np.where(of == 3, 60 * gap, 0), 0.4, 360)
    return d.family(f"apex B on {name} of A{', nearly' * nearly}", ha, fov_a, xy, heading, fov_b, 1.0, radius)


def _features(d, heading, fov):
    """Points (n, 2) where something of a sector of radius 1 at the origin can be met."""
    edge = heading + d.choice(-0.5, 0.5, 0.5, 0) * fov
    rim = d.one_of(d.angle(), heading + d.choice(-0.5, 0, 0.5) * fov, d.rng.integers(0, 8, d.n) * 45.0)
    return {
        "apex": np.zeros((d.n, 2)),
        "corner": d.along(edge, 1.0),
        "edge": d.along(edge, d.one_of(d.uniform(-1.5, 1.5), d.choice(-1, 0.25, 0.5, 0.75, 2, 1e-9))),
        "rim": d.along(rim, 1.0),
        "tangent": d.along(rim, 1.0) + d.along(rim + 90, d.choice(-1, 1, -0.75, 0.75, 0.5, 0.1, 1e-6)),
        "lattice": d.rng.integers(-5, 6, (d.n, 2)) * 0.25,
        "anywhere": d.square(1.5),
    }


def _directions(d, heading, fov, xy):
    """Headings from xy: at a feature of A, along or square to its edges, along tangents, round ones."""
    edge, back = heading + d.choice(-0.5, 0, 0.5) * fov, np.degrees(np.arctan2(*-xy.T))
    target = d.one_of(*_features(d, heading, fov).values()) - xy
    tangent = np.degrees(np.arcsin(1 / np.maximum(1, np.hypot(*xy.T))))
    at = np.degrees(np.arctan2(*target.T))
    square = edge + d.choice(90, -90)
    return d.one_of(
        at, edge, edge + 180, square, back, back - tangent, back + tangent, d.rng.integers(0, 24, d.n) * 15.0
    )
