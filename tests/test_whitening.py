"""PCA-whitening: white where there is data, stable where there is little."""

import numpy as np
import pytest
import torch

from covis.errors import InputError
from covis.models import ModelConfig, PlaceModel
from covis.whitening import Whitening


def descriptors(n, d, seed=0, rank=None):
    rng = np.random.default_rng(seed)
    spread = np.geomspace(1, 1e-2, rank or d)
    x = (rng.normal(size=(n, rank or d)) * spread) @ np.linalg.qr(rng.normal(size=(d, d)))[0][: rank or d] + 0.1
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("dim", [1, 8, 32])
def test_whitened_training_data_is_white(dim):
    x = descriptors(3000, 32)
    w = Whitening.fit(x, dim)
    turned = (x.astype(np.float64) - w.mean) @ w.projection
    np.testing.assert_allclose(np.cov(turned, rowvar=False).reshape(dim, dim), np.eye(dim), atol=1e-6)
    out = w(x)
    assert out.shape == (3000, dim)
    assert out.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, atol=1e-5)


def test_the_kept_directions_are_those_of_largest_variance():
    x = descriptors(500, 20)
    w = Whitening.fit(x, 5)
    _, s, vt = np.linalg.svd(x.astype(np.float64) - x.mean(0, dtype=np.float64), full_matrices=False)
    expected = (vt[:5] / (s[:5, None] / np.sqrt(499))).T
    np.testing.assert_allclose(np.abs(w.projection), np.abs(expected), rtol=1e-6, atol=1e-8)


def test_few_samples_and_many_give_one_result_where_both_ways_apply():
    x = descriptors(41, 40)
    wide = np.vstack([x, x])  # 82 rows: the covariance way; 41 rows doubled keep mean and directions
    few, many = Whitening.fit(x[:40], 10), Whitening.fit(np.vstack([x[:40]] * 2), 10)
    scale = np.sqrt((2 * 40 - 1) / (2 * (40 - 1)))  # the two samples divide by n − 1
    np.testing.assert_allclose(few.projection * scale, many.projection, rtol=1e-6, atol=1e-9)
    assert Whitening.fit(wide, 10).facts["rank"] <= 40


def test_fewer_samples_than_dims_stay_finite():
    x = descriptors(12, 64)
    w = Whitening.fit(x, 11)
    assert w.facts["rank"] == 11
    assert np.isfinite(w(descriptors(50, 64, seed=3))).all()


@pytest.mark.parametrize(("n", "rank"), [(12, 11), (300, 7)])
def test_more_dims_than_rank_is_an_error_that_says_how_many_there_are(n, rank):
    x = descriptors(n, 64, rank=min(rank, 64)) if n > 64 else descriptors(n, 64)
    if n > 64:
        x = x.astype(np.float64)
        basis = np.linalg.svd(x, full_matrices=False)[2][:rank]
        x = np.random.default_rng(0).normal(size=(n, rank)) @ basis
    with pytest.raises(InputError, match=f"span {rank}: ask for at most {rank}"):
        Whitening.fit(x, rank + 1)
    Whitening.fit(x, rank)


def test_shrinkage_tames_directions_that_were_hardly_seen():
    x = descriptors(60, 40)
    plain, tame = Whitening.fit(x, 40), Whitening.fit(x, 40, shrinkage=0.3)
    gain = np.linalg.norm(plain.projection, axis=0), np.linalg.norm(tame.projection, axis=0)
    assert gain[1].max() < gain[0].max() / 3
    whole = Whitening.fit(x, 40, shrinkage=1.0)
    norms = np.linalg.norm(whole.projection, axis=0)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-9)  # all directions alike: a rotation, nothing else


@pytest.mark.parametrize(
    ("x", "dim", "shrinkage", "message"),
    [
        (np.ones((1, 4)), 1, 0, "at least 2"),
        (np.ones((5, 4)), 5, 0, "descriptors have 4"),
        (np.ones((5, 4)), 0, 0, "descriptors have 4"),
        (np.ones((5, 4)), 1, 0, "span 0"),
        (np.eye(4), 2, 1.5, "share in"),
        (np.full((5, 4), np.nan), 2, 0, "not finite"),
    ],
)
def test_bad_input_is_refused(x, dim, shrinkage, message):
    with pytest.raises(InputError, match=message):
        Whitening.fit(x, dim, shrinkage=shrinkage)


def test_whitening_becomes_part_of_the_model_and_of_its_identity(tmp_path):
    model = PlaceModel.build(ModelConfig("tiny", "gem", (64, 64)))
    x = torch.randn(40, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        plain = model(x).numpy()
        before, prefix = model.fingerprint(), model.prefix_fingerprint()
        w = Whitening.fit(plain, 16, facts={"data": "forty images"})
        white = model.whiten(w)(x).numpy()
    np.testing.assert_allclose(white, w(plain), atol=2e-5)
    assert model.dim == 16
    assert model.fingerprint() != before
    assert model.prefix_fingerprint() == prefix
    model.save(tmp_path / "model")
    loaded = PlaceModel.load(tmp_path / "model")
    assert loaded.whitening is not None
    assert loaded.whitening.facts == {"samples": 40, "rank": 39, "shrinkage": 0.0, "data": "forty images"}
    with torch.inference_mode():
        assert np.array_equal(loaded(x).numpy(), white)
    assert model.whiten(None).fingerprint() == before
    with pytest.raises(ValueError, match="whitening of 8 dims for descriptors of 256"):
        model.whiten(Whitening.fit(np.random.default_rng(0).normal(size=(20, 8)), 4))
