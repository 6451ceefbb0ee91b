"""What every registered loss owes its users; a new entry is picked up automatically."""

import dataclasses
import itertools
import json

import pytest
import torch

from covis.core.errors import InputError
from covis.losses import LOSSES, ListLoss, PairLoss, TupleLoss

BATCH, NEGATIVES, OTHERS, DIM = 6, 3, 7, 5
EVERY = pytest.mark.parametrize("name", sorted(LOSSES))


def unit(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1).to(
        dtype
    )


def arguments(loss, dtype=torch.float64, seed=0, batch=BATCH):
    """Descriptors that need a gradient, and ψ."""
    if isinstance(loss, PairLoss):
        psi = torch.linspace(0, 1, batch, dtype=dtype)
        return [unit(batch, DIM, dtype=dtype, seed=seed + k).requires_grad_() for k in range(2)], psi
    if isinstance(loss, ListLoss):
        psi = torch.linspace(0, 1, batch * OTHERS, dtype=dtype).reshape(OTHERS, batch).T.contiguous()
        return [unit(n, DIM, dtype=dtype, seed=seed + n).requires_grad_() for n in (batch, OTHERS)], psi
    shapes = [(batch, DIM), (batch, DIM), (batch, NEGATIVES, DIM)]
    psi = torch.rand(batch, 1 + NEGATIVES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return [unit(*s, dtype=dtype, seed=seed + k).requires_grad_() for k, s in enumerate(shapes)], psi


@EVERY
def test_is_a_frozen_value_that_json_can_state(name):
    loss = LOSSES[name]()
    assert isinstance(loss, PairLoss | TupleLoss | ListLoss)
    fields = json.loads(json.dumps(dataclasses.asdict(loss)))
    assert LOSSES[name](**fields) == loss
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(loss, next(iter(fields)), 1.0)


@EVERY
def test_gives_one_finite_loss_each_without_reducing(name):
    loss = LOSSES[name]()
    z, psi = arguments(loss)
    whole = loss(*z, psi)
    assert whole.shape == (BATCH,)
    assert torch.isfinite(whole).all()
    assert (whole >= 0).all()
    alone = torch.cat([loss(*_one(loss, z, k), psi[k : k + 1]) for k in range(BATCH)])
    torch.testing.assert_close(whole, alone, rtol=1e-12, atol=1e-12)


def _one(loss, z, k):
    """The k-th of a batch; a query of a list keeps all that it is compared with."""
    return [z[0][k : k + 1], z[1]] if isinstance(loss, ListLoss) else [x[k : k + 1] for x in z]


@EVERY
def test_gradient_is_the_derivative(name):
    loss = LOSSES[name]()
    for seed in (1, 2, 3):
        z, psi = arguments(loss, seed=seed)
        assert torch.autograd.gradcheck(lambda *x, psi=psi: loss(*x, psi), z)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_identical_descriptors_have_a_finite_gradient(name, dtype):
    loss = LOSSES[name]()
    z, psi = arguments(loss, dtype=dtype)
    with torch.no_grad():
        for x in z:
            x.copy_(unit(DIM, dtype=dtype, seed=9).expand_as(x))
    for level in (torch.zeros_like(psi), torch.ones_like(psi), torch.full_like(psi, 0.5), psi):
        total = loss(*z, level).sum()
        assert torch.isfinite(total)
        for gradient in torch.autograd.grad(total, z, retain_graph=True):
            assert torch.isfinite(gradient).all()


@EVERY
def test_half_precision_descriptors_are_compared_in_float32(name):
    loss = LOSSES[name]()
    z, psi = arguments(loss, dtype=torch.float16)
    out = loss(*z, psi)
    assert out.dtype == torch.float32
    torch.testing.assert_close(
        out, loss(*[x.float() for x in z], psi.float() if psi.is_floating_point() else psi), rtol=1e-6, atol=1e-6
    )


@EVERY
def test_a_step_against_the_gradient_lowers_it(name):
    loss = LOSSES[name]()
    z, psi = arguments(loss, seed=4)
    before = loss(*z, psi).sum()
    gradients = torch.autograd.grad(before, z)
    after = loss(*[x - 1e-4 * g for x, g in zip(z, gradients, strict=True)], psi).sum()
    assert after < before


@EVERY
def test_a_number_is_refused_by_its_name_or_gives_a_finite_loss(name):
    kind = LOSSES[name]
    numbers = [f.name for f in dataclasses.fields(kind) if type(getattr(kind(), f.name)) in (int, float)]
    for field, value in itertools.product(numbers, (0.0, -1.0)):
        try:
            loss = kind(**{field: value})
        except InputError:
            with pytest.raises(InputError, match=field):
                kind(**{field: float("nan")})
        else:
            z, psi = arguments(loss)
            assert torch.isfinite(loss(*z, psi)).all(), f"{field} = {value}; refuse it with covis.core.settings.above"


@pytest.mark.parametrize("name", sorted(n for n, kind in LOSSES.items() if issubclass(kind, TupleLoss)))
def test_graded_tuple_losses_ask_for_psi(name):
    loss = LOSSES[name]()
    z, psi = arguments(loss)
    if loss.graded:
        with pytest.raises(InputError, match="psi"):
            loss(*z)
    else:
        torch.testing.assert_close(loss(*z), loss(*z, psi))
