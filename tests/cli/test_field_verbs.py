"""Sources of the field through the command line, and what its tools read back."""

import h5py
import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from cli import wall
from covis.field import pairs as pairs_module
from covis.labels.exchange import open_labels
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses
from covis.reading.cameras import camera_of
from covis.reading.formats.colmap import read_reconstruction
from covis.reading.table import read_table

pytest.importorskip("pycolmap", reason="needs the `sfm` extra")


def read_global_features(path, names):
    with h5py.File(path) as file:
        return np.stack([file[name]["global_descriptor"][()] for name in names])


def read_pairs(path):
    return [tuple(line.split()) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A COLMAP project of a painted wall, and a model to describe with."""
    folder = tmp_path_factory.mktemp("project")
    truth = wall.build(folder)
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=1).save(folder / "model")
    return folder, truth


def test_metres_are_refused_until_scale_or_places_fix_them(project, tmp_path, covis):
    folder, (rotation, centre, _) = project
    code, _, err = covis("data", "import", folder, "-o", tmp_path / "set.csv")
    assert code == 2
    assert "--scale METRES_PER_UNIT" in err.replace("\n", " ")
    assert not (tmp_path / "set.csv").exists()
    code, _, err = covis("index", folder, "-o", tmp_path / "map", "--model", folder / "model", "--runtime", "torch")
    assert code == 2
    assert "scale of its poses is unknown" in err
    code, out, _ = covis("data", "import", folder, "-o", tmp_path / "set.csv", "--scale", 0.4, "--json")
    assert code == 0
    assert out["rotations"] == 6
    apart = read_table(tmp_path / "set.csv").poses.centre
    np.testing.assert_allclose(np.linalg.norm(apart[0] - apart[5]), np.linalg.norm(centre[0] - centre[5]), rtol=1e-6)
    placed = tmp_path / "placed.csv"
    code, _, err = covis("data", "import", folder, "-o", placed, "--georeference", folder / "gps.csv")
    assert code == 0
    assert "scale 0.4" in err
    images = read_table(placed)
    local = Poses.from_latlon(*images.poses.latlon().T, frame=wall.FRAME)
    np.testing.assert_allclose(local.xy, centre[:, :2], atol=1e-3)
    np.testing.assert_allclose(images.poses.rotation, rotation, atol=1e-4)
    assert camera_of(images, 0) == ("SIMPLE_PINHOLE", 320, 240, (260.0, 160.0, 120.0))
    assert all(images.path(i).is_file() for i in range(6))


def test_options_of_other_sources_are_refused(project, tmp_path, covis):
    folder, _ = project
    code, _, err = covis("data", "import", folder, "-o", tmp_path / "s.csv", "--every", "5m")
    assert code == 2
    assert "--every does not belong to a source like" in err
    code, _, err = covis("data", "import", folder / "images", "-o", tmp_path / "s.csv", "--scale", 2)
    assert code == 2
    assert "--scale does not belong to a folder of photos" in err


def test_labels_by_tracks_and_pairs_by_them(project, tmp_path, covis, monkeypatch):
    import pycolmap

    made = pycolmap.synthesize_dataset(
        pycolmap.SyntheticDatasetOptions(
            num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=8, num_points3D=60, track_length=3
        )
    )
    (tmp_path / "m").mkdir()
    made.write_text(tmp_path / "m")
    code, out, _ = covis("label", "--queries", tmp_path / "m", "--rule", "tracks", "-o", tmp_path / "g", "--json")
    told = out
    assert code == 0
    assert told["rule"]["tracks"]["points"] == 60
    code, _, err = covis("label", "--queries", tmp_path / "m", "--rule", "tracks", "-o", tmp_path / "g")
    assert "already holds these labels" in err
    code, _, err = covis("label", "--queries", tmp_path / "m", "-o", tmp_path / "h")
    assert code == 2
    assert "metres are needed" in err
    arguments = ("--by", "overlap", "--least", 0.2, "--per-image", 2)
    monkeypatch.setattr(pairs_module, "EXHAUSTIVE", 0)
    code, out, _ = covis("pairs", tmp_path / "m", "-o", tmp_path / "pairs.txt", *arguments, "--json")
    assert code == 0
    pairs = read_pairs(tmp_path / "pairs.txt")
    assert out == {"pairs": len(pairs), "by": "overlap", "images": 8, "output": str(tmp_path / "pairs.txt")}
    model = read_reconstruction(tmp_path / "m")
    seen = dict(zip(model.names, [set(o[o >= 0].tolist()) for o in model.observed], strict=True))
    assert all(len(seen[a] & seen[b]) / min(len(seen[a]), len(seen[b])) >= 0.2 for a, b in pairs)


def test_small_sets_are_paired_exhaustively(project, tmp_path, covis, monkeypatch):
    folder, _ = project
    code, _, _ = covis("pairs", folder / "gps.csv", "-o", tmp_path / "pairs.txt")
    assert code == 0
    assert len(read_pairs(tmp_path / "pairs.txt")) == 15
    monkeypatch.setattr(pairs_module, "EXHAUSTIVE", 0)
    code, _, err = covis("pairs", folder / "gps.csv", "-o", tmp_path / "p.txt", "--by", "retrieval")
    assert code == 2
    assert "has no descriptors" in err


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """A round walked twice, forty pictures each, with times and places."""
    root = tmp_path_factory.mktemp("walk")
    lines = ["image,easting,northing,heading,time"]
    for i in range(80):
        small = np.random.default_rng(i % 40).integers(0, 256, (4, 5, 3), np.uint8)
        Image.fromarray(small).resize((40, 30)).save(root / f"{i:03d}.png")
        angle = 2 * np.pi * (i % 40) / 40
        lines.append(
            f"{i:03d}.png,{200 * np.sin(angle):.2f},{200 * np.cos(angle):.2f},{(90 + np.degrees(angle)) % 360:.1f},{1000 + 2 * i}"
        )
    (root / "walk.csv").write_text("\n".join(lines))
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=1).save(root / "model")
    return root


def test_retrieval_pairs_and_features_and_both(walk, tmp_path, covis):
    table, model = walk / "walk.csv", ("--model", walk / "model")
    code, _, _ = covis("pairs", table, *model, "-o", tmp_path / "p.txt", "--per-image", 1, "-o", tmp_path / "g.h5")
    assert code == 0
    pairs = read_pairs(tmp_path / "p.txt")
    assert {(int(a[:3]) % 40) - (int(b[:3]) % 40) for a, b in pairs} == {
        0
    }  # each picture with its twin of the other round
    rows = read_global_features(tmp_path / "g.h5", [f"{i:03d}.png" for i in range(80)])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(rows[0], rows[40], atol=1e-5)
    code, out, _ = covis("pairs", table, *model, "-o", "-", "--per-image", 2, "--by", "both")
    assert code == 0
    assert len(out.splitlines()) > len(pairs)
    with_map = tmp_path / "walk.map"
    assert covis("index", table, "-o", with_map, *model, "--runtime", "torch")[0] == 0
    code, _, _ = covis("pairs", with_map, "-o", tmp_path / "m.txt", "--per-image", 1)
    assert code == 0
    assert read_pairs(tmp_path / "m.txt") == pairs
    code, _, _ = covis("pairs", with_map, "--queries", table, "-o", tmp_path / "q.txt", "--per-image", 2)
    assert code == 0
    assert len(read_pairs(tmp_path / "q.txt")) == 160


def test_loop_closures_to_a_file_and_as_a_stream(walk, tmp_path, covis):
    table, model = walk / "walk.csv", ("--model", walk / "model")
    code, _, _ = covis("pairs", table, *model, "--loops", "--time-gap", 30, "-o", tmp_path / "loops.txt")
    assert code == 0
    head, *lines = (tmp_path / "loops.txt").read_text().splitlines()
    assert head.startswith("# time_query time_match")
    assert len(lines) >= 25
    right = [int(c[2][:3]) - int(c[3][:3]) == 40 for c in map(str.split, lines)]
    assert np.mean(right) > 0.9
    code, out, _ = covis("pairs", table, *model, "--loops", "-o", "-")
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [line.split()[:4] for line in lines]
    chances = [float(line.split()[-1]) for line in out.splitlines()[1:]]
    middle = sorted(chances)[len(chances) // 2]
    code, out, _ = covis("pairs", table, *model, "--loops", "-o", "-", "--least", middle)
    assert len(out.splitlines()) - 1 == sum(c >= middle for c in chances) < len(chances)


def test_coverage_is_read_by_other_tools(project, tmp_path, covis):
    geopandas = pytest.importorskip("geopandas")
    folder, _ = project
    covis("data", "import", folder, "-o", tmp_path / "set.csv", "--georeference", folder / "gps.csv")
    code, out, _ = covis("data", "coverage", tmp_path / "set.csv", "--cell", 5, "-o", tmp_path / "c.geojson", "--json")
    assert code == 0
    assert out["cells_with_photos"] >= 3
    assert len(geopandas.read_file(tmp_path / "c.geojson"))


def test_a_photo_gets_its_full_pose_in_the_maps_frame(project, tmp_path, covis):
    folder, (_, _, (rotation, centre)) = project
    place = tmp_path / "map"
    assert covis("index", folder / "gps.csv", "-o", place, "--model", folder / "model", "--runtime", "torch")[0] == 0
    arguments = ("--pose", "--scene", folder / "sparse" / "0", "-k", 6, "-o", tmp_path / "a.geojson")
    code, out, err = covis("locate", place, folder / "query.jpg", *arguments, "--json")
    assert code == 0, err
    assert code == 0
    pose = out[0]["pose"]
    assert pose["unit"] == "m"
    assert pose["inliers"] > 30
    w, x, y, z = pose["quaternion_wxyz"]
    turn = Rotation.from_quat([x, y, z, w]).as_matrix() @ rotation.T
    assert np.degrees(Rotation.from_matrix(turn).magnitude()) < 1.0
    from covis.maps.map import Map

    here = Poses(centre[None, :2], np.zeros(1), frame=wall.FRAME).latlon()[0]
    expected = Poses.from_latlon([here[0]], [here[1]], frame=Map.open(place).images.poses.frame).xy[0]
    assert np.linalg.norm(np.array(pose["centre"][:2]) - expected) < 0.3
    assert (tmp_path / "a.geojson").is_file()
    code, _, err = covis("locate", place, folder / "query.jpg", "--pose")
    assert code == 2
    assert "has no scene points" in err
    Map.open(place).keep_scene(folder / "sparse" / "0")
    code, out, _ = covis("locate", place, folder / "query.jpg", "--pose", "-k", 6, "--json")
    assert (code, out[0]["pose"]) == (0, pose)


def test_a_map_keeps_the_full_poses_of_a_model(project, tmp_path, covis):
    """Labels of the map's photos are those of the table that it was made from."""
    folder, _ = project
    table, place = tmp_path / "set.csv", tmp_path / "map"
    assert covis("data", "import", folder, "-o", table, "--georeference", folder / "gps.csv")[0] == 0
    assert covis("index", table, "-o", place, "--model", folder / "model", "--runtime", "torch")[0] == 0
    code, out, _ = covis("map", "show", place, "--json")
    assert (code, out["full poses"], out["cameras"]) == (0, 6, 6)
    poses = read_table(table).poses
    ahead = [poses.centre + poses.rotation @ (x, 0.0, 10.0) for x in np.linspace(-5, 5, 40)]
    np.save(tmp_path / "cloud.npy", np.concatenate(ahead))
    graphs = []
    for source in (table, place):
        graph = tmp_path / f"{source.stem}-labels"
        cloud = ("--rule", "surface", "--set", f"cloud={tmp_path / 'cloud.npy'}")
        code, _, err = covis("label", "--queries", source, *cloud, "-o", graph)
        assert code == 0, err
        graphs.append(open_labels(graph).graph.to_scipy().toarray())
    assert graphs[0].max() > 0
    np.testing.assert_array_equal(graphs[0], graphs[1])


def test_a_bag_becomes_a_table(tmp_path, covis):
    bags = pytest.importorskip("reading.test_bags", reason="needs the `ros` extra")
    bag = bags.write_bag(tmp_path / "run", "mcap", fixes=True)
    code, out, _ = covis("data", "import", bag, "-o", tmp_path / "run.csv", "--every", "4m", "--json")
    assert code == 0
    told = out
    images = read_table(tmp_path / "run.csv")
    assert told["photos"] == told["rotations"] == told["cameras"] == len(images) >= 5
    assert images.poses.frame
    assert images.path(0).parent == tmp_path / "run.frames"
    assert covis("data", "import", bag, "-o", tmp_path / "run.csv", "--every", "4m")[0] == 0  # resumes: all is there
    code, _, err = covis("label", "--queries", bag, "-o", tmp_path / "g")
    assert code == 2
    assert "covis data import" in err


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("av", "video", ("data", "import", "walk.mp4", "-o", "w.csv")),
        ("rosbags", "ros", ("data", "import", "run.bag", "-o", "w.csv")),
    ],
)
def test_a_missing_extra_is_named_in_one_line(project, tmp_path, monkeypatch, covis, module, extra, arguments):
    import sys

    for name in [m for m in sys.modules if m.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    for name in ("walk.mp4", "run.bag"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "gps.csv").write_text((project[0] / "gps.csv").read_text())
    code, _, err = covis(*arguments)
    assert code == 2
    assert f"pip install 'covis[{extra}]'" in err
    assert len(err.strip().splitlines()) == 1
