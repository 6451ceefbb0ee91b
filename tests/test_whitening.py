"""Whitening: white where there is data, stable where there is little, and blind to what two views of one place differ in."""

import numpy as np
import pytest
import torch

from covis import whitening
from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.models import ModelConfig, PlaceModel
from covis.whitening import Whitening, WhiteningRule, pair_weights


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
    rule = {"labels": "none", "power": 1.0}
    assert loaded.whitening.facts == {"samples": 40, "rank": 39, "shrinkage": 0.0, **rule, "data": "forty images"}
    with torch.inference_mode():
        assert np.array_equal(loaded(x).numpy(), white)
    assert model.whiten(None).fingerprint() == before
    with pytest.raises(ValueError, match="whitening of 8 dims for descriptors of 256"):
        model.whiten(Whitening.fit(np.random.default_rng(0).normal(size=(20, 8)), 4))


# Learned from pairs


def some_pairs(n, seed=0, share=0.05):
    """A graph of random grades, and walks."""
    rng = np.random.default_rng(seed)
    psi = np.triu(rng.random((n, n)) * (rng.random((n, n)) < share), 1)
    psi = (psi + psi.T).astype(np.float32)
    rows, columns = np.nonzero(psi)
    limits = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
    graph = SimilarityGraph(limits, columns.astype(np.int32), psi[rows, columns], (n, n))
    return graph, psi.astype(np.float64), rng.integers(0, 5, n)


def naive_learned(x, psi, group, dim, exponent, share, power=1.0):
    """C = (1 − a) C_S + a C_T over loops, in the leading principal directions; C^(−power/2) applied to both sides."""
    x = x.astype(np.float64)
    centred = x - x.mean(0)
    basis = np.linalg.svd(centred, full_matrices=False)[2][:dim].T
    z = centred @ basis
    within, labelled = np.zeros((dim, dim)), 0
    for i in range(len(z)):
        weight = np.array([psi[i, j] ** exponent if psi[i, j] and group[i] != group[j] else 0.0 for j in range(len(z))])
        if weight.sum() == 0:
            continue
        labelled += 1
        for j in np.flatnonzero(weight):
            within += weight[j] / weight.sum() * np.outer(z[i] - z[j], z[i] - z[j])
    c = (1 - share) * within / labelled + share * np.cov(z, rowvar=False)
    values, vectors = np.linalg.eigh(c)
    return basis @ vectors @ np.diag(values**-power) @ vectors.T @ basis.T  # the metric: projection @ projection.T


