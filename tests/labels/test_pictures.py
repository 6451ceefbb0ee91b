"""What pictures are drawn from, and what they say."""

import numpy as np
import pytest
from label_sets import all_pairs, image_set, random_set
from rooms import cameras, room

from covis.core.errors import InputError
from covis.labels import FovOverlap, SurfaceOverlap
from covis.labels.clouds import PointCloud
from covis.report.labels import near_pairs, picture_map, picture_pair, sector_outline


def test_near_pairs_are_all_pairs_within_reach_with_their_zeros():
    queries, database = random_set(30, 200, seed=1), random_set(40, 200, seed=2)
    graph = FovOverlap()(queries, database)
    apart, _, psi = near_pairs(graph, queries, database, 80.0)
    i, j = all_pairs(queries, database)
    distance = np.hypot(*(queries.poses.xy[i] - database.poses.xy[j]).T)
    near = distance <= 80
    np.testing.assert_allclose(np.sort(apart), np.sort(distance[near]))
    assert (psi == 0).any()
    assert psi.sum() == pytest.approx(graph.lookup(i[near], j[near]).sum(), rel=1e-5)
    one = FovOverlap()(queries, queries)
    apart, _, _ = near_pairs(one, queries, queries, None)
    assert apart.min() > 0


def test_an_empty_graph_has_no_picture():
    images = image_set([[0, 0], [9999, 0]], [0, 0])
    with pytest.raises(InputError, match="nothing to draw"):
        near_pairs(FovOverlap()(images, images), images, images, None)


def test_outlines_have_the_area_of_their_sector():
    for heading, fov, area in ((30.0, 90.0, np.pi / 4), (30.0, 360.0, np.pi), (np.nan, 90.0, np.pi)):
        x, y = sector_outline(np.array([3.0, 4.0]), heading, 1.0, fov).T
        assert abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2 == pytest.approx(area, rel=1e-3)


def test_titles_say_the_measured_figures():
    images = image_set([[0, 0], [25, 0], [25, 0]], [0, 0, np.nan])
    assert "overlap 0.450: 25.0 m and 0° apart" in picture_pair(images, 0, images, 1).axes[0].get_title()
    assert "unknown heading" in picture_pair(images, 0, images, 2).axes[0].get_title()
    faced = image_set([[0, 0], [0, 63]], [0, 180])
    assert "overlap 0.819" in picture_pair(faced, 0, faced, 1).axes[0].get_title()
    assert "facing weighed 0.000" in picture_pair(faced, 0, faced, 1, facing=True).axes[0].get_title()
    graph = FovOverlap()(images.subset([0]), images)
    assert picture_map(graph, images.subset([0])).axes[0].get_title().startswith("1 queries, 0 without")


def test_estimates_are_near_the_truth_where_images_lie_evenly():
    queries, database = random_set(3000, 2000, seed=1), random_set(3000, 2000, seed=2)
    expected, graph = FovOverlap().estimate(queries, database), FovOverlap()(queries, database)
    assert expected.pairs == pytest.approx(graph.pairs, rel=0.2)
    assert 0 < expected.seconds < 60
    few = queries.subset(np.arange(5))
    assert FovOverlap().estimate(few, database).pairs == FovOverlap()(few, database).pairs
    assert FovOverlap().estimate(few, few).pairs == FovOverlap()(few, few).pairs
    assert FovOverlap().estimate(queries.subset(np.arange(0)), database).pairs == 0


@pytest.mark.parametrize("within_group", [False, True])
def test_estimates_of_surfaces_count_images_and_pairs(within_group):
    queries, database = (
        cameras(150, seed=1, group=["a", "b", "c"] * 50),
        cameras(90, seed=2, group=["a", "b", "c"] * 30),
    )
    rule = SurfaceOverlap(PointCloud(room(3000)), within_group=within_group)
    expected, graph = rule.estimate(queries, database), rule(queries, database)
    assert expected.pairs == pytest.approx(graph.pairs, rel=0.15)
    assert 0 < expected.seconds < 60
    assert expected.megabytes == pytest.approx(8e-6 * expected.pairs, rel=1e-3)
    small = rule.estimate(queries, database, quantised=True)
    assert small.megabytes == pytest.approx(5e-6 * small.pairs, rel=1e-3)
    assert rule.estimate(queries, database.subset(np.arange(0))).pairs == 0
