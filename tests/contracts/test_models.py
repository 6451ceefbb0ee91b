"""What every backbone and every pooling promises; a new entry of either is picked up automatically."""

import io

import pytest
import torch

from covis.models import POOLS, ModelConfig, PlaceModel, backbones

PIXELS = (64, 64)
KINDS = (
    "tiny", "vgg16", "densenet161", "mobilenetv2_100", "efficientnet_b0", "convnext_atto",
    "vit_small_patch14_reg4_dinov2", "vit_small_patch16_dinov3",
)  # fmt: skip
"""One backbone of each kind of network."""


def _poolings():
    """The first registered name of each kind of pooling."""
    kinds = {}
    for name in POOLS:
        made = POOLS[name]
        kinds.setdefault((getattr(made, "func", made), getattr(made, "keywords", {}).get("soft")), name)
    return list(kinds.values())


POOLINGS = _poolings()
TRAINABLE = ("last2", "last1", "all", "none")

FIRST_TRAINED = {
    ("tiny", "last2"): "layer3",
    ("vgg16", "last2"): "features.17",
    ("vgg16", "last1"): "features.24",
    ("resnet18", "last2"): "layer3",
    ("resnet34", "last2"): "layer3",
    ("resnet50", "last2"): "layer3",
    ("resnet50", "last1"): "layer4",
    ("resnet152", "last2"): "layer3",
    ("resnext101_32x8d", "last2"): "layer3",
    ("densenet161", "last2"): "features.denseblock3",
    ("densenet161", "last1"): "features.denseblock4",
    ("mobilenetv2_100", "last2"): "blocks.5",
    ("mobilenetv3_small_100", "last2"): "blocks.4",
    ("efficientnet_b0", "last2"): "blocks.5",
    ("convnext_atto", "last2"): "stages.2",
    ("vit_small_patch14_reg4_dinov2", "last2"): "blocks.10",
    ("vit_small_patch14_reg4_dinov2", "last1"): "blocks.11",
    ("vit_small_patch14_dinov2", "last2"): "blocks.10",
    ("vit_tiny_patch16_224", "last2"): "blocks.10",
    ("vit_small_patch16_dinov3", "last2"): "blocks.10",
}


def create(name):
    torch.manual_seed(0)
    made = backbones.create_backbone(name, PIXELS)
    with torch.no_grad():  # the library starts some branches at zero; here every one must count
        for parameter in made.parameters():
            if parameter.abs().max() < 1e-3:
                parameter.fill_(0.1)
    return made


@pytest.fixture(scope="module", params=KINDS)
def backbone(request):
    return create(request.param)


@pytest.fixture(scope="module", params=backbones.RECOMMENDED_BACKBONES)
def recommended(request):
    return create(request.param)


def model_on(backbone, pool="gem", trainable="last2"):
    size = backbone.fit(PIXELS)
    return PlaceModel.around(backbone, ModelConfig(backbone.name, pool, size, trainable), seed=3)


def images(model, count=2):
    pixels = torch.randint(0, 256, (count, 3, *model.config.image_size), generator=torch.Generator().manual_seed(1))
    return model.normalise(pixels.to(torch.uint8))


