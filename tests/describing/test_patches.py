"""Patches from the model's own map: right windows, right images, and a better head where views moved."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from covis.cli import main
from covis.core.errors import InputError
from covis.describing.describers import ModelDescriber
from covis.describing.patches import PatchReranker, agreement
from covis.models import ModelConfig, PlaceModel
from covis.ranking import Ranking
from covis.reading.sources import list_images

SIZE = (96, 128)


@pytest.fixture(scope="module")
def model():
    return PlaceModel.build(ModelConfig(backbone="tiny", image_size=SIZE), seed=1)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Twelve scenes; a map view and a query view of each, a step to the side."""
    folders = [tmp_path_factory.mktemp(name) for name in ("map", "queries")]
    for i in range(12):
        small = np.random.default_rng(i).integers(0, 256, (12, 20, 3), np.uint8)
        wide = Image.fromarray(small).resize((200, 96), Image.Resampling.NEAREST)
        for folder, left in zip(folders, (0, 32), strict=True):
            wide.crop((left, 0, left + 128, 96)).save(folder / f"{i:02d}.png")
    return [list_images(folder) for folder in folders]


def test_patches_are_the_means_of_windows_in_the_order_of_their_places(model, places, tmp_path):
    """Checked through the whitening's own inverse question: equal windows give equal vectors, wherever they are."""
    database, queries = places
    ranking = Ranking(np.tile(np.arange(12), (12, 1)), np.full((12, 12), 1.0))
    reranker = PatchReranker(dim=32)
    of_queries, of_map = reranker.cut(model, queries, database, ranking, tmp_path)
    with torch.inference_mode():
        shape = model.local_features(model.preprocess(database.path(0))[None]).shape
    vectors = of_map(np.array([4, 2]))
    assert vectors.shape == (2, (shape[2] - 1) * (shape[3] - 1), 32)
    assert vectors.shape[1] == len(of_map.places)
    np.testing.assert_allclose(np.linalg.norm(vectors.astype(np.float32), axis=2), 1, atol=2e-3)

    def score(own, others):
        vectors = [np.asarray(side(np.array([3])), np.float32) for side in (own, others)]
        return agreement(vectors[0][0], vectors[1], of_map.places)[0]

    assert score(of_queries, of_map) < 1
    one_set = reranker.cut(model, database, database, ranking, tmp_path / "one")
    assert score(*one_set) == pytest.approx(1, abs=2e-3)
    assert not (tmp_path / "one" / "queries.npy").exists()


def test_images_too_small_for_a_patch_are_refused(places, tmp_path):
    model = PlaceModel.build(ModelConfig(backbone="tiny", image_size=(32, 32)), seed=1)
    ranking = Ranking(np.tile(np.arange(12), (12, 1)), np.full((12, 12), 1.0))
    with pytest.raises(InputError, match="1 × 1 cells holds no patch of 2 × 2: use a model with images larger than 32"):
        PatchReranker().prepare(ModelDescriber(model), *places)(ranking)


def test_moved_views_find_their_place(model, places, tmp_path):
    """All map images at one distance, in the wrong order: patches alone must find the scene."""
    database, queries = places
    ids = np.stack([np.roll(np.arange(12), -q - 5) for q in range(12)])
    ranking = Ranking(ids, np.ones((12, 12)))
    again = PatchReranker(dim=64).prepare(ModelDescriber(model), queries, database)(ranking)
    assert (ranking.ids[:, 0] == np.arange(12)).sum() == 0
    assert (again.ids[:, 0] == np.arange(12)).sum() >= 9


def test_command_line_scores_with_and_without_patches_and_says_the_cost(model, places, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    rows = ["image,easting,northing,heading,group"]
    for side, (images, group) in enumerate(zip(places, ("walk a", "walk b"), strict=True)):
        rows += [f"{images.path(i)},{100 * i + side},0,90,{group}" for i in range(12)]
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    model.save(tmp_path / "model")
    common = ["evaluate", tmp_path / "model", "table", "--data", tmp_path / "photos.csv"]
    told = {}
    for name, rerank in (("plain", []), ("patches", ["--rerank", "patches", "--rerank-depth", 6])):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, [*common, *rerank, "-o", tmp_path / name]), "--json"])
        assert not stop.value.code
        told[name] = json.loads(capsys.readouterr().out)
    assert told["patches"]["subject"]["rerank"]["depth"] == 6
    assert told["patches"]["rerank_cost"]["cpu_ms_per_query"] > 0
    assert told["patches"]["fingerprint"] == told["plain"]["fingerprint"]
    assert 0 <= told["plain"]["recall"]["1"] <= told["patches"]["recall"]["1"] <= 100
    with pytest.raises(SystemExit):
        main([*map(str, ["compare", tmp_path / "plain", tmp_path / "patches"])])
    assert ", by patches" in capsys.readouterr().out
