"""Families of sector pairs on which a kernel may stumble, and the error of ψ over one of them."""

from typing import NamedTuple

import numpy as np
from sector_oracle import shared_area

from covis.labels import fov_similarity


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


def largest_error(family):
    """The largest error of ψ (÷ the smaller sector) against quadrature, in both orders of the pair."""
    _, *sides = family
    area = np.array([shared_area(*pair) for pair in zip(*sides, strict=True)])
    smaller = np.minimum(
        family.radius_a**2 * np.radians(family.fov_a) / 2, family.radius_b**2 * np.radians(family.fov_b) / 2
    )
    (xa, ha, ra, fa), (xb, hb, rb, fb) = sides[:4], sides[4:]
    there = fov_similarity(xa, ha, xb, hb, radius_m=(ra, rb), fov_deg=(fa, fb))
    back = fov_similarity(xb, hb, xa, ha, radius_m=(rb, ra), fov_deg=(fb, fa))
    return float(max(np.abs(there - area / smaller).max(), np.abs(back - area / smaller).max()))


def families(n, seed):
    """Every family, n random members each."""
    draw = _Draw(n, seed)
    yield from _plain(draw)
    yield from _aligned(draw)
    yield from _tangent(draw)
    for power in range(-15, -2):
        yield from _nearly(draw, 10.0**power)


class _Draw:
    def __init__(self, n, seed):
        self.n, self.rng = n, np.random.default_rng(seed)

    def angle(self):
        return self.rng.uniform(0, 360, self.n)

    def fov(self):
        return self.rng.uniform(1, 360, self.n)

    def uniform(self, low, high):
        return self.rng.uniform(low, high, self.n)

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
