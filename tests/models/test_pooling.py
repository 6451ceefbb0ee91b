"""Plain poolings against their formulas, and GeM where half precision would break it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.models import POOLS, ModelConfig, PlaceModel
from covis.models.pooling.means import GEM_RANGE, GeneralizedMean

GRID = lambda: (3, 4)  # noqa: E731


def made(name, channels=5):
    torch.manual_seed(0)
    return POOLS[name](channels, GRID)


def features(channels=5, batch=2):
    return torch.randn(batch, channels, 3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "oracle"), [("avg", np.mean), ("max", np.max)])
def test_plain_poolings(name, oracle):
    x = features()
    np.testing.assert_allclose(made(name)(x, x[..., 0, 0]), oracle(x.numpy(), axis=(2, 3)), rtol=1e-6)


def test_token_is_the_backbones_own_summary():
    summary = torch.randn(2, 5)
    assert torch.equal(made("token")(features(), summary), summary)


@settings(max_examples=60, deadline=None)
@given(st.floats(*GEM_RANGE), st.floats(-4, 4), st.integers(0, 1000))
def test_gem_is_the_generalised_mean(p, log_scale, seed):
    x = np.random.default_rng(seed).normal(0.5, 1, (2, 3, 3, 4)) * 10**log_scale
    pool = GeneralizedMean(3, GRID)
    pool.p.data.fill_(p)
    p = pool.p.item()
    expected = np.zeros((2, 3))
    for b in range(2):
        for c in range(3):
            values = np.maximum(x[b, c].ravel(), 1e-6).astype(np.longdouble)
            expected[b, c] = float(np.mean(values**p) ** (1 / p))
    got = pool(torch.tensor(x, dtype=torch.float32), torch.zeros(2, 3)).detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=2e-4)


def test_gem_gradient_is_that_of_the_formula():
    x = torch.rand(2, 3, 2, 2, dtype=torch.float64).add(0.1).requires_grad_()
    pool = GeneralizedMean(3, GRID)
    got = torch.autograd.grad(pool(x.float(), x[..., 0, 0]).pow(2).sum(), [x, pool.p])
    p = torch.full((1,), 3.0, dtype=torch.float64, requires_grad=True)
    naive = x.flatten(2).pow(p).mean(-1).pow(1 / p)
    expected = torch.autograd.grad(naive.pow(2).sum(), [x, p])
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [1e-30, 0.0, -3.0, 41.0, 6e4, 1e30])
def test_gem_neither_overflows_nor_vanishes(value):
    x = torch.full((1, 2, 3, 4), value)
    x[0, 0, 0, 0] = 1e37  # beside which the others are nothing
    x.requires_grad_()
    pool = GeneralizedMean(2, GRID)
    out = pool(x, x[..., 0, 0])
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert (out > 0).all()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(pool.p.grad).all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gem", "avg", "netvlad16"])
def test_pooling_stays_in_float32_under_autocast(name, kind):
    x = features(8).abs() * 40
    pool = made(name, 8)
    expected = pool(x, x[..., 0, 0])
    with torch.autocast("cpu", dtype=kind):
        got = pool(x, x[..., 0, 0])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # half precision is off by 1e-3


def test_an_exponent_out_of_range_is_held_at_the_border():
    pool = GeneralizedMean(5, GRID)
    x = features().abs()
    for p, held in ((-2.0, GEM_RANGE[0]), (900.0, GEM_RANGE[1])):
        pool.p.data.fill_(p)
        out = pool(x, x[..., 0, 0])
        pool.p.data.fill_(held)
        torch.testing.assert_close(out, pool(x, x[..., 0, 0]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pool", ["avg", "max", "gem", "token", "netvlad16", "mix", "transport16"])
def test_a_blank_map_gives_finite_descriptors_and_gradients(pool):
    model = PlaceModel.build(ModelConfig("tiny", pool, (64, 64), "none"))
    features = torch.zeros(2, 256, 2, 2, requires_grad=True)
    out = model.suffix(features)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(features.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in model.pool.parameters())
