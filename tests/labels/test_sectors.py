"""The exact kernel: against quadrature on every degenerate family, and its building blocks against numpy."""

import math

import numpy as np
import pytest
import shapely
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba import njit
from sector_families import ROUND, crossing, errors, families, largest_error, thin
from sector_oracle import shared_area, shared_areas

from covis.labels import fov_similarity
from covis.labels.sectors import minus_sine, sine_cosine, upper_angle, wrapped

FAMILIES = list(families(8, seed=11))
CROSSING = list(crossing(2500, seed=12))


@pytest.mark.parametrize("family", FAMILIES, ids=[f.name for f in FAMILIES])
def test_equals_quadrature(family):
    assert largest_error(family) < 1e-10


@pytest.mark.parametrize("family", CROSSING, ids=[f.name for f in CROSSING])
def test_equals_the_oracles_where_corners_edges_rims_and_tangents_meet(family):
    assert largest_error(family) < 1e-10


@pytest.mark.parametrize("family", list(thin(200, seed=13)), ids=lambda f: f.name)
def test_error_of_thin_sectors_grows_with_one_over_their_width(family):
    assert (errors(family, doubt=0) * family.widths()).max() < 3e-14


@pytest.mark.parametrize("apart", [(37.5, 50.0), (50.0, -37.5), (-62.5, 62.5), (-50.0, -75.0)])
def test_an_arc_ends_where_the_others_edge_passes_nearest(apart):
    """The line misses the circle; what it cuts from the arc is nothing, also where that falls on the arc's end."""
    turns = np.stack(np.meshgrid(*[np.arange(0, 360, 45.0)] * 2), -1).reshape(-1, 2)
    for fov_a, fov_b in ((270, 360), (360, 30), (135, 45), (180, 90), (225, 315)):
        xy = np.tile(apart, (len(turns), 1))
        there = fov_similarity(0 * xy, turns[:, 0], xy, turns[:, 1], radius_m=50, fov_deg=(fov_a, fov_b))
        area = [shared_area((0, 0), a, 50, fov_a, apart, b, 50, fov_b) for a, b in turns]
        smaller = 1250 * np.radians(min(fov_a, fov_b))
        assert there == pytest.approx(np.array(area) / smaller, abs=1e-12)


step = st.integers(-8, 8).map(lambda k: 12.5 * k)
side = st.tuples(
    st.integers(0, 24).map(lambda k: 15.0 * k), st.sampled_from([25.0, 37.5, 50.0, 62.5, 100.0]), st.sampled_from(ROUND)
)


@settings(max_examples=400, deadline=None)
@given(st.tuples(step, step), side, side, st.sampled_from([0.0, 1e-13, 1e-12, 1e-10, 1e-8, 1e-6]), st.integers(0, 4))
def test_equals_quadrature_on_and_near_lattices(xy, a, b, gap, moved):
    nudged = np.array([*xy, *b], float)
    nudged[moved] -= 50 * gap
    xy, b = nudged[:2], nudged[2:]
    psi = fov_similarity([(0, 0)], [a[0]], [xy], [b[0]], radius_m=(a[1], b[1]), fov_deg=(a[2], b[2]))[0]
    smaller = min(r * r * np.radians(f) / 2 for _, r, f in (a, b))
    assert psi == pytest.approx(shared_area((0, 0), *a, xy, *b) / smaller, abs=1e-10)


@pytest.mark.parametrize("gap", [0.0, 5e-324, 1e-310, 1e-200, 1e-160])
def test_apexes_closer_than_a_square_can_say(gap):
    turns = np.arange(0, 360, 15.0)
    near, same = np.full((len(turns), 2), gap), np.zeros((len(turns), 2))
    for fov in (45, 180, 270, 360):
        psi = fov_similarity(same, turns, near, np.full(len(turns), 15.0), radius_m=(50, 40), fov_deg=fov)
        assert psi == pytest.approx(
            fov_similarity(same, turns, same, np.full(len(turns), 15.0), radius_m=(50, 40), fov_deg=fov), abs=1e-13
        )


def test_oracles_agree():
    for family in crossing(12, seed=14):
        one_by_one = [shared_area(*pair) for pair in zip(*family[1:], strict=True)]
        assert np.abs(shared_areas(*family[1:]) - one_by_one).max() / family.areas().min() < 1e-9, family.name


