"""Tuple losses against loops and another library."""

import math

import pytest
import torch

from covis.core.errors import InputError
from covis.losses import (
    LazyQuadruplet,
    LazyTriplet,
    LogRatio,
    MultiSimilarity,
    Quadruplet,
    Triplet,
    TripletHuber,
)


def tuples(batch=8, negatives=4, dim=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    a, p, n = (
        torch.randn(*s, dim, generator=generator, dtype=torch.float64) for s in ((batch,), (batch,), (batch, negatives))
    )
    # Negatives about as near as positives, so that some margins are broken and some are not.
    p, n = a + 0.6 * p, a[:, None] + 0.8 * n
    psi = torch.rand(batch, 1 + negatives, generator=generator, dtype=torch.float64)
    return *(torch.nn.functional.normalize(x, dim=-1).requires_grad_() for x in (a, p, n)), psi


def squared(x, y):
    return sum((u - v) ** 2 for u, v in zip(x, y, strict=True))


def dot(x, y):
    return sum(u * v for u, v in zip(x, y, strict=True))


def loop(one, za, zp, zn, psi):
    rows = zip(za.tolist(), zp.tolist(), zn.tolist(), psi.tolist(), strict=True)
    return torch.tensor([one(*row) for row in rows], dtype=torch.float64)


def hinge(x):
    return max(x, 0.0)


def triplet(a, p, n, _):
    return sum(hinge(squared(a, p) - squared(a, x) + 0.3) for x in n)


def lazy_triplet(a, p, n, _):
    return max(hinge(squared(a, p) - squared(a, x) + 0.3) for x in n)


def quadruplet(a, p, n, _):
    return sum(
        hinge(squared(a, p) - squared(a, x) + 0.3) + hinge(squared(a, p) - squared(n[-1], x) + 0.1) for x in n[:-1]
    )


def lazy_quadruplet(a, p, n, _):
    first = max(hinge(squared(a, p) - squared(a, x) + 0.3) for x in n[:-1])
    return first + max(hinge(squared(a, p) - squared(n[-1], x) + 0.1) for x in n[:-1])


def triplet_huber(a, p, n, psi):
    gap = abs(squared(a, p) / 1.5 - (1 - psi[0]) ** 2)
    penalty = 0.5 * gap**2 if gap <= 0.2 else 0.2 * (gap - 0.1)
    return triplet(a, p, n, psi) + 0.7 * penalty


def log_ratio(a, p, n, psi):
    def log_distance(x):
        return math.log(squared(a, x) + 0.01)

    def log_label(s):
        return math.log((1 - s) ** 2 + 0.01)

    gaps = [
        log_distance(p) - log_distance(x) - log_label(psi[0]) + log_label(s) for x, s in zip(n, psi[1:], strict=True)
    ]
    return sum(g**2 for g in gaps) / len(gaps)


def multi_similarity(a, p, n, _, gap=0.1):
    s, negatives = dot(a, p), [dot(a, x) for x in n]
    pull = math.exp(-2 * (s - 0.5)) if s < max(negatives) + gap else 0
    push = sum(math.exp(50 * (x - 0.5)) for x in negatives if x > s - gap)
    return math.log(1 + pull) / 2 + math.log(1 + push) / 50


@pytest.mark.parametrize(
    ("loss", "oracle"),
    [
        (Triplet(0.3), triplet),
        (LazyTriplet(0.3), lazy_triplet),
        (Quadruplet(0.3, 0.1), quadruplet),
        (LazyQuadruplet(0.3, 0.1), lazy_quadruplet),
        (TripletHuber(0.3, 0.7, 0.2, 1.5), triplet_huber),
        (LogRatio(0.01), log_ratio),
        (MultiSimilarity(), multi_similarity),
    ],
    ids=lambda v: getattr(v, "__name__", type(v).__name__),
)
def test_equals_a_loop(loss, oracle):
    for seed in range(5):
        za, zp, zn, psi = tuples(seed=seed)
        torch.testing.assert_close(loss(za, zp, zn, psi).detach(), loop(oracle, za, zp, zn, psi))


def test_huber_penalty_is_gone_where_distance_tells_the_missing_overlap():
    za, zp, zn, psi = tuples()
    loss = TripletHuber()
    with torch.no_grad():
        psi[:, 0] = 1 - ((za - zp).square().sum(-1) / loss.largest_squared).sqrt()
    torch.testing.assert_close(loss(za, zp, zn, psi), Triplet(loss.margin)(za, zp, zn))


def test_log_ratio_is_zero_where_distances_are_proportional_to_labels():
    a = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    step = torch.tensor([[[0.0, 0.5, 0]], [[0.0, 0, 1.0]]], dtype=torch.float64)
    psi = torch.tensor([[0.75, 0.5]], dtype=torch.float64)
    value = LogRatio(1e-12)(a, a + step[0], (a + step[1])[:, None], psi)
    assert float(value) == pytest.approx(0, abs=1e-9)
    assert float(LogRatio(1e-12)(a, a + 2 * step[0], (a + step[1])[:, None], psi)) > 0.1


def test_a_quadruplet_needs_two_negatives():
    za, zp, zn, _ = tuples(negatives=1)
    for loss in (Quadruplet(), LazyQuadruplet()):
        with pytest.raises(InputError, match="two negatives"):
            loss(za, zp, zn)


def same_gradients(ours, theirs, inputs):
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    for mine, other in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def as_pool(za, zp, zn):
    """All descriptors in one list, with the index triples (anchor, positive, negative) of every tuple."""
    batch, negatives, dim = zn.shape
    pool = torch.cat([za, zp, zn.reshape(-1, dim)])
    anchor = torch.arange(batch).repeat_interleave(negatives)
    return pool, anchor, anchor + batch, 2 * batch + torch.arange(batch * negatives)


def test_triplet_equals_pytorch_metric_learning():
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.reducers import SumReducer

    za, zp, zn, _ = tuples(seed=3)
    pool, *triples = as_pool(za, zp, zn)
    peer = TripletMarginLoss(0.3, distance=LpDistance(normalize_embeddings=False, power=2), reducer=SumReducer())
    same_gradients(Triplet(0.3)(za, zp, zn).sum(), peer(pool, indices_tuple=tuple(triples)), (za, zp, zn))


@pytest.mark.parametrize("gap", [None, 0.1])
def test_multi_similarity_equals_pytorch_metric_learning(gap):
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.distances import DotProductSimilarity
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import MultiSimilarityMiner
    from pytorch_metric_learning.reducers import SumReducer

    assert MultiSimilarityMiner(0.1).epsilon == MultiSimilarity().mining_gap
    za, zp, zn, _ = tuples(seed=4)
    pool, anchor, _, negative = as_pool(za, zp, zn)
    keep_p, keep_n = torch.ones(len(za), dtype=torch.bool), torch.ones(len(anchor), dtype=torch.bool)
    if gap is not None:
        with torch.no_grad():
            s_p, s_n = (za * zp).sum(-1), torch.einsum("bd,bnd->bn", za, zn)
            keep_n = (s_n > s_p[:, None] - gap).flatten()
            keep_p = s_p < s_n.amax(1) + gap
    first = torch.arange(len(za))
    indices = (first[keep_p], first[keep_p] + len(za), anchor[keep_n], negative[keep_n])
    # The default distance normalises once more, which takes the radial part out of the gradient.
    peer = MultiSimilarityLoss(distance=DotProductSimilarity(normalize_embeddings=False), reducer=SumReducer())
    theirs = peer(pool, indices_tuple=indices)
    same_gradients(MultiSimilarity(mining_gap=gap)(za, zp, zn).sum(), theirs, (za, zp, zn))
