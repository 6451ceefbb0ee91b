"""Surface overlap: against boolean masks, groups, fused clouds, refusal of bad input."""

import dataclasses

import numpy as np
import pytest
from rooms import cameras, room, seen

from covis.core.errors import InputError
from covis.labels import SurfaceOverlap
from covis.labels.clouds import PointCloud
from covis.poses import Poses


def expected(a, b, measure):
    common = (a[:, None] & b[None]).sum(axis=2)
    mine, theirs = a.sum(axis=1)[:, None], b.sum(axis=1)[None]
    whole = {"iou": mine + theirs - common, "overlap": np.minimum(mine, theirs)}
    return np.where(common > 0, common / np.maximum(whole[measure], 1), 0)


@pytest.mark.parametrize("points", [1, 63, 64, 513, 5000])
@pytest.mark.parametrize("measure", ["iou", "overlap"])
def test_graph_equals_boolean_masks(points, measure):
    xyz, queries, database = room(points), cameras(30, seed=1), cameras(40, seed=2)
    graph = SurfaceOverlap(PointCloud(xyz), measure=measure)(queries, database)
    np.testing.assert_allclose(
        graph.to_scipy().toarray(), expected(seen(queries, xyz), seen(database, xyz), measure), atol=1e-6
    )


def test_far_from_the_origin_and_in_one_set():
    xyz, images = room(3000) + 5e6, cameras(50, origin=5e6)
    graph = SurfaceOverlap(PointCloud(xyz))(images, images)
    dense = expected(seen(images, xyz), seen(images, xyz), "iou")
    np.fill_diagonal(dense, 0)
    found = graph.to_scipy().toarray()
    np.testing.assert_allclose(found, dense, atol=1e-6)
    np.testing.assert_array_equal(found, found.T)
    assert graph.facts["one_set"] is True
    assert graph.facts["cloud"]["points"] == 3000


def test_images_that_see_nothing_are_told_of_and_a_cloud_that_none_sees_is_refused(capsys):
    images = cameras(3)
    with pytest.raises(InputError, match="no image sees a point"):
        SurfaceOverlap(PointCloud(np.full((1, 3), 1e6)))(images, images)
    ahead = images.poses.centre[:1] + images.poses.rotation[0, :, 2]
    SurfaceOverlap(PointCloud(ahead))(images.subset([0]), images.subset([0]))
    assert not capsys.readouterr().err
    blind = cameras(2, origin=1e6)
    SurfaceOverlap(PointCloud(ahead))(images.subset([0]), blind)
    assert "1 of 3 images see no point of the cloud" in capsys.readouterr().err


def test_groups_are_rooms_of_their_own():
    xyz = room(3000)
    images = cameras(24, group=["a", "b"] * 12)
    free, apart = (SurfaceOverlap(PointCloud(xyz), within_group=w)(images, images) for w in (False, True))
    same = images.group[free.rows] == images.group[free.indices]
    assert 0 < same.sum() < free.pairs
    np.testing.assert_array_equal(free.keep(same).to_scipy().toarray(), apart.to_scipy().toarray())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda i: dataclasses.replace(i, intrinsics=None), "needs images with intrinsics and rotations"),
        (lambda i: dataclasses.replace(i, poses=Poses(i.poses.xy, i.poses.heading)), "needs images with intrinsics"),
        (lambda i: dataclasses.replace(i, poses=dataclasses.replace(i.poses, z=np.full(4, np.nan))), "no 6DOF pose"),
    ],
)
def test_images_without_what_it_takes_are_refused(change, says):
    with pytest.raises(InputError, match=says):
        SurfaceOverlap(PointCloud(room(10)))(change(cameras(4)), cameras(4))


def test_bad_parameters_are_refused():
    images = cameras(2)
    with pytest.raises(InputError, match="unknown measure"):
        SurfaceOverlap(PointCloud(room(10)), measure="dice")(images, images)
    with pytest.raises(InputError, match="name no depth maps; give a point cloud"):
        SurfaceOverlap()(images, images)


def test_real_stairs_overlap_with_their_neighbours(shared_data):
    from covis.datasets import load

    split = load("7scenes", shared_data / "7scenes_stairs_sample", "stairs")
    plain = SurfaceOverlap()(split.queries, split.database)
    assert plain.facts["cloud"]["points"] > 1000
    assert 0 < plain.psi.max() <= 1
    one = SurfaceOverlap()(split.database, split.database)
    assert one.lookup(0, 1) > 0.9  # neighbouring frames of one film
