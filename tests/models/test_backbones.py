"""The adapter: sizes, strides, cuts, and what it refuses."""

import pytest
import torch
from torch.nn import functional

from covis.core.errors import InputError
from covis.models import ModelConfig, PlaceModel, backbone_names, backbones
from covis.models.plan import WHOLE, Plan


def test_names_hold_our_own_and_the_librarys():
    names = backbone_names()
    assert {"tiny", "resnet50", "vgg16", "vit_small_patch14_reg4_dinov2"} <= set(names)
    assert set(backbones.RECOMMENDED_BACKBONES) <= set(names)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'resnet50'"):
        backbones.create_backbone("resnet5O", (64, 64))


def test_a_name_may_carry_its_weights_tag():
    assert backbones.create_backbone("resnet18.tv_in1k", (64, 64)).channels == 512


def test_the_length_of_a_descriptor_is_asked_of_the_network():
    for name, channels in {"tiny": 256, "resnet18": 512, "vit_tiny_patch16_224": 192, "mobilenetv2_100": 1280}.items():
        assert backbones.create_backbone(name, (64, 64)).channels == channels


@pytest.mark.parametrize(
    ("asked", "given"), [((224, 224), (224, 224)), ((160, 150), (154, 154)), ((480, 640), (476, 644))]
)
def test_images_for_a_transformer_are_whole_patches(asked, given):
    backbone = backbones.create_backbone("vit_small_patch14_reg4_dinov2", asked)
    assert backbone.fit(asked) == given
    model = PlaceModel.around(backbone, ModelConfig(backbone.name, "token", asked))
    assert model.config.image_size == model.preprocessing.image_size == given


def test_a_transformer_takes_other_sizes_but_only_whole_patches():
    model = PlaceModel.build(ModelConfig("vit_tiny_patch16_224", "gem", (64, 64), "last1"))
    x = torch.rand(1, 3, 96, 64)
    with torch.inference_mode():
        torch.testing.assert_close(model(x), model.suffix(model.prefix(x), grid=(6, 4)), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="multiples of 16 × 16"):
        model(torch.rand(1, 3, 60, 64))


def test_convolutional_networks_take_any_size():
    model = PlaceModel.build(ModelConfig("tiny", "gem", (64, 64)))
    with torch.inference_mode():
        assert model(torch.rand(2, 3, 75, 131)).shape == (2, 256)


def test_a_window_transformer_with_channels_last_is_understood():
    model = PlaceModel.build(ModelConfig("swin_tiny_patch4_window7_224", "gem", (64, 64), "last1"))
    x = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        space = model.local_features(x)
        own = model.backbone.net.forward_features(x)
    assert space.shape == (2, 768, 2, 2)
    torch.testing.assert_close(space, own.permute(0, 3, 1, 2), rtol=1e-6, atol=1e-6)


def test_a_network_that_cannot_be_taken_apart_runs_whole():
    backbone = backbones.create_backbone("beit_base_patch16_224", (64, 64))
    assert backbone.plan == Plan((WHOLE,), ())
    assert backbone.channels == 768
    with pytest.raises(InputError, match='0 blocks are known; use fewer, "all" or "none"'):
        backbone.plan.cut("last2")
    model = PlaceModel.around(backbone, ModelConfig(backbone.name, "token", (64, 64), "none")).train()
    assert not model.backbone.net.training
    assert not list(model.trained_parameters())


def test_strides_of_2015():
    today, then = (PlaceModel.build(ModelConfig("resnet50", "avg", (64, 64), stride_on=s)) for s in ("conv2", "conv1"))
    for parameter in today.parameters():  # the library starts the last BatchNorm of each block at zero
        torch.nn.init.normal_(parameter, std=0.05)
    then.load_state_dict(today.state_dict())
    x = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        a, b = today.local_features(x), then.local_features(x)
    assert a.shape == b.shape == (1, 2048, 2, 2)
    assert not torch.allclose(a, b)
    assert today.fingerprint() != then.fingerprint()
    block = then.backbone.net.layer3[0]
    assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    with pytest.raises(InputError, match="bottleneck"):
        backbones.create_backbone("resnet18", (64, 64), "conv1")


def test_heads_are_gone():
    names = backbones.create_backbone("resnet18", (64, 64)).net.state_dict()
    assert not any(name.startswith("fc") for name in names)
    assert not any(
        "head" in name for name in backbones.create_backbone("vit_tiny_patch16_224", (64, 64)).net.state_dict()
    )


def test_a_size_that_a_network_refuses_is_one_line():
    with pytest.raises(InputError, match="does not take images of 32 × 32 pixels"):
        backbones.create_backbone("inception_v3", (32, 32))


