"""Artefact directories: whole or absent, verified, locked, bound to one configuration."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from covis.core import artifacts, machine
from covis.core.errors import InputError


def write(path, text="hello", **facts):
    with artifacts.create(path, "thing", facts) as draft:
        (draft.path / "a.txt").write_text(text)
        (draft.path / "sub").mkdir()
        (draft.path / "sub" / "b.bin").write_bytes(b"\0\1")


def test_round_trip_with_manifest(tmp_path):
    write(tmp_path / "x", colour="red")
    manifest = artifacts.open_manifest(tmp_path / "x", "thing")
    assert manifest["colour"] == "red"
    assert set(manifest["files"]) == {"a.txt", "sub/b.bin"}
    assert manifest["versions"]["covis"]


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail():
        with artifacts.create(tmp_path / "x", "thing") as draft:
            (draft.path / "a.txt").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_refused_and_kept(tmp_path):
    write(tmp_path / "x", "first")
    with pytest.raises(InputError, match="already exists"):
        write(tmp_path / "x", "second")
    assert (tmp_path / "x" / "a.txt").read_text() == "first"


def test_replace_swaps_the_whole(tmp_path):
    write(tmp_path / "x", "first")
    with artifacts.create(tmp_path / "x", "thing", replace=True) as draft:
        (draft.path / "c.txt").write_text("new")
    assert set(artifacts.open_manifest(tmp_path / "x", "thing")["files"]) == {"c.txt"}
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "a.txt").write_text("hellO"), "damaged"),
        (lambda p: (p / "a.txt").write_text("hell"), "cut short"),
        (lambda p: (p / "sub" / "b.bin").unlink(), "missing"),
        (lambda p: (p / "manifest.json").write_text("{"), "cannot be read as JSON"),
        (lambda p: (p / "manifest.json").unlink(), "not a covis thing"),
    ],
)
def test_damage_is_found_on_open(tmp_path, damage, message):
    write(tmp_path / "x")
    damage(tmp_path / "x")
    with pytest.raises(InputError, match=message):
        artifacts.open_manifest(tmp_path / "x", "thing")


def test_kind_and_schema_are_checked(tmp_path):
    write(tmp_path / "x")
    with pytest.raises(InputError, match="not a 'model'"):
        artifacts.open_manifest(tmp_path / "x", "model")
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    artifacts.write_json(tmp_path / "x" / "manifest.json", manifest | {"schema": 99})
    with pytest.raises(InputError, match="schema 99"):
        artifacts.open_manifest(tmp_path / "x", "thing")


def test_claim_resumes_the_same_configuration_only(tmp_path):
    for _ in range(2):
        with artifacts.claim(tmp_path / "run", "run", {"seed": 1}):
            (tmp_path / "run" / "step").touch()
    with pytest.raises(InputError, match="seed: 1 → 2"), artifacts.claim(tmp_path / "run", "run", {"seed": 2}):
        pass


def test_a_claim_under_which_nothing_was_written_binds_nobody(tmp_path):
    with (
        pytest.raises(InputError, match="missing"),
        artifacts.claim(tmp_path / "run", "run", {"weights": "pretrained"}),
    ):
        raise InputError("the weights are missing")
    assert not (tmp_path / "run" / "run.json").exists()
    with artifacts.claim(tmp_path / "run", "run", {"weights": "a.safetensors"}):
        pass
    with artifacts.claim(tmp_path / "run", "run", {"weights": "b.safetensors"}):  # the first one was killed
        assert json.loads((tmp_path / "run" / "run.json").read_text())["config"] == {"weights": "b.safetensors"}


def test_a_difference_names_fields_not_dicts():
    model = {"backbone": "vgg16", "weights": "pretrained"}
    found = {"recipe": {"model": model, "steps": None}, "seed": 0}
    wanted = {"recipe": {"model": model | {"weights": "w" * 99}, "steps": 2}, "seed": 0}
    assert artifacts.difference(found, wanted) == f"model.weights: pretrained → {'w' * 59}…, steps: – → 2"
    many = artifacts.difference({f"f{i}": 0 for i in range(9)}, {f"f{i}": 1 for i in range(9)})
    assert many.endswith("f5: 0 → 1, and 3 more")
    assert artifacts.difference(found, found) == ""


def test_claim_refuses_a_folder_of_other_files(tmp_path):
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(InputError, match="other files"), artifacts.claim(tmp_path, "run", {}):
        pass


def test_a_second_process_is_told_the_first_ones_id(tmp_path):
    code = f"from covis.core import artifacts\nfrom pathlib import Path\nwith artifacts.lock(Path({str(tmp_path)!r})): pass"
    with artifacts.lock(tmp_path):
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert f"process {os.getpid()}" in other.stderr
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)


def test_fingerprint_sees_values_shapes_and_types():
    a = np.arange(6, dtype=np.float64)
    prints = {artifacts.fingerprint(x) for x in (a, a.reshape(2, 3), a.astype(np.float32), a + 1)}
    assert len(prints) == 4
    assert artifacts.fingerprint({"b": 1, "a": 2}) == artifacts.fingerprint({"a": 2, "b": 1})


def test_cache_folder_can_be_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path))
    assert machine.cache_folder() == tmp_path


def test_a_claim_killed_before_its_record_was_whole_can_be_made_again(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").write_text("1")
    (folder / ".run.json.0123456789abcdef.partial").write_text("{")
    with artifacts.claim(folder, "run", {"seed": 1}):
        assert artifacts.read_json(folder / "run.json")["config"] == {"seed": 1}


def test_a_fingerprint_does_not_depend_on_how_an_array_lies_in_memory():
    table = np.arange(12, dtype=np.int64).reshape(3, 4)
    wanted = artifacts.fingerprint(table)
    assert artifacts.fingerprint(np.asfortranarray(table)) == wanted
    assert artifacts.fingerprint(np.repeat(table, 2, axis=1)[:, ::2]) == wanted
    assert artifacts.fingerprint(table[:, 1]) == artifacts.fingerprint(table[:, 1].copy())
    assert artifacts.fingerprint(table.T) != wanted
