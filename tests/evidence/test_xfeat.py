"""XFeat beside other implementations, and on two photos of one street."""

import importlib

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from torch.nn import functional

from covis.core.errors import InputError
from covis.search.local import LocalReranker
from covis.search.local_features import inliers, match


@pytest.fixture
def xfeat(evidence):
    return importlib.import_module("evidence.xfeat")


@pytest.mark.parametrize(("text", "message"), [("xfeat=nowhere.onnx", "does not exist"), ("xfeat", "xfeat=FILE")])
def test_its_network_must_be_given(xfeat, text, message):
    with pytest.raises(InputError, match=message):
        LocalReranker.parse(text).facts()


def test_peaks_are_the_highest_of_their_neighbourhood(xfeat):
    score = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    xy, value = xfeat.peaks(score, 2, 0.5)
    wanted = [
        (x, y)
        for y in range(20)
        for x in range(30)
        if score[y, x] > 0.5 and score[y, x] == score[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3].max()
    ]
    assert sorted(map(tuple, xy.tolist())) == sorted(wanted)
    assert value.tolist() == [score[y, x] for x, y in xy]


def test_sampling_is_bilinear_between_the_middles_of_cells(xfeat):
    maps = np.random.default_rng(0).random((3, 5, 7)).astype(np.float32)
    xy = np.random.default_rng(1).uniform(0, 1, (50, 2)) * [7 * 8, 5 * 8]
    expected = [map_coordinates(m, [xy[:, 1] / 8 - 0.5, xy[:, 0] / 8 - 0.5], order=1, mode="nearest") for m in maps]
    np.testing.assert_allclose(xfeat.sampled(maps, xy, 8), np.transpose(expected), atol=1e-6)


def test_key_point_cells_unfold_as_a_pixel_shuffle(xfeat):
    logits = torch.randn(65, 4, 6)
    expected = functional.pixel_shuffle(torch.softmax(logits, 0)[None, :64], 8)[0, 0]
    np.testing.assert_allclose(xfeat._heat(logits.numpy(), 8), expected.numpy(), atol=1e-6)


def test_published_networks_match_two_photos_of_one_street(xfeat, shared_data, monkeypatch):
    folder, weights = shared_data / "photos_exif" / "berlin", shared_data / "weights" / "local"
    if not weights.is_dir():
        pytest.skip("needs weights of local features among the shared data")
    monkeypatch.setattr(xfeat, "SIDE", 320)
    extractor = xfeat.XFeat(weights / "xfeat.onnx")
    first, second = (extractor(folder / f"0{k}.jpg") for k in (1, 2))
    elsewhere = extractor(shared_data / "photos_exif" / "lund" / "01.jpg")
    agree, chance = (inliers(first, other, match(first, other, None)) for other in (second, elsewhere))
    assert agree > 60
    assert agree > 3 * chance
    assert first.xy.max(axis=0).tolist() <= list(first.size)