def copies(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def changed(tensors, before):
    return {name for name, tensor in tensors.items() if not torch.equal(tensor, before[name])}


def check_descriptors(model, together, alone):
    assert together.shape == (2, model.dim)
    assert together.dtype == torch.float32
    torch.testing.assert_close(together.norm(dim=1), torch.ones(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(together[:1], alone, atol=2e-5, rtol=0)
    assert not torch.allclose(together[0], together[1], atol=1e-6), "two images, one descriptor"


@pytest.mark.parametrize("pool", ["gem", "token"])
def test_images_give_unit_vectors_whatever_the_batch(backbone, pool):
    model = model_on(backbone, pool)
    x = images(model)
    with torch.inference_mode():
        check_descriptors(model, model(x), model(x[:1]))


@pytest.mark.parametrize("pool", POOLINGS)
def test_every_pooling_gives_unit_vectors_and_learns_alone(pool):
    backbone = create("vit_small_patch14_reg4_dinov2" if pool in ("selavpr", "cricavpr") else "tiny")
    frozen = {**dict(backbone.named_parameters()), **dict(backbone.named_buffers())}
    before = copies(frozen)
    model = model_on(backbone, pool, "none")
    x = images(model)
    with torch.inference_mode():
        check_descriptors(model, model(x), model(x[:1]))
    own = {name: p for name, p in model.train().pool.named_parameters() if p.requires_grad}
    started = copies(own)
    step_on(model, model, x)
    assert {name for name, _ in model.trained_parameters()} == {f"pool.{name}" for name in own}
    assert changed(own, started) or not own
    assert not changed(frozen, before)


@pytest.mark.parametrize("trainable", TRAINABLE)
def test_prefix_and_suffix_make_the_whole(backbone, trainable):
    model = model_on(backbone, trainable=trainable)
    x = images(model)
    features = model.prefix(x)
    kept = features.clone()
    with torch.no_grad():
        torch.testing.assert_close(model.suffix(features), model(x), rtol=0, atol=1e-5)
    assert torch.equal(features, kept), "the suffix wrote into features that may be cached"
    assert not features.requires_grad
    if trainable == "all":
        assert torch.equal(features, x)


@pytest.mark.parametrize("trainable", ["last2", "last1", "all"])
def test_what_learns_is_what_gets_a_gradient_and_frozen_means_frozen(backbone, trainable):
    model = model_on(backbone, trainable=trainable).train()
    learning = {name for name, _ in model.trained_parameters()}
    state = model.state_dict()
    still = {name for name in state if frozen_by_name(model, name)} - learning
    before = copies(state)
    model.zero_grad(set_to_none=True)
    step_on(model, model, images(model))
    got = {name for name, p in model.named_parameters() if p.grad is not None}
    assert got == learning
    moved = changed(model.state_dict(), before)
    assert moved
    assert not moved & still
    model.zero_grad(set_to_none=True)
    model.load_state_dict(before)


def frozen_by_name(model, name):
    steps = model.backbone.plan.steps
    trained = steps[model.backbone.plan.cut(model.config.trainable) :]
    return model.config.trainable != "all" and not any(name.startswith(f"backbone.net.{s}.") for s in trained)


def step_on(model, forward, x):
    parameters = [p for _, p in model.trained_parameters()]
    if not parameters:
        return
    optimiser = torch.optim.SGD(parameters, lr=0.01)
    descriptors = forward(x)
    (descriptors * torch.linspace(-1, 1, descriptors.shape[1])).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in parameters if p.grad is not None)
    optimiser.step()


@pytest.mark.parametrize("trainable", ["last2", "last1"])
def test_the_last_blocks_are_those_that_were_defined(recommended, trainable):
    backbone = recommended
    model = model_on(backbone, trainable=trainable)
    first = FIRST_TRAINED.get((backbone.name, trainable))
    if first is None:
        assert trainable == "last1", f"say in FIRST_TRAINED where the last two blocks of {backbone.name} start"
        return
    names = [name.removeprefix("backbone.net.") for name, _ in model.named_parameters() if name.startswith("backbone.")]
    start = next(i for i, name in enumerate(names) if name.startswith(f"{first}."))
    learning = {name.removeprefix("backbone.net.") for name, _ in model.trained_parameters()}
    assert learning - {f"pool.{n}" for n, _ in model.pool.named_parameters()} == set(names[start:])


def test_the_chain_of_steps_is_the_networks_own_forward_pass(recommended):
    backbone = recommended
    assert backbone.plan.block_starts, f"{backbone.name} is not taken apart"
    x = images(model_on(backbone))
    with torch.inference_mode():
        torch.testing.assert_close(backbone.eval()(x), backbone.net.forward_features(x), rtol=0, atol=1e-5)


def test_saved_and_loaded_it_is_the_same_model(backbone, tmp_path):
    model = model_on(backbone)
    x = images(model)
    model.save(tmp_path / "model")
    loaded = PlaceModel.load(tmp_path / "model")
    with torch.inference_mode():
        torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=1e-5)
    assert loaded.fingerprint() == model.fingerprint()
    assert loaded.prefix_fingerprint() == model.prefix_fingerprint()
    assert loaded.config == model.config


@pytest.mark.parametrize("pool", POOLINGS)
def test_every_pooling_survives_the_disk_and_travels_to_other_processes(pool, tmp_path):
    model = PlaceModel.build(ModelConfig("tiny", pool, (64, 96)), seed=5)
    x = images(model)
    model.save(tmp_path / "model")
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (PlaceModel.load(tmp_path / "model"), torch.load(buffer, weights_only=False)):
        saved = model.state_dict()
        assert all(torch.equal(tensor, saved[name]) for name, tensor in other.state_dict().items())
        with torch.inference_mode():  # kernels may differ with the layout of the tensors they are given
            torch.testing.assert_close(other(x), model(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pool", POOLINGS)
def test_a_seed_decides_the_weights_and_leaves_the_callers_random_state_alone(pool):
    config = ModelConfig("tiny", pool, PIXELS)
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    one = PlaceModel.build(config, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert one.fingerprint() == PlaceModel.build(config, seed=1).fingerprint()
    assert one.fingerprint() != PlaceModel.build(config, seed=2).fingerprint()
