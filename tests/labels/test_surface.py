"""Surface overlap: against boolean masks, occlusion, groups, fused clouds, refusal of bad input."""

import dataclasses

import numpy as np
import pytest
from rooms import cameras, room, seen

from covis.core.errors import InputError
from covis.labels import SurfaceOverlap
from covis.labels.clouds import PointCloud
from covis.labels.surface import arrange, seen_points
from covis.poses import Poses


def expected(a, b, measure):
    common = (a[:, None] & b[None]).sum(axis=2)
    mine, theirs = a.sum(axis=1)[:, None], b.sum(axis=1)[None]
    whole = {"iou": mine + theirs - common, "overlap": np.minimum(mine, theirs), "query_overlap": mine + 0 * theirs}
    return np.where(common > 0, common / np.maximum(whole[measure], 1), 0)


@pytest.mark.parametrize("points", [1, 63, 64, 513, 5000])
@pytest.mark.parametrize("measure", ["iou", "overlap", "query_overlap"])
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


def test_one_set_by_the_querys_own_share_keeps_both_directions():
    xyz, images = room(2000), cameras(20)
    masks = seen(images, xyz)
    dense = expected(masks, masks, "query_overlap")
    np.fill_diagonal(dense, 0)
    found = SurfaceOverlap(PointCloud(xyz), measure="query_overlap")(images, images).to_scipy().toarray()
    np.testing.assert_allclose(found, dense, atol=1e-6)


def test_a_wall_hides_what_lies_behind_it_only_with_the_depth_buffer():
    rng = np.random.default_rng(4)
    wall = np.stack([rng.uniform(0, 6, 8000), np.full(8000, 2.5), rng.uniform(0, 3, 8000)], 1)
    xyz = np.concatenate([room(20000, seed=3), wall])
    images = cameras(60, seed=5)
    points = arrange(PointCloud(xyz))
    inside, side = seen(images, xyz), np.sign(xyz[:, 1] - 2.5)
    plain, hidden = (as_seen(points, images, occlusion, xyz) for occlusion in ("none", "zbuffer"))
    np.testing.assert_array_equal(plain, inside)
    here = np.sign(images.poses.centre[:, 1] - 2.5)[:, None]
    assert not hidden[~inside].any()
    assert hidden[inside & (side == here)].mean() > 0.95
    assert hidden[inside & (side == -here) & far_behind(images, xyz)].mean() < 0.01
    across = np.abs(xyz[:, 1] - images.poses.centre[:, 1][:, None]) / np.linalg.norm(
        xyz - images.poses.centre[:, None], axis=2
    )
    assert hidden[inside & (side == 0) & (across > 0.5)].mean() > 0.95  # the wall itself, unless seen edge on


def as_seen(points, images, occlusion, xyz):
    """(N, points) what `look` says, in the order of `xyz`."""
    place = {tuple(p): k for k, p in enumerate(np.stack([points.x, points.y, points.z], 1).tolist())}
    bits = np.unpackbits(seen_points(points, images, occlusion).words.view(np.uint8), axis=1, bitorder="little")
    return bits[:, [place[tuple(p)] for p in (xyz - points.middle).tolist()]].astype(bool)


def far_behind(images, xyz):
    """(N, points) more than half a metre and a fifth of the way behind the wall at y = 2.5, along the line of sight."""
    start = images.poses.centre[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (2.5 - start[..., 1]) / (xyz[:, 1] - start[..., 1])
    return ((1 - share) * np.linalg.norm(xyz - start, axis=2) > 0.5) & (share < 0.8)


def test_images_that_see_nothing_are_told_of(capsys):
    images = cameras(3)
    graph = SurfaceOverlap(PointCloud(np.full((1, 3), 1e6)))(images, images)
    assert graph.pairs == 0
    assert "3 of 3 images see no point of the cloud" in capsys.readouterr().err


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
    with pytest.raises(InputError, match="unknown occlusion 'zbufer'; did you mean 'zbuffer'"):
        SurfaceOverlap(PointCloud(room(10)), occlusion="zbufer")(images, images)
    with pytest.raises(InputError, match="unknown measure"):
        SurfaceOverlap(PointCloud(room(10)), measure="dice")(images, images)
    with pytest.raises(InputError, match="name no depth maps; give a point cloud"):
        SurfaceOverlap()(images, images)


def test_real_stairs_overlap_with_their_neighbours(shared_data):
    from covis.datasets import load

    split = load("7scenes", shared_data / "7scenes_stairs_sample", "stairs")
    plain = SurfaceOverlap()(split.queries, split.database)
    hidden = SurfaceOverlap(occlusion="zbuffer")(split.queries, split.database)
    assert plain.facts["cloud"]["points"] > 1000
    assert 0 < hidden.psi.max() <= 1
    one = SurfaceOverlap()(split.database, split.database)
    assert one.lookup(0, 1) > 0.9  # neighbouring frames of one film
