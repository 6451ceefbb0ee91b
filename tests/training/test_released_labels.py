"""Training on the labels that the method's authors released, imported from the command line: panoramas are counted."""

import csv

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from covis.cli.app import build_app
from covis.graph import SimilarityGraph
from layouts import builders

CITIES = ("zurich", "amman", "goa")
TINY = (
    "model.backbone=tiny", "model.weights=none", "model.image_size=16,16", "model.trainable=all", "steps=1",
    'validation=""', "cache_gb=0.5",
)  # fmt: skip


def column(file, name):
    with file.open(newline="") as handle:
        return [row[name] for row in csv.DictReader(handle)]


@pytest.fixture(scope="module")
def released(official, tmp_path_factory):
    """Folder of `<city>_gt.h5`: ψ falls with the distance of two lines of the lists, panoramas among them."""
    root = tmp_path_factory.mktemp("released")
    for city in CITIES:
        sides = [official["msls"] / "train_val" / city / side for side in ("query", "database")]
        xy = [np.array([column(s / "postprocessed.csv", c) for c in ("easting", "northing")], float).T for s in sides]
        psi = np.clip(1 - np.linalg.norm(xy[0][:, None] - xy[1][None], axis=2) / 50, 0, 1).astype(np.float32)
        with h5py.File(root / f"{city}_gt.h5", "w") as handle:
            handle["fov"], handle["sim"] = psi, psi >= 0.5
    return root


def covis(*arguments):
    result = CliRunner().invoke(build_app(), list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def dense_without_panoramas(official, released):
    """(117, 174)-like matrix over the images that are no panoramas, cities one after the other in the recipe's order."""
    blocks, order = [], ("zurich", "goa", "amman")  # as the training cities are listed
    for city in order:
        plain = [
            np.array([v == "False" for v in column(official["msls"] / "train_val" / city / side / "raw.csv", "pano")])
            for side in ("query", "database")
        ]
        assert not all(mask.all() for mask in plain), "the miniature has panoramas in every city"
        with h5py.File(released / f"{city}_gt.h5") as handle:
            blocks.append(handle["fov"][:][np.ix_(*plain)])
    shape = [sum(sizes) for sizes in zip(*(b.shape for b in blocks), strict=True)]
    out, at = np.zeros(shape, np.float32), np.zeros(2, int)
    for block in blocks:
        out[at[0] : at[0] + block.shape[0], at[1] : at[1] + block.shape[1]] = block
        at += block.shape
    return out


@pytest.mark.parametrize("source", ["graph", "released"])
def test_a_recipe_trains_on_released_labels(official, released, source, tmp_path, monkeypatch):
    """`label --rule graph` and then `--set labels.path=GRAPH`, or the released folder at once."""
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    data = ("--data", official["msls"])
    path = released
    if source == "graph":
        path = tmp_path / "graph"
        covis(
            "label",
            "--rule",
            "graph",
            "--set",
            f"path={released}",
            "--dataset",
            "msls",
            *data,
            "--split",
            "train",
            "-o",
            path,
        )
    settings = [part for setting in (*TINY, "labels=graph", f"labels.path={path}") for part in ("--set", setting)]
    covis("train", "msls_vgg16_gem_gcl", *data, *settings, "-o", tmp_path / "run")
    used = SimilarityGraph.open(tmp_path / "run" / "labels")
    np.testing.assert_allclose(used.to_scipy().toarray(), dense_without_panoramas(official, released), atol=1 / 250)
    assert used.facts["within_group"], "pairs of ψ = 0 are drawn inside a city, as the authors' were"
    assert used.facts["measure"] == "released-fov"


def test_labels_of_another_release_end_the_training_in_one_line(tmp_path):
    builders.msls(tmp_path, cities=("amman", "cph", "sf"))
    builders.msls_labels(tmp_path, "amman")
    builders.msls(tmp_path, cities=("amman",), queries=9)
    settings = [part for setting in (*TINY, "labels=graph", f"labels.path={tmp_path}") for part in ("--set", setting)]
    command = ["train", "msls_vgg16_gem_gcl", "--data", str(tmp_path), *settings, "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(build_app(), command)
    assert "is of 8 × 12 images; the lists have 9 × 12 lines" in str(result.exception or result.output)