@pytest.mark.parametrize(
    ("name", "blocks", "channels"),
    [("vit_tiny_patch16_224", 8, 192), ("mobilenetv2_100", 5, 96), ("resnet18", 3, 256), ("vgg16", 4, 512)],
)
def test_a_backbone_ends_after_the_blocks_asked_for(name, blocks, channels):
    torch.manual_seed(0)
    whole = backbones.create_backbone(name, (64, 64)).eval()
    short = backbones.create_backbone(name, (64, 64), blocks=blocks).eval()
    short.net.load_state_dict(whole.net.state_dict(), strict=False)
    x = torch.randn(1, 3, 64, 64)
    stop = whole.plan.block_starts[blocks]
    with torch.inference_mode():
        torch.testing.assert_close(short(x), whole.run(x, 0, stop, whole.grid((64, 64))), rtol=0, atol=1e-5)
    assert short.channels == channels
    assert short.plan.cut("last1") == whole.plan.block_starts[blocks - 1]
    assert sum(p.numel() for p in short.parameters()) < sum(p.numel() for p in whole.parameters())


def test_more_blocks_than_there_are_is_an_error():
    with pytest.raises(InputError, match="has 12 blocks"):
        backbones.create_backbone("vit_tiny_patch16_224", (64, 64), blocks=13)


@pytest.mark.parametrize(
    ("name", "levels", "channels"),
    [("vit_tiny_patch16_224", (4, 8, 10), (192, 192, 192)), ("mobilenetv2_100", (4, 5), (64, 96))],
)
def test_features_of_several_blocks_are_joined(name, levels, channels):
    torch.manual_seed(0)
    whole = backbones.create_backbone(name, (64, 64)).eval()
    joined = backbones.create_backbone(name, (64, 64), levels=levels).eval()
    joined.net.load_state_dict(whole.net.state_dict(), strict=False)
    x, grid = torch.randn(2, 3, 64, 64), whole.grid((64, 64))
    with torch.inference_mode():
        space, summary = joined.to_map(joined(x), grid)
        ends = [whole.plan.block_starts[level] for level in levels]
        alone = [whole.to_map(whole.run(x, 0, end, grid), grid) for end in ends]
    torch.testing.assert_close(space, torch.cat([m for m, _ in alone], 1), rtol=0, atol=1e-5)
    assert torch.allclose(summary, torch.cat([s for _, s in alone], 1), atol=1e-6)
    assert joined.level_channels == channels
    assert joined.plan.steps == whole.plan.steps[: ends[-1]]


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        ((3, 4), "differ in size"),
        ((5, 4), "in their order"),
        ((4, 4), "each once"),
        ((0, 4), "from 1"),
        ((4, 9), "has 7"),
    ],
)
def test_levels_that_cannot_be_joined_are_errors(levels, reason):
    with pytest.raises(InputError, match=reason):
        backbones.create_backbone("mobilenetv2_100", (64, 64), levels=levels)


@pytest.mark.parametrize("trainable", ["none", "last2"])
def test_a_class_token_alone_is_what_the_whole_last_block_gives(trainable):
    model = PlaceModel.build(ModelConfig("vit_tiny_patch16_224", "token", (48, 64), trainable), seed=3)
    x = torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    for layer in model.backbone.net.blocks[-1].modules():
        if getattr(layer, "bias", None) is not None:  # they start as zeros
            layer.bias.data = torch.randn(layer.bias.shape, generator=torch.Generator().manual_seed(2))
    expected = functional.normalize(model.backbone.net.forward_features(x)[:, 0])
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(model.suffix(model.prefix(x)), expected, rtol=0, atol=1e-6)
    if trainable == "last2":
        layer = model.backbone.net.blocks[-1].attn.qkv
        direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
        both = [
            torch.autograd.grad((out * direction).sum(), (layer.weight, layer.bias)) for out in (model(x), expected)
        ]
        for ours, whole in zip(*both, strict=True):
            torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-6)


def test_blocks_whose_tokens_meet_outside_the_attention_are_run_whole():
    model = PlaceModel.build(ModelConfig("vit_small_patch14_cricavpr", "token", (56, 56)), seed=3)
    x = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = functional.normalize(model.backbone.net.forward_features(x)[:, 0])
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-6)


def test_a_densenet_may_end_with_its_norm_as_torchvisions_features_do():
    backbones.import_timm()
    from torchvision.models import densenet121

    theirs = densenet121(weights=None).eval()
    ours = backbones.create_backbone("densenet121", (64, 64), final_norm=False).eval()
    state = {name: t for name, t in theirs.state_dict().items() if name.startswith("features.")}
    ours.net.load_state_dict(state)
    pixels = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = theirs.features(pixels)
        torch.testing.assert_close(ours(pixels), features, atol=1e-5, rtol=1e-5)
    assert (features < 0).any()
