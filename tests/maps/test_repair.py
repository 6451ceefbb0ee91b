"""A damaged map is never silent: it is refused, checked part by part, and made whole again from what is left."""

import json
import os
import time

import numpy as np
import pytest
from simulated import image_set, simulated_map, store

from covis import cli
from covis.core import artifacts
from covis.core.errors import InputError
from covis.maps.care import DROPPED, check_map, repair_map
from covis.maps.map import Map
from covis.maps.storage.folder import tidy, version_folder


@pytest.fixture
def grown(tmp_path):
    """A map of two segments: 60 photos, then 5."""
    made, world = simulated_map(tmp_path, 6, 10)
    rng = np.random.default_rng(5)
    xy = rng.uniform(0, 100, (5, 2))
    images = image_set(tmp_path, xy, start=900)
    more = store(tmp_path / "more", images, world.describe(xy, rng), made.model_fingerprint)
    return made.add(images, descriptors=more)


def flip(path, at=-5):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(bytes(content))


def test_a_whole_map_has_nothing_to_repair(grown):
    assert check_map(grown.path) == []
    assert not repair_map(grown.path)["repaired"]
    assert Map.open(grown.path).version == grown.version


@pytest.mark.parametrize("part", ["shard-00000.npy", "names-00000.npy", "manifest.json"])
@pytest.mark.parametrize("segment", [0, 1])
def test_damaged_segments_are_refused_then_dropped_with_a_list(grown, part, segment):
    flip(grown.path / "segments" / grown.state.segments[segment] / part, -100)
    with pytest.raises(InputError, match="damaged"):
        Map.open(grown.path)
    assert check_map(grown.path)
    outcome = repair_map(grown.path)
    expected = [grown.images.name(i) for i in range(60)] if segment == 0 else [f"{i:05d}.jpg" for i in range(900, 905)]
    assert sorted(outcome["dropped"]) == sorted(expected)
    assert check_map(grown.path) == []
    now = Map.open(grown.path, verify=True)
    assert len(now) == 65 - len(expected)
    assert (grown.path / DROPPED).read_text().count("\n") == len(expected) + 1
    found = now.search(np.asarray(now.descriptors[now.state.rows], np.float32), 1)
    assert found.ids[:, 0].tolist() == list(range(len(now)))


@pytest.mark.parametrize("file", ["CURRENT", "map.json", "photos.npz", "calibration.json"])
def test_other_parts_come_from_the_state_before_or_from_the_model(grown, file):
    folder = version_folder(grown.path, grown.version) if file.endswith(("npz", "ion.json")) else grown.path
    flip(folder / file, 5 if file.endswith("npz") else -8)
    with pytest.raises(InputError):
        Map.open(grown.path)
    repair_map(grown.path)
    assert len(Map.open(grown.path, verify=True)) in (60, 65)


def test_an_older_state_is_not_taken_for_the_current_one(grown):
    """One digit of CURRENT."""
    current = grown.path / "CURRENT"
    current.write_text(current.read_text().replace(f'"version": {grown.version}', f'"version": {grown.version - 1}'))
    with pytest.raises(InputError, match="damaged or was edited"):
        Map.open(grown.path)


def test_a_damaged_index_is_built_anew(tmp_path):
    made, _ = simulated_map(tmp_path, 52, 20, index="hnsw")
    ids = version_folder(made.path, made.version) / "index" / "order.npy"
    flip(ids)
    with pytest.raises(InputError, match=r"order\.npy is damaged"):
        Map.open(made.path)
    outcome = repair_map(made.path)
    assert outcome["dropped"] == []
    assert Map.open(made.path, verify=True).index_kind == "hnsw"


def test_a_damaged_model_needs_a_backup(grown):
    flip(grown.path / "model" / "weights.safetensors")
    with pytest.raises(InputError, match="from a backup"):
        repair_map(grown.path)


def test_the_verbs(grown, capsys):
    flip(grown.path / "segments" / grown.state.segments[1] / "shard-00000.npy")
    for arguments, code in ((["map", "check"], 2), (["map", "repair", "--json"], 0), (["map", "check"], 0)):
        with pytest.raises(SystemExit) as left:
            cli.main([*arguments, str(grown.path)])
        assert left.value.code == code
        if "--json" in arguments:
            assert len(json.loads(capsys.readouterr().out)["dropped"]) == 5
        capsys.readouterr()


