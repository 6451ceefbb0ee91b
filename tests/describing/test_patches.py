"""Patches from the model's own map: right windows, right images, and a better head where views moved."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from covis.cli import main
from covis.cli.embed import images_at
from covis.describing.patches import spatial_reranking
from covis.models import ModelConfig, PlaceModel
from covis.ranking import Ranking

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
    return [images_at(folder) for folder in folders]


def test_patches_are_the_means_of_windows_in_the_order_of_their_places(model, places, tmp_path):
    """Checked through the whitening's own inverse question: equal windows give equal vectors, wherever they are."""
    database, queries = places
    ranking = Ranking(np.tile(np.arange(12), (12, 1)), np.full((12, 12), 1.0))
    rerank = spatial_reranking(model, queries, database, ranking, tmp_path, dim=32)
    with torch.inference_mode():
        shape = model.local_features(model.preprocess(database.path(0))[None]).shape
    vectors = rerank.map_patches(np.array([4, 2]))
    assert vectors.shape == (2, (shape[2] - 1) * (shape[3] - 1), 32)
    assert vectors.shape[1] == len(rerank.places)
    np.testing.assert_allclose(np.linalg.norm(vectors.astype(np.float32), axis=2), 1, atol=2e-3)
    assert rerank.scores(3, np.array([3]))[0] < 1
    one_set = spatial_reranking(model, database, database, ranking, tmp_path / "one", dim=32)
    assert one_set.scores(3, np.array([3]))[0] == pytest.approx(1, abs=2e-3)
    assert not (tmp_path / "one" / "queries.npy").exists()


def test_moved_views_find_their_place(model, places, tmp_path):
    """All map images at one distance, in the wrong order: patches alone must find the scene."""
    database, queries = places
    ids = np.stack([np.roll(np.arange(12), -q - 5) for q in range(12)])
    ranking = Ranking(ids, np.ones((12, 12)))
    again = spatial_reranking(model, queries, database, ranking, tmp_path, dim=64)(ranking)
    assert (ranking.ids[:, 0] == np.arange(12)).sum() == 0
    assert (again.ids[:, 0] == np.arange(12)).sum() >= 9


def test_command_line_puts_recall_and_cost_side_by_side(model, places, tmp_path, capsys):
    rows = ["image,easting,northing,heading,group"]
    for side, (images, group) in enumerate(zip(places, ("walk a", "walk b"), strict=True)):
        rows += [f"{images.path(i)},{100 * i + side},0,90,{group}" for i in range(12)]
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    model.save(tmp_path / "model")
    line = [
        "rerank",
        tmp_path / "model",
        "table",
        "--data",
        tmp_path / "photos.csv",
        "-o",
        tmp_path / "out",
        "--depth",
        6,
    ]
    with pytest.raises(SystemExit) as stop:
        main([*map(str, line), "--cache", str(tmp_path / "cache"), "--json"])
    assert not stop.value.code
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"plain", "reranked", "cost"}
    assert told["cost"]["depth"] == 6
    assert told["cost"]["bytes_an_image"] > 0
    assert told["reranked"]["fingerprint"] == told["plain"]["fingerprint"]
    assert 0 <= told["plain"]["recall"]["1"] <= told["reranked"]["recall"]["1"] <= 100
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"plain", "reranked"}
