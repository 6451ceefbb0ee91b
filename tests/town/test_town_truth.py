"""Depth, surfaces and co-visibility against the geometry they come from."""

import numpy as np
import pytest

from covis import town
from covis.poses import angle_between
from covis.town.config import TownConfig
from covis.town.dataset import fixed
from covis.town.render import measure
from covis.town.view import View, intrinsics

CONFIG = TownConfig.small()


@pytest.fixture(scope="module")
def test_split(hamlet):
    return town.load(hamlet, "test")


def test_the_picture_of_an_image_is_that_of_its_frame(test_split):
    queries = test_split.queries.subset([len(test_split.queries) - 1, 0])
    condition = bytes(queries.columns["condition"][0]).decode()
    view, frame = View.of(CONFIG, "test", condition), int(queries.columns["frame"][0])
    np.testing.assert_array_equal(town.picture(queries, 0, (20, 15)), view.image(frame, (20, 15)))


def test_a_picture_is_the_file_that_was_written(test_split):
    from PIL import Image

    pixels = np.asarray(Image.open(test_split.database.path(5)), int)
    assert np.abs(pixels - town.picture(test_split.database, 5)).mean() < 3  # JPEG


def test_points_lie_on_the_ground_or_above_one_a_cube():
    points = town.point_cloud("test", CONFIG, spacing_m=2.0)
    on_ground = np.abs(points[:, 2]) < 1e-9
    assert on_ground.sum() > 100
    assert (points[~on_ground, 2] > 0).sum() > 100
    assert points[:, 2].min() > -1e-9
    assert len(np.unique(np.floor(points / 2.0), axis=0)) == len(points)


def test_an_image_shares_all_with_itself_and_nothing_with_what_it_turns_its_back_on(test_split):
    database = test_split.database
    assert town.covisibility(database, database, [[3, 3]], size=(16, 12)) == pytest.approx(1.0)
    step = database.poses.xy[None] - database.poses.xy[:, None]
    forward = np.column_stack([np.sin(np.radians(database.poses.heading)), np.cos(np.radians(database.poses.heading))])
    behind = (step * forward[:, None]).sum(-1) < -1.0
    away = angle_between(database.poses.heading[:, None], database.poses.heading[None]) > 150
    apart = np.argwhere(behind & behind.T & away)
    assert len(apart)
    assert (town.covisibility(database, database, apart[:5], size=(16, 12)) == 0).all()


def test_covisibility_is_the_same_from_either_side_and_agrees_with_a_depth_buffer(test_split):
    queries, database = test_split
    distance = np.linalg.norm(queries.poses.xy[:, None] - database.poses.xy[None], axis=-1)
    alike = angle_between(queries.poses.heading[:, None], database.poses.heading[None]) < 60
    pairs = np.argwhere((distance < 25) & alike)[::7]
    shares = town.covisibility(queries, database, pairs)
    np.testing.assert_array_equal(shares, town.covisibility(database, queries, pairs[:, ::-1])[:, ::-1])
    assert shares.min() >= 0
    assert shares.max() <= 1
    assert shares.max() > 0.3
    buffered = np.array([share_by_depth_buffer(queries, i, database, j) for i, j in pairs])
    assert np.abs(buffered - shares[:, 0]).max() < 0.12
    assert np.abs(buffered - shares[:, 0]).mean() < 0.03


def share_by_depth_buffer(a, i, b, j):
    """Share of a's fixed surface seen in b, from a's depth and a fine depth image of b."""
    view = View.of(CONFIG, "test", bytes(a.columns["condition"][i]).decode())
    depth, items, _ = measure(view.shot(int(a.columns["frame"][i]), (32, 24)))
    fx, fy, cx, cy, _, _ = intrinsics(CONFIG, (32, 24))
    row, column = np.nonzero(fixed(view.scene, items))
    z = depth[row, column]
    world = np.column_stack([(column + 0.5 - cx) / fx * z, (row + 0.5 - cy) / fy * z, z]) @ a.poses.rotation[i].T
    world += [*a.poses.xy[i], a.poses.z[i]]
    x, y, z = ((world - [*b.poses.xy[j], b.poses.z[j]]) @ b.poses.rotation[j]).T
    fx, fy, cx, cy, width, height = intrinsics(CONFIG, (512, 384))
    ahead = z > 0.1
    u, v = fx * x[ahead] / z[ahead] + cx, fy * y[ahead] / z[ahead] + cy
    inside = (u >= 0) & (v >= 0) & (u < width) & (v < height)
    other = View.of(CONFIG, "test", bytes(b.columns["condition"][j]).decode())
    buffer = measure(other.shot(int(b.columns["frame"][j]), (512, 384)))[0]
    seen = z[ahead][inside] < buffer[v[inside].astype(int), u[inside].astype(int)] * 1.05 + 0.3
    return seen.sum() / len(z)


def test_true_labels_are_the_mean_of_both_shares(test_split):
    queries, database = test_split.queries.subset(np.arange(8)), test_split.database
    graph = town.TrueCovisibility(radius_m=40.0, size=(12, 9))(queries, database)
    assert graph.shape == (8, len(database))
    assert graph.facts["measure"] == "true-covisibility"
    i, j = graph.rows, graph.indices
    shares = town.covisibility(queries, database, np.column_stack([i, j]), size=(12, 9))
    np.testing.assert_allclose(graph.psi, shares.mean(axis=1), rtol=1e-6)
    far = np.linalg.norm(queries.poses.xy[i] - database.poses.xy[j], axis=1)
    assert far.max() <= 40.0


def test_true_labels_of_one_set_are_symmetric_without_a_diagonal(test_split):
    some = test_split.database.subset(np.arange(12))
    graph = town.TrueCovisibility(size=(12, 9))(some, some)
    dense = graph.to_scipy().toarray()
    assert graph.pairs
    assert graph.facts["one_set"]
    np.testing.assert_array_equal(dense, dense.T)
    assert (np.diag(dense) == 0).all()