def test_large_files_are_read_again_only_when_they_changed(grown, monkeypatch, tmp_path):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(artifacts, "SMALL_BYTES", 1000)
    monkeypatch.setattr(artifacts, "_SETTLED_S", -1.0)
    Map.open(grown.path)
    read = []
    real = artifacts.files.sha256
    monkeypatch.setattr(artifacts.files, "sha256", lambda path: read.append(path) or real(path))
    Map.open(grown.path)
    assert not [p for p in read if p.name.startswith("shard")]
    shard = grown.path / "segments" / grown.state.segments[0] / "shard-00000.npy"
    before = shard.stat()
    flip(shard)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="damaged"):
        Map.open(grown.path)
    flip(shard)
    Map.open(grown.path)
    read.clear()
    later = (
        time.time() + 8 * 24 * 3600
    )  # damage below the file system changes no stamp: a week is the longest it stays unseen
    monkeypatch.setattr(time, "time", lambda: later)
    Map.open(grown.path)
    assert [p for p in read if p.name.startswith("shard")]


@pytest.mark.parametrize("folder", ["segments", "versions"])
def test_nothing_outside_a_map_is_touched(grown, tmp_path, folder):
    home = tmp_path / "home"
    (grown.path / folder).rename(home)
    (home / "thesis").mkdir()
    (home / "thesis" / "chapter.tex").write_text("mine")
    (home / "tax.pdf").write_text("mine")
    (grown.path / folder).symlink_to(home)
    for action in (lambda: Map.open(grown.path), lambda: tidy(grown.path, 3), lambda: repair_map(grown.path)):
        with pytest.raises(InputError, match="is a link"):
            action()
    assert (home / "thesis" / "chapter.tex").read_text() == (home / "tax.pdf").read_text() == "mine"


def test_what_is_not_ours_stays_inside_a_map_too(grown):
    other = grown.path / "segments" / "thesis"
    other.mkdir()
    (other / "chapter.tex").write_text("mine")
    (grown.path / "versions" / "notes.txt").write_text("mine")
    grown.remove([grown.images.name(0)])
    assert (other / "chapter.tex").exists()
    assert (grown.path / "versions" / "notes.txt").exists()


def test_an_embedding_killed_at_its_first_steps_is_cleared(grown):
    begun, mine = (grown.path / "segments" / name for name in ("0123456789abcdef", "fedcba9876543210"))
    for folder in (begun, mine):
        folder.mkdir()
        (folder / ".lock").touch()
        (folder / f".embedding.json.{'a' * 16}.partial.json").write_text("{")
    (mine / "chapter.tex").write_text("mine")
    grown.remove([grown.images.name(0)])
    assert not begun.exists()
    assert (mine / "chapter.tex").exists()


@pytest.mark.parametrize("key", ["../../x", "/etc", "a/b", ".", "..", ""])
def test_a_state_cannot_name_a_segment_outside(grown, key):
    manifest = version_folder(grown.path, grown.version) / "manifest.json"
    told = artifacts.read_json(manifest)
    artifacts.write_json(manifest, {**told, "segments": [key]})
    with pytest.raises(InputError, match="outside it"):
        Map.open(grown.path)


@pytest.mark.parametrize("name", ["../secret.npy", "/etc/passwd", "a/../../b"])
def test_a_manifest_cannot_name_a_file_outside(grown, name):
    manifest = grown.path / "segments" / grown.state.segments[0] / "manifest.json"
    told = artifacts.read_json(manifest)
    artifacts.write_json(manifest, {**told, "files": {**told["files"], name: {"sha256": "", "bytes": 0}}})
    with pytest.raises(InputError, match="outside it"):
        Map.open(grown.path)


def test_a_shard_that_is_a_link_is_refused(grown, tmp_path):
    shard = grown.path / "segments" / grown.state.segments[0] / "shard-00000.npy"
    shard.rename(tmp_path / "elsewhere.npy")
    shard.symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(InputError, match="is a link"):
        Map.open(grown.path)
