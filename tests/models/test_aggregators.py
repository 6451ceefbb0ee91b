"""Learned aggregators against naive loops, and NetVLAD's start from clusters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from covis.core.errors import InputError
from covis.models import POOLS, ModelConfig, PlaceModel
from covis.models.pooling.transport import transport
from covis.models.pooling.vlad import ASSIGNMENT_RATIO, NetVlad

GRID = lambda: (3, 4)  # noqa: E731


def features(channels=6, batch=2):
    return torch.randn(batch, channels, 3, 4, generator=torch.Generator().manual_seed(0))


def unit(v):
    return v / max(np.linalg.norm(v), 1e-12)


def test_netvlad_sums_softly_assigned_residuals():
    torch.manual_seed(0)
    pool = NetVlad(6, GRID, clusters=3)
    x = features()
    centres, weight = pool.centres.detach().numpy(), pool.assign.weight.detach().numpy()
    expected = []
    for image in x.numpy().reshape(2, 6, 12):
        residuals = np.zeros((3, 6))
        for local in image.T:
            local = unit(local)
            likely = np.exp(weight @ local)
            for k in range(3):
                residuals[k] += likely[k] / likely.sum() * (local - centres[k])
        expected.append(np.concatenate([unit(r) for r in residuals]))
    np.testing.assert_allclose(pool(x, x[..., 0, 0]).detach().numpy(), expected, atol=1e-5)


def test_netvlad_starts_at_the_clusters_of_the_data():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(16, 20))
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    local = (truth[rng.integers(0, 16, 4000)] + 0.01 * rng.normal(size=(4000, 20))).astype(np.float32)
    pool = NetVlad(20, GRID, clusters=16)
    pool.initialise(3 * local, seed=1)
    nearest = np.linalg.norm(pool.centres.detach().numpy()[:, None] - truth, axis=-1).min(0)
    assert (nearest < 0.1).sum() >= 14, "k-means may merge a pair, not more"
    scores = np.sort(pool.assign(torch.as_tensor(local)).detach().numpy(), axis=1)
    assert np.exp((scores[:, -1] - scores[:, -2]).mean()) == pytest.approx(ASSIGNMENT_RATIO, rel=0.3)
    again = NetVlad(20, GRID, clusters=16)
    again.initialise(3 * local, seed=1)
    assert torch.equal(again.centres, pool.centres)


def test_netvlad_needs_as_many_features_as_clusters():
    with pytest.raises(InputError, match="10 local features cannot start 16 clusters"):
        NetVlad(4, GRID, clusters=16).initialise(np.ones((10, 4), np.float32), seed=0)


def test_a_model_gathers_local_features_for_its_pooling():
    model = PlaceModel.build(ModelConfig("tiny", "netvlad16", (96, 96)))
    before = model.fingerprint()
    pixels = torch.randint(0, 256, (8, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert model.initialise_pool([pixels[:5], pixels[5:]], seed=2, per_image=5) == 8 * 5
    assert model.fingerprint() != before
    assert all(torch.isfinite(p).all() for p in model.pool.parameters())


def naive_transport(scores, bin_score, rounds=3):
    clusters, count = scores.shape
    plan = np.exp(np.vstack([scores, np.full((1, count), bin_score)]))
    shares = max(count, clusters + 1)
    mass = np.array([1 / shares] * clusters + [(shares - clusters) / shares])
    for _ in range(rounds):
        for k in range(clusters + 1):
            plan[k] *= mass[k] / plan[k].sum()
        for n in range(count):
            plan[:, n] *= 1 / count / plan[:, n].sum()
    return plan[:-1] * count


@pytest.mark.parametrize(("clusters", "count"), [(3, 12), (4, 4), (8, 3), (1, 1)])
def test_transport_balances_rows_and_columns(clusters, count):
    scores = torch.randn(2, clusters, count, generator=torch.Generator().manual_seed(1))
    got = transport(scores, torch.tensor(0.7))
    for plan, score in zip(got.numpy(), scores.numpy().astype(float), strict=True):
        np.testing.assert_allclose(plan, naive_transport(score, 0.7), rtol=1e-4)
    assert (got.sum(1) <= 1 + 1e-5).all(), "no feature gives more than it has"


def test_transport_survives_extreme_scores():
    scores = torch.tensor([[[1e4, -1e4, 0.0], [0.0, 1e4, -1e4]]], requires_grad=True)
    plan = transport(scores, torch.tensor(1.0))
    plan.sum().backward()
    assert torch.isfinite(plan).all()
    assert torch.isfinite(scores.grad).all()


def test_mix_follows_its_definition_and_is_bound_to_one_map_size():
    torch.manual_seed(0)
    pool = POOLS["mix"](6, GRID)
    x = features()
    got = pool(x, x[..., 0, 0]).detach().numpy()
    tensors = {name: t.detach().numpy().astype(float) for name, t in pool.state_dict().items()}
    for image, row in zip(x.numpy().reshape(2, 6, 12).astype(float), got, strict=True):
        mixed = image.copy()
        for layer in range(len(pool.layers)):
            centred = mixed - mixed.mean(1, keepdims=True)
            normal = centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5)
            normal = normal * tensors[f"layers.{layer}.0.weight"] + tensors[f"layers.{layer}.0.bias"]
            hidden = np.maximum(normal @ tensors[f"layers.{layer}.1.weight"].T + tensors[f"layers.{layer}.1.bias"], 0)
            mixed += hidden @ tensors[f"layers.{layer}.3.weight"].T + tensors[f"layers.{layer}.3.bias"]
        fewer = tensors["to_channels.weight"] @ mixed + tensors["to_channels.bias"][:, None]
        rows = fewer @ tensors["to_rows.weight"].T + tensors["to_rows.bias"]
        np.testing.assert_allclose(row, rows.ravel(), atol=1e-5)
    with pytest.raises(InputError, match=r"made for maps of \(3, 4\), not \(4, 4\)"):
        pool(torch.zeros(1, 6, 4, 4), torch.zeros(1, 6))


LEVELS = ModelConfig("vit_tiny_patch16_224", "netvlad16", (64, 64), "none", levels=(4, 6))


def test_levels_are_pooled_apart_and_joined(tmp_path):
    model = PlaceModel.build(LEVELS, seed=3)
    images = torch.randint(0, 255, (4, 3, 64, 64), dtype=torch.uint8)
    assert model.initialise_pool([images] * 8, seed=1) == 4 * 8 * 16
    assert model.dim == 2 * 16 * 192
    x = model.normalise(images)
    with torch.inference_mode():
        both = model(x)
        space, summary = model.pooling_input(x)
        apart = [
            functional.normalize(pool(space[:, part], summary[:, part]), dim=-1)
            for pool, part in zip(model.pool.levels, (slice(192), slice(192, None)), strict=True)
        ]
    assert torch.allclose(both, functional.normalize(torch.cat(apart, 1), dim=-1), atol=1e-6)
    assert torch.allclose(model.suffix(model.prefix(x)), both, atol=1e-6)
    model.save(tmp_path / "model")
    again = PlaceModel.load(tmp_path / "model")
    assert again.config == model.config
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=1e-5)
    assert again.fingerprint() == model.fingerprint()


def test_levels_learn_in_the_pooling_alone_or_throughout():
    names = {name.split(".")[0] for name, _ in PlaceModel.build(LEVELS).trained_parameters()}
    assert names == {"pool"}
    whole = PlaceModel.build(replace(LEVELS, trainable="all", pool="gem"))
    assert not whole.pool.has_start
    assert {name.split(".")[0] for name, _ in whole.trained_parameters()} == {"pool", "backbone"}
    whole(torch.randn(2, 3, 64, 64)).sum().backward()
    assert whole.backbone.net.get_submodule("blocks.0").attn.qkv.weight.grad is not None
    with pytest.raises(InputError, match="levels"):
        PlaceModel.build(replace(LEVELS, trainable="last1"))
    with pytest.raises(InputError, match="leave blocks at 0"):
        replace(LEVELS, blocks=6)
