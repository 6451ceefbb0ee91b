"""The town as a dataset: what its splits hold, and a folder that survives everything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covis import datasets, town
from covis.core import artifacts
from covis.core.errors import InputError
from covis.poses import Poses, angle_between
from covis.reading.table import read_table
from covis.town.config import SPLITS, TownConfig
from covis.town.dataset import folder_config
from covis.town.layout import district
from covis.town.traversals import CONDITIONS, MAP, QUERIES

CONFIG = TownConfig.small()


@pytest.fixture(scope="module")
def splits(hamlet):
    return {split: town.load(hamlet, split) for split in SPLITS}


def test_every_image_is_a_file_of_the_right_size(splits):
    for images in (side for split in splits.values() for side in split):
        for i in range(0, len(images), 11):
            with Image.open(images.path(i)) as picture:
                assert picture.size == (CONFIG.width, CONFIG.height)
        assert len(set(images.names.tolist())) == len(images)


def test_splits_are_out_of_sight_of_one_another(splits):
    for a in SPLITS:
        for b in SPLITS[: SPLITS.index(a)]:
            for one in splits[a]:
                for other in splits[b]:
                    gap = np.linalg.norm(one.poses.xy[:, None] - other.poses.xy[None], axis=-1)
                    assert gap.min() > 2 * 50


def test_poses_are_whole_and_agree_with_each_other(splits):
    for images in splits["train"]:
        poses = images.poses
        matrices = np.concatenate([poses.rotation, np.column_stack([poses.xy, poses.z])[..., None]], axis=2)
        again = Poses.from_matrices(matrices)
        np.testing.assert_allclose(again.heading, poses.heading, atol=1e-9)
        np.testing.assert_allclose(again.xy, poses.xy)
        assert images.intrinsics.shape == (len(images), 6)
        np.testing.assert_allclose(images.intrinsics[0], [32, 32, 32, 24, 64, 48])
        assert (poses.z > 1.2).all()


def test_map_and_queries_differ_in_condition_and_cover_every_street_both_ways(splits):
    for name, split in splits.items():
        place = district(CONFIG, name)
        assert set(split.database.columns["condition"].tolist()) == {MAP.name.encode()}
        assert set(split.queries.columns["condition"].tolist()) == {c.name.encode() for c in QUERIES}
        for images in split:
            for e, street in enumerate(place.streets):
                ahead = np.degrees(np.arctan2(street[2] - street[0], street[3] - street[1]))
                turn = angle_between(images.poses.heading[images.columns["street"] == e], ahead)
                assert (turn < 45).any()
                assert (turn > 135).any()


def test_cameras_keep_to_the_right_hand_lane(splits):
    for name, split in splits.items():
        place = district(CONFIG, name)
        for images in split:
            street = place.streets[images.columns["street"]]
            along = (street[:, 2:4] - street[:, :2]) / np.linalg.norm(street[:, 2:4] - street[:, :2], axis=1)[:, None]
            off = images.poses.xy - street[:, :2]
            left_of = along[:, 0] * off[:, 1] - along[:, 1] * off[:, 0]
            heading = np.radians(images.poses.heading)
            sense = np.sign(along[:, 0] * np.sin(heading) + along[:, 1] * np.cos(heading))
            assert (left_of * sense < 0.5).mean() > 0.98
            assert (np.abs(left_of) < street[:, 4]).mean() > 0.95


def test_houses_keep_off_the_streets():
    for split in SPLITS:
        place = district(CONFIG, split)
        for wall in place.walls:
            points = np.linspace(wall[:2], wall[2:], 9)
            for x0, y0, x1, y1, road, pavement in place.streets:
                span = np.array([x1 - x0, y1 - y0])
                share = np.clip((points - [x0, y0]) @ span / (span @ span), 0, 1)
                gap = np.linalg.norm(points - [x0, y0] - share[:, None] * span, axis=1)
                assert gap.min() > road + pavement - 0.3


def test_the_table_of_a_traversal_reads_like_any_table(hamlet, splits):
    table = read_table(hamlet / "test" / MAP.name / "poses.csv")
    database = splits["test"].database
    np.testing.assert_array_equal(table.poses.xy, database.poses.xy)
    np.testing.assert_allclose(table.poses.heading, database.poses.heading, atol=1e-9)
    assert table.path(3).resolve() == database.path(3).resolve()


def test_a_seed_decides_everything(hamlet, tmp_path):
    again = town.load(tmp_path / "a", "val", CONFIG)
    first = town.load(hamlet, "val")
    for a, b in zip(again, first, strict=True):
        assert a.fingerprint() == b.fingerprint()
        assert all(a.path(i).read_bytes() == b.path(i).read_bytes() for i in range(len(a)))
    assert town.TownConfig.small(1).fingerprint() != CONFIG.fingerprint()


def test_a_damaged_traversal_is_rendered_again_and_the_others_are_left_alone(tmp_path, hamlet):
    folder = tmp_path / "town"
    queries, database = town.load(folder, "val", CONFIG)
    stamps = {i: queries.path(i).stat().st_mtime_ns for i in range(len(queries))}
    whole = database.path(2).read_bytes()
    database.path(2).write_bytes(whole[:100])
    database.path(3).unlink()
    town.load(folder, "val")
    assert database.path(2).read_bytes() == whole
    assert database.path(3).exists()
    assert stamps == {i: queries.path(i).stat().st_mtime_ns for i in range(len(queries))}


CODE = """
import sys
from covis import town
from covis.town.config import TownConfig
town.load(sys.argv[1], "val", TownConfig.small())
"""


STALLED = """
import time
from covis.town import dataset
write = dataset._write_image
def stalls(view, i, file):
    write(view, i, file)
    if i == 3:
        print("rendering", flush=True)
        time.sleep(600)
