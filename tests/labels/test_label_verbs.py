"""`covis label` in one process: resuming, other configurations, unknown positions, exports and pictures."""

import csv
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from label_sets import random_set

from covis.cli import main
from covis.graph import SimilarityGraph
from covis.labels import FovOverlap, fov_similarity
from covis.labels.released import read_h5
from covis.town.dataset import default_folder
from layouts import builders


def covis(*args):
    """Exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in args])
    return end.value.code


def write_table(path, images, prefix=""):
    rows = [
        (f"{prefix}{images.name(i)}", *images.poses.xy[i].tolist(), "" if np.isnan(h) else h, images.group[i])
        for i, h in enumerate(images.poses.heading.tolist())
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("image", "easting", "northing", "heading", "group"), *rows])


@pytest.fixture
def tables(tmp_path, monkeypatch):
    write_table(tmp_path / "q.csv", random_set(40, 200, seed=1, unknown=0.1, groups=2), "q")
    write_table(tmp_path / "m.csv", random_set(60, 200, seed=2, groups=2), "m")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_labels_are_those_of_the_rule_and_an_estimate_is_told(tables, capsys):
    assert covis("label", "--queries", "q.csv", "--database", "m.csv", "--fov-deg", "120", "-o", "g", "--json") == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    queries, database = random_set(40, 200, seed=1, unknown=0.1, groups=2), random_set(60, 200, seed=2, groups=2)
    expected = FovOverlap(fov_deg=120.0)(queries, database)
    np.testing.assert_array_equal(SimilarityGraph.open("g").to_scipy().toarray(), expected.to_scipy().toarray())
    assert told["pairs"] == expected.pairs
    assert told["rule"]["fov_deg"] == 120.0
    assert "labelling 40 × 60 images: about" in said.err
    assert "40 queries in" in said.err


def test_the_same_command_says_that_it_is_done_and_another_is_refused(tables, capsys):
    same = ("label", "--queries", "q.csv", "-o", "g", "--uint8")
    assert covis(*same) == 0
    before = (tables / "g" / "manifest.json").read_bytes()
    assert covis(*same) == 0
    assert "g already holds these labels" in capsys.readouterr().err
    assert covis("label", "--queries", "q.csv", "-o", "g", "--measure", "iou") == 2
    assert "measure: overlap → iou" in capsys.readouterr().err
    assert covis("label", "--queries", "m.csv", "-o", "g", "--uint8") == 2
    assert (tables / "g" / "manifest.json").read_bytes() == before


def test_images_without_position_stop_it(tables, capsys):
    with (tables / "q.csv").open("a") as file:
        file.write("lost.jpg,,,,0\n")
    assert covis("label", "--queries", "q.csv", "-o", "g") == 2
    assert "1 of 41 images have no position (first: lost.jpg); fill them in, or" in capsys.readouterr().err
    assert not (tables / "g").exists()


def test_rules_and_their_options(tables, capsys):
    np.save(tables / "cloud.npy", np.zeros((3, 3)))
    assert covis("label", "--queries", "q.csv", "--rule", "radius", "--set", "max_angle_deg=40", "-o", "r") == 0
    assert dict(SimilarityGraph.open("r").facts)["radius_m"] == 25.0
    assert covis("label", "--queries", "q.csv", "--set", "within_group=true", "--set", "facing=true", "-o", "f") == 0
    facts = SimilarityGraph.open("f").facts
    assert (facts["within_group"], facts["facing"]) == (True, True)
    for args, says in (
        (("--rule", "radius", "--fov-deg", "9"), "--fov-deg does not belong to --rule radius"),
        (("--rule", "feeling"), "unknown rule 'feeling'"),
        (("--set", "cloud=cloud.npy"), "unknown field 'cloud'"),
        (("--dataset", "msls"), "give either --queries TABLE or --dataset"),
        (("--radius-m", "0"), "radius_m is 0.0"),
        (("--set", "max_angle_deg=999"), "max_angle_deg is 999.0"),
        (("--database", "nowhere.csv"), "nowhere.csv"),
    ):
        assert covis("label", "--queries", "q.csv", *args, "-o", "bad") == 2
        assert says in capsys.readouterr().err
        assert not (tables / "bad").exists()


def test_two_cameras_and_files_on_both_sides(tables, capsys):
    given = ("label", "--queries", "q.csv", "--database", "m.csv", "--radius-m", "30,60", "--fov-deg", "65,120")
    assert covis(*given, "--measure", "iou", "-o", "g") == 0
    rule = FovOverlap(radius_m=(30.0, 60.0), fov_deg=(65.0, 120.0), measure="iou")
    expected = rule(random_set(40, 200, seed=1, unknown=0.1, groups=2), random_set(60, 200, seed=2, groups=2))
    np.testing.assert_array_equal(SimilarityGraph.open("g").to_scipy().toarray(), expected.to_scipy().toarray())
    assert "both query and map" not in capsys.readouterr().err
    (tables / "twin.csv").write_bytes((tables / "q.csv").read_bytes())
    assert covis("label", "--queries", "q.csv", "--database", "twin.csv", "-o", "t") == 0
    assert "warning: 40 files are both query and map image" in capsys.readouterr().err
    for args, says in (
        (("--radius-m", "wide"), "--radius-m wide is not a number; give one, or two as QUERIES,MAP"),
        (("--fov-deg", "1,2,3"), "--fov-deg 1,2,3 is not a number"),
        (("--radius-m", "30,60"), "one set matched with itself takes one radius_m"),
        (("--rule", "radius", "--radius-m", "30,60"), "--rule radius takes one radius"),
    ):
        assert covis("label", "--queries", "q.csv", *args, "-o", "bad") == 2
        assert says in capsys.readouterr().err


def test_an_embedded_dataset_needs_no_folder_and_every_dataset_a_split(hamlet, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path))
    (tmp_path / default_folder().name).symlink_to(hamlet)
    assert covis("label", "--dataset", "town", "--split", "test", "-o", tmp_path / "g", "--json") == 0
    assert json.loads(capsys.readouterr().out)["positives"] > 0
    assert covis("label", "--dataset", "town", "-o", tmp_path / "h") == 2
    assert "--dataset town needs --split as well, such as train" in capsys.readouterr().err
    assert covis("label", "--dataset", "msls", "--split", "val", "-o", tmp_path / "h") == 2
    assert "give --data" in capsys.readouterr().err


def test_all_pairs_of_a_garden(tmp_path, capsys):
    builders.tb_places(tmp_path, images=False)
    source = ("--dataset", "tb_places", "--data", tmp_path, "--split", "w17_train")
    assert covis("label", *source, "--radius-m", "3.5", "--fov-deg", "90", "-o", tmp_path / "g") == 0
    graph = SimilarityGraph.open(tmp_path / "g")
    x, heading = 0.5 * np.arange(6), 90.0 - 3.0 * np.arange(6)
    i, j = np.indices((6, 6)).reshape(2, -1)
    xy = np.stack([x, np.full(6, 1.0)], 1)
    expected = fov_similarity(xy[i], heading[i], xy[j], heading[j], radius_m=3.5).reshape(6, 6)
    np.testing.assert_allclose(graph.to_scipy().toarray(), expected * (1 - np.eye(6)), atol=1e-6)
    assert (
        covis(
            "label",
            "--rule",
            "graph",
            "--set",
            f"path={tmp_path / 'W17_similarity.h5'}",
            *source,
            "-o",
            tmp_path / "released",
        )
        == 0
    )
    released = SimilarityGraph.open(tmp_path / "released")
    assert (released.facts["one_set"], released.facts["queries"]) == (True, graph.facts["queries"])
    with h5py.File(tmp_path / "W17_similarity.h5") as file:
        np.testing.assert_array_equal(released.to_scipy().toarray()[np.triu_indices(6, 1)], file["fov"][0])


def test_a_datasets_own_rule_is_the_default_and_options_change_it(tmp_path, capsys):
    builders.tb_places(tmp_path, images=False)
    source = ("label", "--dataset", "tb_places", "--data", tmp_path, "--split", "w17_train", "--json")
    for options, name, radius_m in (((), "FovOverlap", 3.5), (("--rule", "fov", "--fov-deg", "60"), "FovOverlap", 3.5),
                                    (("--rule", "radius"), "Radius", 25.0), (("--set", "radius_m=2"), "FovOverlap", 2.0)):  # fmt: skip
        capsys.readouterr()
        assert covis(*source, *options, "-o", tmp_path / f"g{len(options)}{radius_m}") == 0
        told = json.loads(capsys.readouterr().out)["rule"]
        assert (told["rule"], told["radius_m"]) == (name, radius_m)
    assert covis(*source, "--set", "radius=2", "-o", tmp_path / "no") == 2
    assert "unknown field 'radius'; did you mean 'radius_m'?" in capsys.readouterr().err


def test_labels_of_a_file_are_a_rule(tables, capsys):
    sides = ("label", "--queries", "q.csv", "--database", "m.csv")
    assert covis(*sides, "-o", "g") == 0
    for format_, name in (("csv", "e.csv"), ("h5", "e.h5"), ("parquet", "e.parquet")):
        assert covis("label", "export", "g", "--format", format_, "-o", name) == 0
    expected = SimilarityGraph.open("g").to_scipy().toarray()
    for k, path in enumerate(("g", "e.csv", "e.h5", "e.parquet")):
        command = (*sides, "--rule", "graph", "--set", f"path={path}", "-o", f"again{k}")
        assert covis(*command) == 0
        again = SimilarityGraph.open(f"again{k}")
        np.testing.assert_array_equal(again.to_scipy().toarray(), expected)
        assert again.facts["rule"] == "GraphFile"
        assert covis(*command) == 0
        assert "already holds these labels" in capsys.readouterr().err
    for path, sets, says in (
        ("nowhere", sides, "nowhere does not exist"),
        ("g", ("label", "--queries", "q.csv"), "g labels queries and a map, these images are one set with itself"),
        ("g", ("label", "--queries", "m.csv", "--database", "q.csv"), "does not label 60 of 60 queries (first: m00000"),
        ("e.h5", ("label", "--queries", "m.csv", "--database", "q.csv"), "is of 40 × 60 images"),
    ):
        assert covis(*sets, "--rule", "graph", "--set", f"path={path}", "-o", "bad") == 2
        assert says in capsys.readouterr().err
    assert covis(*sides, "--rule", "graph", "-o", "bad") == 2
    assert "path is not given" in capsys.readouterr().err


def test_what_was_exported_can_be_imported(tables, capsys):
    sides = ("--queries", "q.csv", "--database", "m.csv")
    assert covis("label", *sides, "-o", "g") == 0
    graph = SimilarityGraph.open("g")
    dense = graph.to_scipy().toarray()
    for kind, name, expected in (
        ("csv", "a.csv", dense),
        ("parquet", "a.parquet", dense),
        ("h5", "a.h5", dense),
        ("hloc", "a.txt", dense >= 0.5),
    ):
        assert covis("label", "export", "g", "--format", kind, "-o", name) == 0
        assert covis("label", "--rule", "graph", "--set", f"path={name}", *sides, "-o", f"from-{name}") == 0
        back = SimilarityGraph.open(f"from-{name}")
        np.testing.assert_allclose(back.to_scipy().toarray(), expected, atol=1e-8)
        assert back.facts["database"] == graph.facts["database"]
    for args, says in (
        (("path=a.h5", "--queries", "q.csv"), "a.h5 is of 40 × 60 images; these are 40 × 40"),
        (("path=a.csv", "--queries", "q.csv"), "which is not among the images"),
        (("path=nowhere.csv", *sides), "nowhere.csv does not exist"),
        (("path=a.h5", *sides, "--set", "key=sims"), "has no dataset 'sims'"),
    ):
        assert covis("label", "--rule", "graph", "--set", *args, "-o", "bad") == 2
        assert says in capsys.readouterr().err
        assert not (tables / "bad").exists()


def test_surface_of_a_dataset(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    builders.seven_scenes(tmp_path / "scenes")
    np.save(tmp_path / "cloud.npy", np.random.default_rng(0).uniform([1, -2, -2], [3, 2, 2], (3000, 3)))
    source = (
        "--dataset",
        "7scenes",
        "--data",
        "scenes",
        "--split",
        "stairs",
        "--set",
        "cloud=cloud.npy",
    )
    assert covis("label", *source, "--rule", "surface", "-o", "g") == 0
    assert "labelling 4 × 4 images: about 16 overlapping pairs" in capsys.readouterr().err
    assert covis("label", *source, "--rule", "surface", "-o", "g") == 0
    assert "already holds these labels" in capsys.readouterr().err
    graph = SimilarityGraph.open("g")
    assert graph.pairs > 0
    assert graph.facts["cloud"]["points"] == 3000


def test_a_cloud_file_is_in_the_frame_of_the_datasets_poses(tmp_path, monkeypatch, capsys):
    """The truth: points projected by the pose files as they are."""
    monkeypatch.chdir(tmp_path)
    builders.seven_scenes(tmp_path / "scenes")
    xyz = np.random.default_rng(0).uniform([-3, -1, 1], [3, 2, 4], (3000, 3))
    np.save("cloud.npy", xyz)
    np.save("behind.npy", xyz * [1, 1, -1])

    def masks(sequence):
        found = []
        for path in sorted(Path(f"scenes/stairs/{sequence}").glob("*.pose.txt")):
            x, y, z = (np.linalg.inv(np.loadtxt(path)) @ np.column_stack([xyz, np.ones(len(xyz))]).T)[:3]
            u, v = 525 * x / z + 320, 525 * y / z + 240
            found.append((z > 0) & (u >= 0) & (u < 640) & (v >= 0) & (v < 480))
        return np.array(found)

    queries, database = masks("seq-02"), masks("seq-01")
    truth = [[(a & b).sum() / (a | b).sum() for b in database] for a in queries]
    source = ("--dataset", "7scenes", "--data", "scenes", "--split", "stairs")
    assert covis("label", *source, "--set", "cloud=cloud.npy", "-o", "g") == 0
    np.testing.assert_allclose(SimilarityGraph.open("g").to_scipy().toarray(), truth, atol=1e-6)
    assert covis("label", *source, "--set", "cloud=behind.npy", "-o", "none") == 2
    assert "no image sees a point of the cloud behind.npy" in capsys.readouterr().err


def test_exports_hold_the_same_labels(tables):
    assert covis("label", "--queries", "m.csv", "-o", "g") == 0
    graph = SimilarityGraph.open("g")
    assert covis("label", "export", "g", "--format", "csv", "-o", "labels.txt", "--min-similarity", "0.5") == 0
    with (tables / "labels.txt").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == graph.band(0.5, 1.0).pairs
    assert covis("label", "export", "g", "--format", "h5", "-o", "condensed.h5") == 0
    np.testing.assert_array_equal(read_h5("condensed.h5").to_scipy().toarray(), graph.to_scipy().toarray())
    images = random_set(60, 200, seed=2, groups=2)
    row = {name: i for i, name in enumerate(f"m{images.name(i)}" for i in range(60))}
    i, j = (np.array([row[r[side]] for r in rows]) for side in ("query", "database"))
    again = fov_similarity(images.poses.xy[i], images.poses.heading[i], images.poses.xy[j], images.poses.heading[j])
    np.testing.assert_allclose(again, [float(r["similarity"]) for r in rows], atol=1e-7)


def test_wrong_exports_and_pictures_are_refused(tables, capsys):
    assert covis("label", "--queries", "q.csv", "--rule", "radius", "-o", "g") == 0
    (tables / "folder").mkdir()
    for args, says in (
        (("export", "g", "--format", "xml", "-o", "a"), "'xml' is not one of"),
        (("export", "g", "--format", "csv", "-o", "folder"), "folder is a folder; give a file"),
        (("export", "q.csv", "--format", "csv", "-o", "a"), "is not a covis similarity-graph"),
    ):
        assert covis("label", *args) == 2
        assert says in capsys.readouterr().err
        assert not (tables / "a.png").exists()
