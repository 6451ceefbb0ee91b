"""Places all over the world in one plane, without a seam at the antimeridian or the poles."""

import numpy as np
import pytest

from covis.geotagging.regions import Regions


def cluster(rng, lat, lon, count=20, spread=0.005):
    return lat + rng.normal(0, spread, count), (lon + rng.normal(0, spread, count) + 180) % 360 - 180


@pytest.fixture
def world():
    rng = np.random.default_rng(0)
    parts = [cluster(rng, lat, lon) for lat, lon in ((48.1, 11.6), (37.8, -122.4), (-17.0, 180.0), (-33.9, 151.2))]
    parts.append((89.99 + rng.normal(0, 0.002, 20), rng.uniform(-180, 180, 20)))
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def test_each_cluster_is_a_region_and_places_come_back(world):
    regions = Regions()
    regions.extend(*world)
    assert len(regions) == 5
    assert [len(set(part)) for part in regions.of(*world).reshape(5, 20)] == [1] * 5
    back = regions.to_earth(regions.to_plane(*world))
    east = (back[:, 1] - world[1] + 180) % 360 - 180
    assert np.abs(back[:, 0] - world[0]).max() < 1e-9
    assert np.abs(east * np.cos(np.radians(world[0]))).max() < 1e-9


def test_metres_of_the_plane_are_those_on_the_ground(world):
    geod = pytest.importorskip("pyproj").Geod(ellps="WGS84")
    regions = Regions()
    regions.extend(*world)
    xy = regions.to_plane(*world)
    for start in range(0, 100, 20):
        true = geod.inv(world[1][start], world[0][start], world[1][start + 1], world[0][start + 1])[2]
        assert np.hypot(*(xy[start] - xy[start + 1])) == pytest.approx(true, rel=1e-4)
    apart = np.linalg.norm(xy[::20, None] - xy[None, ::20], axis=2) + 1e9 * np.eye(5)
    assert apart.min() > 1e6


def test_regions_keep_their_place_when_photos_come(world):
    regions = Regions()
    regions.extend(world[0][:40], world[1][:40])
    before = regions.to_plane(world[0][:40], world[1][:40])
    regions.extend(*world)
    again = Regions(regions.centres)
    assert (again.to_plane(world[0][:40], world[1][:40]) == before).all()


def test_a_long_journey_is_covered_by_several_regions():
    lon = np.linspace(-120, -75, 200)
    regions = Regions()
    regions.extend(np.full(200, 40.0), lon)
    assert (regions.of(np.full(200, 40.0), lon) >= 0).all()
    assert 2 < len(regions) < 12
    assert regions.of([0.0], [0.0]).tolist() == [-1]
