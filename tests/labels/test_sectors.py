"""The exact kernel: against quadrature on every degenerate family, and its building blocks against numpy."""

import math

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from sector_families import families, largest_error
from sector_oracle import shared_area

from covis.labels import fov_similarity
from covis.labels.sectors import minus_sine, sine_cosine, upper_angle, wrapped

FAMILIES = list(families(8, seed=11))


@pytest.mark.parametrize("family", FAMILIES, ids=[f.name for f in FAMILIES])
def test_equals_quadrature(family):
    assert largest_error(family) < 1e-10


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
def _upper_angle(x, h):
    return upper_angle(x, h)


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
@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_angle_of_a_point_in_the_upper_half_plane(x, h):
    assert _upper_angle(x, h) == pytest.approx(np.arctan2(h, x), abs=5e-16, rel=5e-16)


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
