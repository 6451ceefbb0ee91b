"""Areas against shapely, which knows geometry."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.search import Circle, Polygon

shapely = pytest.importorskip("shapely")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 12))
def test_polygons_equal_shapely(seed, corners):
    """Star-shaped around a centre at UTM size, concave as often as not; points on the line may fall either way."""
    rng = np.random.default_rng(seed)
    angle = np.sort(rng.uniform(0, 2 * np.pi, corners))
    line = np.column_stack([np.cos(angle), np.sin(angle)]) * rng.uniform(5, 100, (corners, 1)) + (5e5, 5e6)
    points = rng.uniform(-110, 110, (200, 2)) + np.array([5e5, 5e6])
    reference = shapely.Polygon(line)
    clear = shapely.distance(reference.exterior, shapely.points(points)) > 1e-6
    inside = Polygon(tuple(map(tuple, line))).contains(points)
    assert (inside == shapely.contains_xy(reference, *points.T))[clear].all()
    left, low, right, high = Polygon(tuple(map(tuple, line))).box
    assert ((points[inside] >= (left, low)) & (points[inside] <= (right, high))).all()


def test_circles_include_their_border_and_leave_out_the_unknown():
    xy = np.array([[3.0, 4.0], [3.0, 4.1], [0.0, 0.0], [np.nan, np.nan]])
    assert Circle(0, 0, 5).contains(xy).tolist() == [True, False, True, False]
    assert Polygon(((-9, -9), (9, -9), (9, 9), (-9, 9))).contains(xy).tolist() == [True, True, True, False]
    assert Circle(1, 2, 3).box == (-2, -1, 4, 5)


@pytest.mark.parametrize(
    "make", [lambda: Circle(0, 0, -1), lambda: Circle(np.nan, 0, 1), lambda: Polygon(((0, 0), (1, 1)))]
)
def test_areas_that_are_none(make):
    with pytest.raises(InputError):
        make()