def test_quadrature_itself_equals_polygons():
    rng = np.random.default_rng(3)
    for _ in range(40):
        a, b = rng.uniform(-1, 1, (2, 2))
        heading, radius, fov = rng.uniform(0, 360, 2), rng.uniform(0.5, 2, 2), rng.uniform(5, 355, 2)
        polygons = []
        for xy, h, r, f in zip((a, b), heading, radius, fov, strict=True):
            angle = np.radians(h + f * np.linspace(-0.5, 0.5, 4000))
            polygons.append(shapely.Polygon([xy, *np.stack([xy[0] + r * np.sin(angle), xy[1] + r * np.cos(angle)], 1)]))
        expected = polygons[0].intersection(polygons[1]).area
        assert shared_area(a, heading[0], radius[0], fov[0], b, heading[1], radius[1], fov[1]) == pytest.approx(
            expected, abs=5e-6
        )


@njit
def _upper_angle(x, h, radius):
    return upper_angle(x, h, radius)


@njit
def _sine_cosine(degrees):
    return sine_cosine(degrees)


@njit
def _minus_sine(angle):
    return minus_sine(angle, np.sin(angle))


@njit
def _wrapped(angle):
    return wrapped(angle)


@settings(max_examples=300, deadline=None)
@given(st.floats(-1e9, 1e9, allow_subnormal=False), st.floats(0, 1e9, allow_subnormal=False))
def test_angle_of_a_point_in_the_upper_half_plane(x, h):
    x += 0.0  # −0 becomes 0: the kernel does not know zeros with a sign
    assume(x or h)
    assert _upper_angle(x, h, math.hypot(x, h)) == pytest.approx(np.arctan2(h, x), abs=5e-16, rel=5e-16)


@settings(max_examples=300, deadline=None)
@given(st.floats(-1e4, 1e4))
def test_sine_and_cosine_of_degrees(degrees):
    radians = (
        np.longdouble(degrees) * np.pi / 180 + np.longdouble(degrees) * np.longdouble("1.2246467991473532e-16") / 180
    )
    sine, cosine = _sine_cosine(degrees)
    assert abs(sine - np.sin(radians)) < 4e-16
    assert abs(cosine - np.cos(radians)) < 4e-16


def test_sine_and_cosine_are_exact_at_right_angles():
    for quarter in range(-9, 10):
        sine, cosine = _sine_cosine(90.0 * quarter)
        assert (sine, cosine) == ((0, 1), (1, 0), (0, -1), (-1, 0))[quarter % 4]


@settings(max_examples=300, deadline=None)
@given(st.floats(-6, 6))
def test_angle_minus_its_sine_keeps_its_digits(angle):
    exact = -sum((-1) ** k * np.longdouble(angle) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(1, 25))
    assert _minus_sine(angle) == pytest.approx(float(exact), rel=1e-11)


@settings(max_examples=200, deadline=None)
@given(st.floats(-3 * np.pi, 3 * np.pi))
def test_wrapped_is_the_same_direction(angle):
    assert abs(_wrapped(angle)) <= np.pi + 1e-15
    assert np.cos(_wrapped(angle)) == pytest.approx(np.cos(angle), abs=1e-14)
    assert np.sin(_wrapped(angle)) == pytest.approx(np.sin(angle), abs=1e-14)


coordinate = st.floats(-200, 200)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(coordinate, coordinate), st.floats(0, 360), st.floats(0, 360),
    st.floats(1, 100), st.floats(1, 100), st.floats(1, 360), st.floats(1, 360), st.floats(0, 360), st.floats(0.1, 10),
)  # fmt: skip
def test_similarity_is_symmetric_bounded_and_blind_to_where_and_how_large(b, ha, hb, ra, rb, fa, fb, turn, size):
    def psi(xy, first, second, scale=1.0, swap=False):
        sides = [(np.zeros((1, 2)), [first], ra, fa), (np.array([xy]) * scale, [second], rb, fb)]
        (xa, p, r, f), (xb, q, s, g) = sides[::-1] if swap else sides
        return fov_similarity(xa, p, xb, q, radius_m=(r * scale, s * scale), fov_deg=(f, g))[0]

    value = psi(b, ha, hb)
    c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    turned = (b[0] * c + b[1] * s, b[1] * c - b[0] * s)
    assert 0 <= value <= 1
    assert psi(b, ha, hb, swap=True) == pytest.approx(value, abs=1e-10)
    assert psi(turned, ha + turn, hb + turn) == pytest.approx(value, abs=1e-9)
    assert psi(b, ha, hb, scale=size) == pytest.approx(value, abs=1e-10)
