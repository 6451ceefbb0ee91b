"""Point clouds: every PLY flavour, NumPy files, fused depth maps, and damaged ones."""

import numpy as np
import pytest
from PIL import Image
from rooms import cameras, pixels, room, seen

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.labels.clouds import DepthCamera, PointCloud, fuse_depth, read_points, thin


def write_ply(path, xyz, kind, extra=True):
    """A PLY with colours and a face behind the vertices, as scanners write them."""
    order = {"ascii": "<", "binary_little_endian": "<", "binary_big_endian": ">"}[kind]
    head = ["ply", f"format {kind} 1.0", "comment a scan", f"element vertex {len(xyz)}"]
    head += ["property float x", "property double y", "property float z"]
    dtype = [("x", order + "f4"), ("y", order + "f8"), ("z", order + "f4")]
    if extra:
        head += ["property uchar red"]
        dtype += [("red", "u1")]
    head += ["element face 1", "property list uchar int vertex_indices", "end_header"]
    table = np.zeros(len(xyz), dtype)
    table["x"], table["y"], table["z"] = xyz.T
    if kind == "ascii":
        body = "".join(f"{r['x']!s} {r['y']!s} {r['z']!s}{' 7' if extra else ''}\n" for r in table) + "3 0 1 2\n"
        path.write_bytes(("\n".join(head) + "\n" + body).encode())
    else:
        path.write_bytes(("\n".join(head) + "\n").encode() + table.tobytes() + b"\x03" + np.zeros(3, "i4").tobytes())


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("extra", [False, True])
def test_ply_of_every_kind(tmp_path, kind, extra):
    xyz = room(50)
    write_ply(tmp_path / "scan.ply", xyz, kind, extra)
    np.testing.assert_allclose(read_points(tmp_path / "scan.ply").xyz, xyz, atol=1e-6)


def test_numpy_files(tmp_path):
    xyz = room(50)
    np.savez(tmp_path / "one.npz", xyz)
    np.savez(tmp_path / "named.npz", points=xyz, colours=xyz)
    np.save(tmp_path / "plain.npy", xyz)
    for name in ("one.npz", "named.npz", "plain.npy"):
        np.testing.assert_array_equal(read_points(tmp_path / name).xyz, xyz)


def test_thinning_keeps_the_surface_even():
    dense = np.concatenate([room(20000), room(20000) * [1, 1, 0]])  # the floor is scanned twice as often
    kept = thin(dense, 3000)
    assert 1000 < len(kept) <= 3000
    assert {tuple(p) for p in kept.tolist()} <= {tuple(p) for p in dense.tolist()}
    floor, ceiling = (kept[:, 2] == 0).mean(), (kept[:, 2] == 3).mean()
    assert floor == pytest.approx(ceiling, rel=0.3)


def depth_film(folder, xyz, n=6):
    """Cameras in a room with depth maps rendered from dense points."""
    images = cameras(n, seed=9)
    names = []
    for i in range(n):
        u, v, z = pixels(images, i, xyz)
        inside = seen(images.subset([i]), xyz)[0]
        depth = np.zeros((480, 640), np.uint16)
        order = np.argsort(-z[inside])
        depth[v[inside][order].astype(int), u[inside][order].astype(int)] = np.rint(z[inside][order] * 1000)
        depth[0, :9] = 65535
        Image.fromarray(depth).save(folder / f"{i}.depth.png")
        names.append(f"{i}.depth.png".encode())
    return ImageSet.of(
        folder, images.names, images.poses, intrinsics=images.intrinsics, columns={"depth": np.array(names)}
    )


KINECT = DepthCamera(525.0, 520.0, 318.0, 243.0)


def test_depth_maps_become_the_surface_they_show(tmp_path):
    images = depth_film(tmp_path, room(400_000))
    cloud = fuse_depth([images], KINECT, step_px=2)
    off = np.minimum(np.abs(cloud.xyz), np.abs(cloud.xyz - [6, 5, 3])).min(axis=1)  # distance to the nearest wall
    assert len(cloud) > 1000
    assert off.max() < 0.02
    assert cloud.source == "6 depth maps"


def test_few_damaged_depth_maps_are_told_and_many_refused(tmp_path, capsys):
    images = depth_film(tmp_path, room(20_000), n=24)
    (tmp_path / "3.depth.png").write_bytes(b"")
    assert fuse_depth([images], KINECT).source == "23 depth maps"
    assert "1 of 24 depth maps cannot be read and are left out (first: " in capsys.readouterr().err
    (tmp_path / "4.depth.png").write_text("not a picture")
    (tmp_path / "5.depth.png").unlink()
    with pytest.raises(InputError, match=r"3 of 24 depth maps cannot be read \(first: .*3.depth.png\); unpack again"):
        fuse_depth([images], KINECT)


def test_points_that_are_not_finite_are_left_out_and_told(capsys):
    assert len(PointCloud(np.array([[0.0, 0, 0], [np.nan, 0, 0], [0, np.inf, 0]]))) == 1
    assert "2 of 3 points are not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.ply", b"", "not a PLY file"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 2\n", "not a PLY file"),
        (
            "a.ply",
            b"ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nend_header\n1\n2\n",
            "expected x, y and z",
        ),
        (
            "b.ply",
            b"ply\nformat ascii 1.0\nelement face 1\nproperty list uchar int i\nend_header\n",
            "before the vertices",
        ),
        ("c.txt", b"1 2 3", "give .ply, .npz or .npy"),
        ("d.npz", b"PK broken", "cannot be read as NumPy arrays"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_points(tmp_path / name)


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian"])
def test_a_cut_ply_says_so(tmp_path, kind):
    write_ply(tmp_path / "scan.ply", room(50), kind)
    whole = (tmp_path / "scan.ply").read_bytes()
    (tmp_path / "scan.ply").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cut short"):
        read_points(tmp_path / "scan.ply")


def test_missing_empty_and_misshapen_clouds_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_points(tmp_path / "nowhere.ply")
    with pytest.raises(InputError, match="at least one point"):
        PointCloud(np.zeros((0, 3)))
    with pytest.raises(InputError, match=r"shape \(4, 2\)"):
        PointCloud(np.zeros((4, 2)))
    with pytest.raises(InputError, match="none of 2 points is finite"):
        PointCloud(np.full((2, 3), np.nan))
    np.savez(tmp_path / "two.npz", a=room(3), b=room(3))
    with pytest.raises(InputError, match=r"holds \['a', 'b'\]"):
        read_points(tmp_path / "two.npz")
