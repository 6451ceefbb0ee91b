"""Coverage of a small street plan whose gaps are known."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.field.coverage import SECTORS, coverage
from covis.images import ImageSet
from covis.poses import UNSCALED, Poses


def street(headings=(0.0, 90.0, 180.0, 270.0), frame=""):
    """Photos at each cell of a 5 × 5 block of 10 m, but the middle one."""
    cells = [(x, y) for x in range(5) for y in range(5) if (x, y) != (2, 2)]
    xy = np.array([(10 * x + 5, 10 * y + 5) for x, y in cells for _ in headings], float)
    return ImageSet.of(".", [f"{i}.jpg" for i in range(len(xy))], Poses(xy, np.tile(headings, len(cells)), frame=frame))


def test_the_gap_is_found_and_asked_for_first():
    found = coverage(street(), 10.0)
    assert (found.photos > 0).sum() == 24
    first = found.next_places(1)[0]
    assert found.corner[first].tolist() == [20.0, 20.0]
    assert found.neighbours[first] == 8
    covered = int(np.flatnonzero(found.photos > 0)[0])
    assert found.missing_headings(covered) == ["NE", "SE", "SW", "NW"]
    assert found.missing[covered] == 4
    told = found.summary(3)
    assert told["cells_with_photos"] == 24
    assert told["photograph_next"][0]["look"] == " ".join(SECTORS)


def test_failures_come_before_gaps():
    found = coverage(street(), 10.0, failures=np.array([[45.0, 45.0], [46.0, 44.0], [np.nan, np.nan]]))
    first = found.next_places(1)[0]
    assert found.corner[first].tolist() == [40.0, 40.0]
    assert found.failures[first] == 2


def test_unknown_headings_are_not_called_missing():
    found = coverage(street((np.nan,)), 10.0)
    assert (found.missing[found.photos > 0] == 0).all()


def test_cells_are_polygons_on_earth():
    frame = "+proj=tmerc +lat_0=52.5 +lon_0=13.4 +k=1 +x_0=0 +y_0=0 +datum=WGS84 +units=m"
    cell = coverage(street(frame=frame), 10.0).features()[0]
    ring = np.array(cell["geometry"]["coordinates"][0])
    assert ring.shape == (5, 2)
    np.testing.assert_array_equal(ring[0], ring[-1])
    assert abs(ring[0, 1] - 52.5) < 0.001
    assert (coverage(street(frame=frame), 10.0).summary()["photograph_next"][0]["lat"]) == pytest.approx(
        52.5002, abs=1e-4
    )


def test_what_cannot_be_is_told():
    with pytest.raises(InputError, match="--cell 0"):
        coverage(street(), 0.0)
    with pytest.raises(InputError, match="scale of these poses is unknown"):
        coverage(street(frame=UNSCALED))
    with pytest.raises(InputError, match="larger --cell"):
        coverage(ImageSet.of(".", ["a", "b"], Poses(np.array([[0.0, 0.0], [1e6, 1e6]]), np.zeros(2))), 1.0)
