"""Walks are found by clocks, cameras and folders, and what was taken together stays together."""

import numpy as np
import pytest

from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.walks import with_walks

MINUTE = 60


def photos(starts_min, *, x=None, folder="", camera="", step_s=20, count=10):
    """Photos of several stretches of `count` photos, each begun at a minute, 10 m apart."""
    starts, n = np.atleast_1d(starts_min), len(np.atleast_1d(starts_min))
    folders, cameras = np.broadcast_to(folder, n), np.broadcast_to(camera, n)
    x = np.zeros(n) if x is None else np.asarray(x)
    names, when, where, groups, taken_by = [], [], [], [], []
    for part in range(n):
        for i in range(count):
            name = f"{part:02d}_{i:02d}.jpg"
            names.append(f"{folders[part]}/{name}" if folders[part] else name)
            when.append(str(np.datetime64("2024-05-01T08:00:00") + int(starts[part] * MINUTE + i * step_s)))
            where.append((x[part] + 10.0 * i, 0.0))
            groups.append(folders[part])
            taken_by.append(cameras[part])
    columns = {"time": np.array(when), "camera": np.array(taken_by)}
    poses = Poses(np.array(where), np.full(len(names), 90.0))
    return ImageSet.of("photos", names, poses, np.array(groups), columns=columns)


def found(images):
    """Which stretches of ten photos are one walk, as a number for each stretch."""
    walks = with_walks(images).group.reshape(-1, 10)
    assert (walks == walks[:, :1]).all()
    return np.unique(walks[:, 0], return_inverse=True)[1].tolist()


def test_a_flat_folder_is_cut_where_nothing_was_taken_for_half_an_hour():
    images = photos([0, 10, 60, 60 * 24, 60 * 24 + 20])
    assert found(images) == [0, 0, 1, 2, 2]
    assert with_walks(images).group_names == ("2024-05-01 08:00", "2024-05-01 09:00", "2024-05-02 08:00")


def test_a_folder_of_one_walk_keeps_its_name():
    assert with_walks(photos([0, 60, 120], folder=["a", "b", "b"])).group_names == (
        "a",
        "b 2024-05-01 09:00",
        "b 2024-05-01 10:00",
    )


def test_cameras_are_walks_of_their_own_unless_they_travel_together():
    assert found(photos([0, 5], camera=["A", "B"], x=[0, 5000])) == [0, 1]
    assert found(photos([0, 0], camera=["left", "right"])) == [0, 0]


def test_one_walk_in_two_folders_is_one():
    assert found(photos([0, 1], folder=["front", "back"])) == [0, 0]
    assert found(photos([0, 90], folder=["morning", "noon"])) == [0, 1]


def test_photos_without_a_time_go_with_those_beside_them():
    images = photos([0, 60])
    images.columns["time"][[3, 12, 19]] = ""
    assert found(images) == [0, 1]
    images.columns["time"][:] = ""
    assert with_walks(images) is images


@pytest.mark.parametrize("unit", [1e3, 1e9])
def test_times_that_are_not_seconds_cut_nothing(unit):
    images = photos([0, 60])
    numbers = (images.columns["time"].astype("datetime64[s]").astype(np.float64)) * unit
    given = ImageSet.of("photos", images.names, images.poses, "", columns={"time": numbers})
    assert with_walks(given) is given