dataset._write_image = stalls
"""


def start(folder, before=""):
    command = [sys.executable, "-c", before + CODE, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_while_rendering_another_process_finishes_the_town(tmp_path, hamlet):
    folder = tmp_path / "town"
    first = start(folder, STALLED)
    assert first.stdout.readline() == "rendering\n"
    second = start(folder)  # waits for the first
    first.kill()
    first.communicate()
    _, talk = second.communicate(timeout=280)
    assert second.returncode == 0, talk
    images = town.load(folder, "val")
    assert not list(folder.rglob("*.partial"))
    for image_set, wanted in zip(images, town.load(hamlet, "val"), strict=True):
        assert all(image_set.path(i).read_bytes() == wanted.path(i).read_bytes() for i in range(len(wanted)))


def test_the_default_folder_lies_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COVIS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    name = f"town-{TownConfig().fingerprint()}"
    assert town.default_folder() == tmp_path / "home" / ".cache" / "covis" / name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert town.default_folder() == tmp_path / "xdg" / "covis" / name
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "own"))
    assert town.default_folder() == tmp_path / "own" / name
    assert datasets.DATASETS["town"].default is not None
    assert datasets.DATASETS["town"].default() == tmp_path / "own" / name


def test_a_folder_of_another_town_is_refused(tmp_path, hamlet):
    with pytest.raises(InputError, match="another configuration"):
        town.load(hamlet, "test", TownConfig.small(seed=5))
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="holds other files"):
        town.load(tmp_path / "letters", "test", CONFIG)
    with pytest.raises(InputError, match="did you mean 'train'"):
        town.load(hamlet, "trian")


@pytest.mark.parametrize("change", [{"fingerprint": "0" * 16}, {"config": {"seed": 0}}, {"config": None}])
def test_a_folder_of_another_version_is_refused(tmp_path, hamlet, change):
    record = json.loads((hamlet / "town.json").read_text()) | change
    artifacts.write_json(tmp_path / "town.json", record)
    with pytest.raises(InputError, match="another version"):
        folder_config(tmp_path)


def test_the_configuration_is_read_back_from_the_folder(hamlet):
    assert folder_config(hamlet) == CONFIG


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"fov_deg": 180.0}, {"block_m": 10.0}, {"map_spacing_m": 0.0}, {"val_blocks": (0, 1)}]
)
def test_impossible_towns_are_refused(wrong):
    with pytest.raises(InputError):
        TownConfig(**wrong)


def test_only_an_embedded_dataset_needs_no_path():
    with pytest.raises(InputError, match="needs a path"):
        datasets.load("msls", None, "train")


def test_the_town_is_planned_without_compiling_anything():
    code = "import covis.town; from covis.town.casting import trace; assert not trace.signatures"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280, env=dict(os.environ))


def test_every_condition_has_a_name_of_its_own():
    assert len(CONDITIONS) == 1 + len(QUERIES)
    assert all(Path(name).name == name for name in CONDITIONS)
