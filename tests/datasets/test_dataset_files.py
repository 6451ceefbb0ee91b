"""Small parts that readers share: listings, UTM zones, pose files, work in processes."""

import os

import numpy as np
import pytest
from pyproj import Proj

from covis.core.errors import InputError
from covis.core.listings import existing_names, walk_images
from covis.core.machine import in_processes
from covis.poses import centred_matrices, convergence_deg, one_zone, zone_of
from covis.reading.textfile import read_named
from layouts import builders


def test_walking_finds_images_only_in_one_order(tmp_path):
    for name in ("b/2.JPG", "b/1.png", "a.jpeg", ".hidden.jpg", ".git/x.jpg", "notes.txt", "b/c/deep.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).touch()
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    assert walk_images(tmp_path) == ["a.jpeg", "b/1.png", "b/2.JPG", "b/c/deep.webp", os.fsdecode(b"caf\xe9.jpg")]


def test_names_are_found_with_another_ending_or_below_a_folder(tmp_path):
    for name in ("images/a/1.png", "images/a/2.jpg"):
        builders.image(tmp_path / name)
    listed = ["a/1.jpg", "a/2.jpg", "a/3.jpg"]
    assert existing_names(tmp_path, listed, ("images",)) == ["images/a/1.png", "images/a/2.jpg", "images/a/3.jpg"]
    assert existing_names(tmp_path, ["x.jpg"], ("images",)) == ["x.jpg"]


def test_zones():
    assert zone_of([-180.0, -0.1, 0.0, 5.99, 179.99, np.nan]).tolist() == [1, 30, 31, 31, 60, 0]


@pytest.mark.parametrize(("lat", "lon"), [(55.67, 12.57), (-34.6, -58.4), (0.3, 32.6), (64.0, 11.99)])
def test_convergence_equals_the_projections_own(lat, lon):
    zone = int(zone_of([lon])[0])
    exact = Proj(proj="utm", zone=zone, south=lat < 0).get_factors(lon, lat).meridian_convergence
    assert convergence_deg(lat, lon, zone) == pytest.approx(exact, abs=0.01)


def test_positions_already_in_one_zone_stay_as_they_are():
    lat, lon = np.full(4, 51.5), np.array([-0.02, -0.01, 0.01, 0.02])
    from pyproj import Transformer

    xy = np.column_stack(Transformer.from_crs(4326, 32630, always_xy=True).transform(lon, lat))
    moved, _ = one_zone(xy, lat, lon)
    assert np.array_equal(moved, xy)
    own = builders.utm(lat, lon)
    joined, zone = one_zone(own, lat, lon)
    assert zone == 30
    assert joined == pytest.approx(xy, abs=1e-3)


def test_pose_files_allow_comments_blank_lines_and_crlf(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"# head\r\n\r\na.jpg 1 2e-001\r\nb.jpg 3 4\r\n")
    table = read_named(path, 2)
    assert table.names == ["a.jpg", "b.jpg"]
    assert table.values.tolist() == [[1.0, 0.2], [3.0, 4.0]]
    path.write_text("a.jpg 1 x\n")
    with pytest.raises(InputError, match="line 1"):
        read_named(path, 2)
    with pytest.raises(InputError, match="does not exist"):
        read_named(tmp_path / "none.txt", 2)


def test_a_centre_and_world_to_camera_rotation_give_a_camera_to_world_matrix():
    half = np.sqrt(0.5)
    quaternion, centre = np.array([[half, half, 0.0, 0.0]]), np.array([[1.0, 2.0, 3.0]])  # 90° about x
    matrix = centred_matrices(quaternion, centre)[0]
    world_to_camera = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]])
    assert matrix[:, :3] == pytest.approx(world_to_camera.T, abs=1e-12)
    assert world_to_camera @ centre[0] + -world_to_camera @ matrix[:, 3] == pytest.approx(np.zeros(3))


def square(x):
    return x * x


def test_work_in_processes_keeps_order_and_is_lazy():
    taken = []

    def pieces():
        for i in range(50):
            taken.append(i)
            yield i

    stream = in_processes(square, pieces(), 2)
    assert next(stream) == 0
    assert len(taken) <= 5
    assert list(stream) == [i * i for i in range(1, 50)]
    assert list(in_processes(square, [3, 4], 1)) == [9, 16]


def fail(x):
    raise InputError(f"piece {x} is wrong")


def test_an_error_in_a_process_is_the_same_error_here():
    with pytest.raises(InputError, match=r"^piece 1 is wrong$"):
        list(in_processes(fail, [1, 2], 2))
