"""Pair losses against their closed forms, loops and another library."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.losses import Contrastive, GeneralizedContrastive, SoftContrastive


def unit(n, dim, seed, spread=1.0):
    """n descriptors around one direction; a small spread makes pairs fall inside the margin."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, dim, generator=generator, dtype=torch.float64)
    noise = spread * torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(centre + noise, dim=-1)


def pairs(n=40, dim=16, seed=0):
    spread = torch.linspace(0.02, 1.5, n, dtype=torch.float64)[:, None]
    za, zb = unit(n, dim, seed, spread), unit(n, dim, seed, spread * 0.5)
    return za.requires_grad_(), zb.requires_grad_()


def loop_contrastive(za, zb, weight, margin):
    out = []
    for a, b, w in zip(za.tolist(), zb.tolist(), weight, strict=True):
        d = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
        out.append(0.5 * w * d**2 + 0.5 * (1 - w) * max(margin - d, 0) ** 2)
    return torch.tensor(out, dtype=torch.float64)


def loop_soft_contrastive(za, zb, psi, alpha, beta, base):
    out = []
    for a, b, p in zip(za.tolist(), zb.tolist(), psi, strict=True):
        s = max(sum(x * y for x, y in zip(a, b, strict=True)), 0)
        pull = math.log(1 + math.exp(-alpha * (p * s - base))) / alpha if p > 0 else 0
        push = math.log(1 + math.exp(beta * ((1 - p) * s - base))) / beta if p < 1 else 0
        out.append(pull + push)
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("margin", [0.5, 1.0, 1.3])
def test_contrastive_and_gcl_equal_a_loop(margin):
    za, zb = pairs()
    psi = torch.rand(len(za), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    psi[:4] = torch.tensor([0, 1, 0.5, 0.4999999], dtype=torch.float64)
    binary = [float(p >= 0.5) for p in psi.tolist()]
    torch.testing.assert_close(
        GeneralizedContrastive(margin)(za, zb, psi).detach(), loop_contrastive(za, zb, psi.tolist(), margin)
    )
    torch.testing.assert_close(Contrastive(margin)(za, zb, psi).detach(), loop_contrastive(za, zb, binary, margin))


def test_soft_contrastive_equals_a_loop():
    za, zb = pairs(seed=2)
    psi = torch.linspace(0, 1, len(za), dtype=torch.float64)
    for loss in (SoftContrastive(), SoftContrastive(3.0, 20.0, 0.6)):
        expected = loop_soft_contrastive(za, zb, psi.tolist(), loss.alpha, loss.beta, loss.base)
        torch.testing.assert_close(loss(za, zb, psi).detach(), expected)


def at_distance(d):
    """Two unit descriptors d apart."""
    angle = 2 * math.asin(d / 2)
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    return a, torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(psi=st.floats(0, 1), d=st.floats(1e-3, 1.9), margin=st.floats(0.05, 1.5))
def test_gcl_derivative_has_its_closed_form(psi, d, margin):
    a, b = at_distance(d)
    b.requires_grad_()
    value = GeneralizedContrastive(margin)(a, b, torch.tensor([psi], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(value.sum(), b)
    along = float((gradient * (b - a)).sum().detach()) / d
    expected = d + margin * (psi - 1) if d < margin else d * psi
    assert along == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("psi", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_gcl_is_smallest_at_the_distance_that_tells_the_overlap(psi):
    margin, distances = 0.5, np.linspace(0.001, 1.0, 1000)
    values = [
        float(GeneralizedContrastive(margin)(*at_distance(d), torch.tensor([psi], dtype=torch.float64)))
        for d in distances
    ]
    assert distances[int(np.argmin(values))] == pytest.approx(margin * (1 - psi), abs=1e-3)


@pytest.mark.parametrize("kind", [Contrastive, GeneralizedContrastive])
@pytest.mark.parametrize("psi", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("gap", [0.0, 1e-30, 1e-12])
def test_almost_identical_descriptors_pull_no_harder_than_the_margin(kind, psi, gap):
    za = torch.tensor([[1.0, 0.0]], dtype=torch.float32, requires_grad=True)
    zb = torch.tensor([[1.0, gap]], dtype=torch.float32)
    (gradient,) = torch.autograd.grad(kind(0.5)(za, zb, torch.tensor([psi])).sum(), za)
    assert torch.isfinite(gradient).all()
    assert gradient.norm() <= 0.5 + 1e-6
    if gap == 0:
        assert not gradient.any()


def test_values_and_gradients_equal_pytorch_metric_learning():
    pml = pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.reducers import DoNothingReducer

    assert pml
    za, zb = pairs(seed=6)
    margin, n = 0.8, len(za)
    positive = torch.arange(n) % 2 == 0
    anchors = torch.arange(n)
    peer = ContrastiveLoss(
        pos_margin=0, neg_margin=margin, distance=LpDistance(normalize_embeddings=False), reducer=DoNothingReducer()
    )
    indices = (anchors[positive], anchors[positive], anchors[~positive], anchors[~positive])
    parts = peer(za, indices_tuple=indices, ref_emb=zb)
    theirs = torch.zeros(n, dtype=torch.float64)
    # Their terms are d and [τ − d]₊; the closed form takes half of their squares.
    theirs = theirs.index_put((anchors[positive],), 0.5 * parts["pos_loss"]["losses"].square())
    theirs = theirs.index_put((anchors[~positive],), 0.5 * parts["neg_loss"]["losses"].square())
    ours = Contrastive(margin)(za, zb, positive.double())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    for mine, other in zip(
        torch.autograd.grad(ours.sum(), (za, zb)), torch.autograd.grad(theirs.sum(), (za, zb)), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