@pytest.mark.parametrize(("n", "d"), [(60, 24), (40, 90)])
@pytest.mark.parametrize(("exponent", "share", "power"), [(2.0, 0.1, 1.0), (1.0, 0.3, 0.75)])
def test_learned_whitening_is_its_definition(n, d, exponent, share, power):
    x, (graph, psi, group) = descriptors(n, d), some_pairs(n, share=0.2)
    rule = WhiteningRule("graded", exponent, share, power)
    w = Whitening.fit(x, 12, rule, pairs=pair_weights(graph, group, exponent))
    expected = naive_learned(x, psi, group, 12, exponent, share, power)
    np.testing.assert_allclose(w.projection @ w.projection.T, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert w.facts["labels"] == "graded"
    assert w.facts["total_share"] == share


def test_all_of_the_total_covariance_is_pca_whitening():
    x, (graph, _, group) = descriptors(80, 24), some_pairs(80)
    plain = Whitening.fit(x, 10)
    learned = Whitening.fit(x, 10, WhiteningRule("graded", total_share=1.0), pairs=pair_weights(graph, group, 2.0))
    np.testing.assert_allclose(
        learned.projection @ learned.projection.T, plain.projection @ plain.projection.T, rtol=1e-7
    )


def test_power_divides_variances_out_in_part():
    x = descriptors(300, 16)
    plain, half = (Whitening.fit(x, 8, WhiteningRule(power=p)).projection for p in (1.0, 0.5))
    variances = np.linalg.norm(plain, axis=0) ** -2
    np.testing.assert_allclose(np.linalg.norm(half, axis=0), variances**-0.25, rtol=1e-7)


def test_places_are_told_apart_by_what_their_views_share():
    """Places differ in the first directions, views of one place in others that vary more: labels find that out."""
    rng = np.random.default_rng(3)
    place = np.repeat(np.arange(60), 4)
    signal, nuisance = rng.normal(size=(60, 8))[place], 1.5 * rng.normal(size=(240, 8))
    x = np.hstack([signal + 0.3 * rng.normal(size=(240, 8)), nuisance]) + 5.0
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    known = place < 40
    same = (place[known][:, None] == place[known]) & ~np.eye(known.sum(), dtype=bool)
    rows, columns = np.nonzero(same)
    limits = np.concatenate([[0], np.cumsum(same.sum(1))])
    graph = SimilarityGraph(limits, columns.astype(np.int32), np.ones(len(rows), np.float32), same.shape)

    def found(w):
        new = w(x[~known])
        gap = new @ new.T - 2 * np.eye(len(new))
        return np.mean(place[~known][gap.argmax(1)] == place[~known])

    plain = Whitening.fit(x[known], 12)
    learned = Whitening.fit(x[known], 12, WhiteningRule("binary"), pairs=pair_weights(graph))
    assert found(learned) > found(plain) + 0.15


def test_weights_leave_out_pairs_of_one_group_and_sum_to_one():
    graph, psi, group = some_pairs(30, share=0.4)
    found, weights = pair_weights(graph, group, 2.0), np.zeros((30, 30))
    weights[found.rows, found.columns] = found.values
    assert (weights[group[:, None] == group] == 0).all()
    expected = np.where(group[:, None] == group, 0, psi**2)
    np.testing.assert_allclose(weights, expected / expected.sum(1, keepdims=True), rtol=1e-6)


def test_labels_without_a_pair_are_refused():
    graph, _, _ = some_pairs(30)
    with pytest.raises(InputError, match="no two images of different groups"):
        Whitening.fit(descriptors(30, 8), 4, WhiteningRule("graded"), pairs=pair_weights(graph, np.zeros(30)))
    with pytest.raises(InputError, match="needs labelled pairs"):
        Whitening.fit(descriptors(30, 8), 4, WhiteningRule("graded"))


@pytest.mark.parametrize("wrong", [{"labels": "soft"}, {"total_share": 0.0}, {"power": 1.5}, {"exponent": 0.0}])
def test_rules_that_are_none_are_refused(wrong):
    with pytest.raises(InputError):
        WhiteningRule(**wrong)


# Many descriptors


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(whitening, "_BLOCK_BYTES", 64 * 8 * 40)
    monkeypatch.setattr(whitening, "_IN_MEMORY_BYTES", 0)


def test_leading_directions_by_iteration_equal_the_exact_ones(small_blocks, monkeypatch):
    x, (graph, _, group) = descriptors(400, 40), some_pairs(400)
    rule, pairs = WhiteningRule("graded"), pair_weights(graph, group, 2.0)
    exact = Whitening.fit(x, 8, rule, pairs=pairs)
    monkeypatch.setattr(whitening, "COVARIANCE_DIMS", 10)
    found = Whitening.fit(x, 8, rule, pairs=pairs)
    np.testing.assert_allclose(found(x) @ found(x).T, exact(x) @ exact(x).T, atol=2e-3)
    assert found.facts["samples"] == 400


def test_blocks_are_read_once_and_memory_is_bounded(small_blocks, tmp_path):
    import tracemalloc

    file = tmp_path / "many.npy"
    rng = np.random.default_rng(0)
    many = np.lib.format.open_memmap(file, "w+", np.float32, (200_000, 16))
    for start in range(0, len(many), 10_000):
        many[start : start + 10_000] = rng.normal(size=(10_000, 16)).astype(np.float32) * np.geomspace(1, 0.1, 16)
    tracemalloc.start()
    w = Whitening.fit(many, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < many.nbytes / 4
    np.testing.assert_allclose(np.linalg.norm(w.projection, axis=0), 1 / np.geomspace(1, 0.1, 16)[:8], rtol=0.02)
