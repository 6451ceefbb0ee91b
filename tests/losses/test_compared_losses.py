"""Losses of the systems that the method is compared with, against loops over their papers' formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from covis import datasets
from covis.labels import FovOverlap
from covis.losses import (
    AveragePrecision,
    BatchMultiSimilarity,
    ListwiseSoftmax,
    OverlapRegression,
    RelaxedContrastive,
    Sare,
    SoftSupervisedContrastive,
)
from covis.sampling import AllPairs
from covis.training.batch_images import BatchImages

N, M, DIM = 5, 8, 6


def unit(*shape, seed=0):
    z = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=-1)


@pytest.fixture
def lists():
    """Descriptors, ψ with zeros and ones, and which pairs count; the last query counts with none."""
    rng = np.random.default_rng(3)
    psi = np.where(rng.random((N, M)) < 0.4, 0.0, rng.random((N, M)))
    psi[0, :2] = 1
    known = rng.random((N, M)) < 0.8
    known[-1] = False
    return unit(N, DIM), unit(M, DIM, seed=1), torch.from_numpy(psi), torch.from_numpy(known)


def rows(za, zb, psi, known):
    """For each query its similarities, distances and ψ of the pairs that count."""
    for i in range(N):
        pairs = [j for j in range(M) if known[i, j]]
        s = [float(za[i] @ zb[j]) for j in pairs]
        yield s, [math.dist(za[i].tolist(), zb[j].tolist()) for j in pairs], [float(psi[i, j]) for j in pairs]


def log_softmax(s, temperature):
    whole = sum(math.exp(x / temperature) for x in s)
    return [math.log(math.exp(x / temperature) / whole) for x in s]


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_listwise_softmax(lists, power):
    expected = []
    for s, _, psi in rows(*lists):
        total = sum(p**power for p in psi)
        expected.append(-sum(p**power / total * q for p, q in zip(psi, log_softmax(s, 0.2), strict=True)) if s else 0.0)
    got = ListwiseSoftmax(temperature=0.2, power=power)(*lists)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.parametrize("least", [0.0, 0.3])
def test_soft_supervised_contrastive(lists, least):
    expected = []
    for s, _, psi in rows(*lists):
        terms = [-p * q for p, q in zip(psi, log_softmax(s, 0.1), strict=True) if p > least] if s else []
        expected.append(sum(terms) / len(terms) if terms else 0.0)
    np.testing.assert_allclose(SoftSupervisedContrastive(least=least)(*lists), expected, rtol=1e-9)


def test_average_precision_by_its_histogram(lists):
    bins = 12
    centres = [1 - 2 * m / (bins - 1) for m in range(bins)]
    expected = []
    for s, _, psi in rows(*lists):
        relevant = [p >= 0.5 for p in psi]
        if not any(relevant):
            expected.append(0.0)
            continue
        fall = [[max(0.0, 1 - abs(x - c) * (bins - 1) / 2) for c in centres] for x in s]
        precision, hits, seen = 0.0, 0.0, 0.0
        for m in range(bins):
            here = sum(f[m] for f, r in zip(fall, relevant, strict=True) if r)
            hits, seen = hits + here, seen + sum(f[m] for f in fall)
            precision += here * (hits / seen if seen else 0.0)
        expected.append(1 - precision / sum(relevant))
    np.testing.assert_allclose(AveragePrecision(bins=bins)(*lists), expected, rtol=1e-9, atol=1e-12)


def test_relaxed_contrastive(lists):
    expected = []
    for _, d, psi in rows(*lists):
        mean = sum(d) / len(d) if d else 1.0
        terms = [p * (x / mean) ** 2 + (1 - p) * max(0.0, 0.9 - x / mean) ** 2 for x, p in zip(d, psi, strict=True)]
        expected.append(sum(terms) / len(terms) if terms else 0.0)
    np.testing.assert_allclose(RelaxedContrastive(margin=0.9)(*lists), expected, rtol=1e-9)


@pytest.mark.parametrize("kernel", ["gaussian", "cauchy", "exponential"])
@pytest.mark.parametrize("negatives", ["joint", "independent"])
def test_sare(kernel, negatives):
    za, zp, zn = unit(N, DIM), unit(N, DIM, seed=1), unit(N, 4, DIM, seed=2)
    of = {
        "gaussian": lambda d: math.exp(-d * d),
        "cauchy": lambda d: 1 / (1 + d * d),
        "exponential": lambda d: math.exp(-d),
    }
    expected = []
    for i in range(N):
        p = of[kernel](math.dist(za[i].tolist(), zp[i].tolist()))
        q = [of[kernel](math.dist(za[i].tolist(), zn[i, k].tolist())) for k in range(4)]
        joint = -math.log(p / (p + sum(q)))
        expected.append(joint if negatives == "joint" else sum(-math.log(p / (p + x)) for x in q))
    np.testing.assert_allclose(Sare(kernel, negatives)(za, zp, zn), expected, rtol=1e-9)


def test_regressions_onto_overlap():
    za, zb, psi = unit(N, DIM), unit(N, DIM, seed=1), torch.linspace(0, 1, N, dtype=torch.float64)
    d = [math.dist(a, b) for a, b in zip(za.tolist(), zb.tolist(), strict=True)]
    np.testing.assert_allclose(
        OverlapRegression(1.5)(za, zb, psi), [(x / 1.5 - (1 - p)) ** 2 for x, p in zip(d, psi.tolist(), strict=True)]
    )


@pytest.fixture
def walks(tmp_path):
    """Four walks up and down one street."""
    lines = ["image,easting,northing,heading,group"]
    lines += [f"w{w}_{i}.jpg,{4 * i},{w},{90 + 3 * w},walk{w}" for w in range(4) for i in range(40)]
    (tmp_path / "street.csv").write_text("\n".join(lines) + "\n")
    return datasets.load("table", tmp_path / "street.csv", "all")


@pytest.mark.parametrize("partners", ["any", "other_groups"])
def test_a_batch_of_lists_holds_all_its_pairs_with_their_overlap(walks, partners):
    labels, loss = FovOverlap(radius_m=30.0)(*walks), ListwiseSoftmax()
    batches = AllPairs(size=24, places=3, partners=partners)
    batch = batches.sampler(labels, walks, 0, loss=loss, graphs={}).batch(0, 1)
    assert batch.psi.shape == batch.known.shape == (24, 24)
    group = walks.queries.group[batch.queries]
    for i in range(24):
        for j in range(24):
            psi = labels.lookup(batch.queries[i], batch.database[j])
            assert batch.psi[i, j] == psi
            alike = partners == "other_groups" and group[i] == group[j] and psi > 0
            assert batch.known[i, j] == (i != j and not alike)
    wanted = BatchImages.of(batch, one_set=True)
    z = unit(len(wanted), DIM)
    expected = loss(z[wanted.left], z[wanted.right], torch.from_numpy(batch.psi), torch.from_numpy(batch.known)).sum()
    torch.testing.assert_close(wanted.loss(loss, z), expected)
    other = replace(batch, queries=batch.queries + 1, database=batch.database + 1)
    again = batch.relabelled(other.queries, other.database, labels)
    np.testing.assert_array_equal(again.psi, labels.lookup(other.queries[:, None], other.database[None, :]))


@pytest.mark.parametrize("gap", [0.1, None])
def test_batch_multi_similarity_is_the_one_that_peers_train_with(gap):
    """Loss and gradient of pytorch-metric-learning's loss and miner, as MixVPR, SALAD and BoQ set them."""
    library = pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning import distances, miners
    from pytorch_metric_learning import losses as theirs

    assert library
    cosine = distances.DotProductSimilarity()
    raw = torch.randn(24, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    place = torch.arange(6).repeat_interleave(4)
    z = torch.nn.functional.normalize(raw, dim=1)
    pairs = None if gap is None else miners.MultiSimilarityMiner(epsilon=gap, distance=cosine)(z, place)
    expected = theirs.MultiSimilarityLoss(alpha=1.0, beta=50, base=0.0, distance=cosine)(z, place, pairs)
    psi = (place[:, None] == place).double()
    found = BatchMultiSimilarity(mining_gap=gap)(z, z, psi, ~torch.eye(24, dtype=torch.bool)).mean()
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(loss, raw, retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_graded_batch_multi_similarity_is_the_plain_one_for_yes_and_no(lists):
    za, zb, psi, known = lists
    yes_no = (psi >= 0.5).double()
    plain, graded = (BatchMultiSimilarity(graded=g)(za, zb, yes_no, known) for g in (False, True))
    torch.testing.assert_close(plain, graded)
    assert not torch.allclose(plain, BatchMultiSimilarity(graded=True)(za, zb, psi, known))
