"""Published models: synthetic checkpoints under their authors' names, against the papers' formulas written out plainly."""

import dataclasses
import itertools
import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from covis.core.errors import InputError
from covis.models import PlaceModel, backbones, checkpoints
from covis.models.config import IMAGENET_MEAN, IMAGENET_STD
from covis.models.pooling.transport import ProjectedSalad
from covis.models.published import PUBLISHED

DINO_SIZE = (126, 140)
TESTED = (
    "gcl_resnet50_gem", "cl_resnet50_avg", "sfrs", "convap_resnet50_512", "supervlad", "dinomix", "selavprpp_base", "edtformer", "sage_base", "sage_large", "cosplace_resnet18_512", "netvlad16_vgg16", "gem_resnet50_2048", "gem_vgg16_512", "mixvpr_resnet50_512", "salad",
    "megaloc", "boq_dinov2_12288", "boq_resnet50_16384", "transvpr", "selavpr", "cricavpr", "anyloc_vitg14",
)  # fmt: skip
"""One model of each layout of checkpoints."""


@pytest.fixture(autouse=True)
def drawn_anew():
    """The same random weights whatever ran before."""
    torch.manual_seed(0)


def small(name, backbone, size):
    """The published entry on a smaller network of the same family, so that the test is quick."""
    entry = PUBLISHED[name]
    config = dataclasses.replace(entry.config, backbone=backbone, image_size=size, trainable="all")
    return dataclasses.replace(entry, config=config)


def layout(entry):
    return entry.backbone, entry.pool, tuple(entry.pool_names), tuple(entry.backbone_names), entry.whitening


def test_every_published_layout_is_among_these_tests():
    assert {layout(entry) for entry in PUBLISHED.values()} == {layout(PUBLISHED[name]) for name in TESTED}


def imported(entry, state, tmp_path):
    """The model of a checkpoint, of which every tensor is taken, and every other one refused by name."""
    file = tmp_path / "checkpoint.pth"
    torch.save({"state_dict": state}, file)
    model = checkpoints.fill_published(PlaceModel.skeleton(entry.config), entry, file)
    for part in (entry.backbone, "other."):
        surplus = f"{part if isinstance(part, str) else part[-1]}surplus.weight"
        torch.save({"state_dict": {**state, surplus: torch.ones(3)}}, file)
        with pytest.raises(InputError, match=f"'{surplus}' has no place"):
            checkpoints.fill_published(model, entry, file)
    ours = {(t.numel(), t.max().item(), t.min().item()) for t in model.state_dict().values()}
    for name, tensor in state.items():
        plain = name.removeprefix("module.")
        idle = any(re.fullmatch(pattern, plain) for pattern in entry.unused)
        if not idle and not (entry.whitening and plain.startswith(entry.whitening)):
            assert (tensor.numel(), tensor.max().item(), tensor.min().item()) in ours, name
    return model


def photos(size, count=2):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(0))


def compare(model, x, expected, idle=()):
    """The descriptor is as expected, and depends on every parameter but the `idle` ones."""
    with torch.inference_mode():
        torch.testing.assert_close(model(x), functional.normalize(expected, dim=-1), rtol=1e-4, atol=2e-5)
    with torch.inference_mode(False), torch.enable_grad():
        model.requires_grad_(True)
        described = model(x.clone())
        (described * torch.linspace(-1, 2, described.numel()).reshape(described.shape)).sum().backward()
    unmoved = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not [name for name in unmoved if not name.startswith(tuple(idle))]


def under(prefix, tensors):
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def random_network(name):
    backbones.import_timm()
    import timm

    torch.manual_seed(1)
    net = timm.create_model(name, num_classes=0).eval()
    for parameter in net.parameters():
        if not parameter.any():  # the library starts some scales at zero, which would hide what they multiply
            torch.nn.init.uniform_(parameter, 0.5, 1)
    for buffer_name, buffer in net.named_buffers():
        if buffer_name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    return net


def numbered(net, count):
    """A torchvision-like `Sequential` of the first `count` children, by number."""
    children = list(net.children())[:count]
    return {f"{i}.{k}": v for i, child in enumerate(children) for k, v in child.state_dict().items()}


def after(net, x, last):
    """The network's children up to `last`, one after the other."""
    for name, child in net.named_children():
        x = child(x)
        if name == last:
            return x
    raise AssertionError(last)


@pytest.mark.parametrize("name", ["gcl_resnet50_gem", "cl_resnet50_avg"])
def test_the_methods_own(name, tmp_path):
    entry = small(name, "resnet18", (64, 64))
    net, p = random_network("resnet18"), torch.tensor([2.5])
    state = under("backbone.", numbered(net, 8)) | ({"pool.p": p} if name.endswith("gem") else {})
    model = imported(entry, state, tmp_path)
    x = photos((64, 64))
    with torch.inference_mode():
        features = after(net, x, "layer4")
        p = p if name.endswith("gem") else 1
        compare(model, x, features.clamp(min=1e-6).pow(p).mean((-2, -1)).pow(1 / p))


@pytest.mark.parametrize("name", ["cosplace_resnet18_512", "eigenplaces_resnet18_256"])
def test_cosplace_and_eigenplaces(name, tmp_path):
    entry = small(name, "resnet18", (64, 64))
    net, p = random_network("resnet18"), torch.tensor([2.5])
    linear = nn.Linear(512, int(name.rsplit("_", 1)[1]))
    state = under("backbone.", numbered(net, 8)) | {"aggregation.1.p": p}
    model = imported(entry, state | under("aggregation.3.", linear.state_dict()), tmp_path)
    x = photos((64, 64))
    with torch.inference_mode():
        features = functional.normalize(after(net, x, "layer4"), dim=1)
        compare(model, x, linear(features.clamp(min=1e-6).pow(p).mean((-2, -1)).pow(1 / p)))
    assert model.card["licence"] == "MIT"


@pytest.mark.parametrize("name", ["cosplace_vgg16_64", "eigenplaces_vgg16_512"])
def test_cosplace_and_eigenplaces_on_vgg(name, tmp_path):
    """VGG16 up to conv5_3 without its ReLU, by number."""
    backbones.import_timm()
    from torchvision.models import vgg16

    torch.manual_seed(2)
    net, p, linear = (
        vgg16(weights=None).features[:-2].eval(),
        torch.tensor([2.5]),
        nn.Linear(512, int(name.split("_")[2])),
    )
    state = under("backbone.", net.state_dict()) | {"aggregation.1.p": p}
    model = imported(small(name, "vgg16", (64, 64)), state | under("aggregation.3.", linear.state_dict()), tmp_path)
    x = photos((64, 64))
    with torch.inference_mode():
        features = functional.normalize(net(x), dim=1)
        compare(model, x, linear(features.clamp(min=1e-6).pow(p).mean((-2, -1)).pow(1 / p)))


@pytest.mark.parametrize("name", ["netvlad16_vgg16", "netvlad16_vgg16 with WPCA", "sfrs"])
def test_netvlad_patch_netvlad_and_sfrs(name, tmp_path):
    """VGG16 up to conv5_3 without its ReLU; the projection is a convolution of one pixel over the descriptor."""
    backbones.import_timm()
    from torchvision.models import vgg16

    torch.manual_seed(2)
    entry = small(name.partition(" ")[0], "vgg16", (64, 96))
    clusters = 64 if name == "sfrs" else 16
    encoder = nn.Sequential(*list(vgg16(weights=None).features.children())[:-2]).eval()
    centroids, conv = torch.rand(clusters, 512), nn.Conv2d(512, clusters, 1, bias=False)
    nn.init.normal_(conv.weight)
    wpca = nn.Conv2d(clusters * 512, 24, 1) if name != "netvlad16_vgg16" else None
    state = under(entry.backbone, encoder.state_dict())
    state |= under(entry.pool, {"centroids": centroids, "conv.weight": conv.weight})
    state |= under(entry.whitening, wpca.state_dict()) if wpca else {}
    model = imported(entry, state, tmp_path)
    x = photos((64, 96))
    with torch.inference_mode():
        local = functional.normalize(encoder(x), dim=1)
        share = conv(local).flatten(2).softmax(1)
        residual = local.flatten(2)[:, None] - centroids[None, :, :, None]
        vlad = functional.normalize((residual * share[:, :, None]).sum(-1), dim=2).flatten(1)
        vlad = functional.normalize(vlad, dim=1)
        expected = wpca(vlad[:, :, None, None]).flatten(1) if wpca else vlad
        compare(model, x, expected)
    assert model.dim == (24 if wpca else 16 * 512)


def test_sfrs_sees_colours_without_their_mean_alone():
    mean, std = backbones.normalisation(PUBLISHED["sfrs"].config.backbone)
    np.testing.assert_allclose(mean, [0.48501960784313836, 0.4579568627450961, 0.4076039215686255], atol=1e-6)
    np.testing.assert_allclose(std, [0.00392156862745098] * 3)


def test_a_tensor_without_a_place_is_refused_by_name(tmp_path):
    """pytorch-NetVlad saves a bias of the assignment with `--vladv2`: dropped, it would give other descriptors."""
    backbones.import_timm()
    from torchvision.models import vgg16

    encoder = nn.Sequential(*list(vgg16(weights=None).features.children())[:-2])
    state = under("encoder.", encoder.state_dict()) | {"pool.centroids": torch.rand(16, 512)}
    state |= under("pool.conv.", nn.Conv2d(512, 16, 1).state_dict())
    with pytest.raises(InputError, match=r"pool\.conv\.bias"):
        imported(small("netvlad16_vgg16", "vgg16", (64, 96)), state, tmp_path)


def test_convap(tmp_path):
    entry = small("convap_resnet50_512", "resnet18", (64, 96))
    net, project = random_network("resnet18"), nn.Conv2d(512, 128, 1)
    kept = {k: v for k, v in net.state_dict().items() if not k.startswith("fc")}
    state = under("backbone.model.", kept) | under("aggregator.channel_pool.", project.state_dict())
    model = imported(entry, state, tmp_path)
    x = photos((64, 96))
    with torch.inference_mode():
        space = project(after(net, x, "layer4"))
        rows = [
            torch.stack([half.mean((-2, -1)) for half in (r[..., :2], r[..., 1:])], -1)
            for r in (space[..., :1, :], space[..., 1:, :])
        ]
        compare(model, x, torch.stack(rows, 2).flatten(1))


def test_generalised_mean_with_whitening(tmp_path):
    entry = small("gem_resnet50_2048", "resnet50", (64, 64))
    net, linear, p = random_network("resnet50"), nn.Linear(2048, 2048), torch.tensor([2.9])
    state = under("features.", numbered(net, 8)) | {"pool.p": p} | under("whiten.", linear.state_dict())
    model = imported(entry, state, tmp_path)
    x = photos((64, 64), 1)
    with torch.inference_mode():
        mean = after(net, x, "layer4").clamp(min=1e-6).pow(p).mean((-2, -1)).pow(1 / p)
        compare(model, x, linear(functional.normalize(mean, dim=-1)))


@pytest.mark.parametrize("bias", [False, True], ids=["without", "with a bias of the rows"])
def test_mixvpr(bias, tmp_path):
    entry = small("mixvpr_resnet50_512", "resnet50", (64, 64))
    net = random_network("resnet50")
    mixers = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(4)]
    channels, rows = nn.Linear(1024, 256), nn.Linear(16, 2, bias=bias)
    kept = {k: v for k, v in net.state_dict().items() if not k.startswith(("layer4", "fc"))}
    state = under("backbone.model.", kept)
    for i, mixer in enumerate(mixers):
        state |= under(f"aggregator.mix.{i}.mix.", mixer.state_dict())
    state |= under("aggregator.channel_proj.", channels.state_dict())
    model = imported(entry, state | under("aggregator.row_proj.", rows.state_dict()), tmp_path)
    x = photos((64, 64))
    with torch.inference_mode():
        features = after(net, x, "layer3").flatten(2)
        for mixer in mixers:
            features = features + mixer(features)
        compare(model, x, rows(channels(features.mT).mT).flatten(1))


def dinov2_tokens(net, x, *, norm, blocks=None):
    """DINOv2's own forward: positions stretched by (n + 0.1) / 37, bicubic; no register tokens."""
    rows, columns = x.shape[-2] // 14, x.shape[-1] // 14
    patches = net.patch_embed.proj(x).flatten(2).mT
    side = math.isqrt(net.pos_embed.shape[1] - 1)
    grid = net.pos_embed[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((rows + 0.1) / side, (columns + 0.1) / side)
    stretched = functional.interpolate(grid, scale_factor=scale, mode="bicubic").permute(0, 2, 3, 1).flatten(1, 2)
    positions = torch.cat([net.pos_embed[:, :1], stretched], 1)
    tokens = torch.cat([net.cls_token.expand(len(x), -1, -1), patches], 1) + positions
    for block in net.blocks[:blocks]:
        tokens = block(tokens)
    return (net.norm(tokens) if norm else tokens), rows, columns


@pytest.fixture(scope="module")
def dinov2():
    net = random_network("vit_small_patch14_dinov2")
    with torch.no_grad():
        for parameter in net.parameters():  # the library starts some of them at zero
            parameter.add_(0.02 * torch.randn_like(parameter))
    return net


@pytest.mark.parametrize(("name", "clusters"), [("supervlad", 4), ("supervlad_1cluster", 1)])
def test_supervlad(name, clusters, dinov2, tmp_path):
    entry = small(name, "vit_small_patch14_dinov2", DINO_SIZE)
    conv = nn.Conv2d(384, clusters + (1 if clusters == 4 else 2), 1, bias=False)
    nn.init.normal_(conv.weight)
    state = under("module.backbone.", dinov2.state_dict()) | {"module.aggregation.conv.weight": conv.weight}
    model = imported(entry, state, tmp_path)
    x = photos(DINO_SIZE, 1)
    with torch.inference_mode():
        tokens, rows, columns = dinov2_tokens(dinov2, x, norm=True)
        local = functional.normalize(tokens[:, 1:].mT.unflatten(-1, (rows, columns)), dim=1)
        share = conv(local).softmax(1)[:, :clusters]
        sums = (local[:, None] * share[:, :, None]).sum((-2, -1))
        compare(model, x, functional.normalize(sums, dim=2).flatten(1))


def mul_conv_adapter(state, x, rows, columns):
    """SelaVPR++'s and CricaVPR's adapter, by the names in the published files."""

    def normed(part, x, side):
        x = functional.conv2d(x, state[f"{part}.conv.weight"], state[f"{part}.conv.bias"], padding=side // 2)
        names = ("running_mean", "running_var", "weight", "bias")
        return functional.batch_norm(x, *(state[f"{part}.bn.{name}"] for name in names), eps=1e-3).relu()

    inner = linear(state, "D_fc1", x).relu()
    space = inner[:, 1:].mT.unflatten(-1, (rows, columns))
    parts = [normed("branch1", space, 1)]
    parts += [normed(f"branch{i}.1", normed(f"branch{i}.0", space, 1), side) for i, side in ((2, 3), (3, 5))]
    seen = torch.cat([inner[:, :1], torch.cat(parts, 1).flatten(2).mT], 1)
    return linear(state, "D_fc2", seen + inner)


def side_state(kind, width=384):
    """A side adapter of each of twelve blocks."""
    state = {}
    for i in range(12):
        hidden = width // 2 if kind == "scales" else 4
        parts = {"D_fc1.": nn.Linear(width, hidden), "D_fc2.": nn.Linear(hidden, width)}
        thin, less = hidden // 16, hidden // 4
        convolutions = {
            "branch1": (hidden, hidden // 2, 1),
            "branch2.0": (hidden, thin, 1),
            "branch2.1": (thin, less, 3),
        }
        convolutions |= {"branch3.0": (hidden, thin, 1), "branch3.1": (thin, less, 5)}
        for name, (before, now, side) in convolutions.items() if kind == "scales" else ():
            parts |= {f"{name}.conv.": nn.Conv2d(before, now, side), f"{name}.bn.": nn.BatchNorm2d(now)}
        for name, module in parts.items():
            state |= under(f"adapters.{i}.{name}", module.state_dict())
    # kept small, since each adapter's result goes into the next
    return {k: 0.01 * v if "D_fc2" in k else v for k, v in shaken(state).items()}


def side_tokens(net, state, x, kind):
    """The branch beside DINOv2's blocks, which takes in what each gives."""
    tokens, rows, columns = dinov2_tokens(net, x, norm=False, blocks=0)
    branch = tokens
    for i, block in enumerate(net.blocks):
        tokens = block(tokens)
        own = {k.removeprefix(f"adapters.{i}."): v for k, v in state.items() if k.startswith(f"adapters.{i}.")}
        both = branch + tokens
        if kind == "scales":
            branch = branch + mul_conv_adapter(own, both, rows, columns)
        else:
            branch = both + 0.5 * linear(own, "D_fc2", functional.gelu(linear(own, "D_fc1", both)))
    return net.norm(branch), rows, columns


def test_selavprpp(dinov2, tmp_path):
    size = (126, 126)
    entry = small("selavprpp_base", "vit_small_patch14_selavprpp", size)
    side, first, last, p = side_state("scales"), nn.Linear(384, 384), nn.Linear(384, 2048), torch.tensor([2.7])
    state = under("module.backbone.", dinov2.state_dict() | side) | {"module.aggregation.1.p": p}
    state |= under("module.linear1.", first.state_dict()) | under("module.linear2.", last.state_dict())
    model = imported(entry, state, tmp_path)
    x = photos(size, 1)
    with torch.inference_mode():
        tokens, _, _ = side_tokens(dinov2, side, x, "scales")
        local = functional.normalize(first(tokens[:, 1:]), dim=-1)
        compare(model, x, last(local.clamp(min=1e-6).pow(p).mean(1).pow(1 / p)))


def test_edtformer(dinov2, tmp_path):
    entry = small("edtformer", "vit_small_patch14_edtformer", DINO_SIZE)
    side = side_state("low_rank")
    parts = {"fc.": nn.Linear(384, 384), "channel_proj.": nn.Linear(384, 256), "row_proj.": nn.Linear(64, 16)}
    for i in range(2):
        parts |= {
            f"decoder.layers.{i}.{name}.": nn.MultiheadAttention(384, 1) for name in ("self_attn", "multihead_attn")
        }
        parts |= {f"decoder.layers.{i}.{name}.": nn.LayerNorm(384) for name in ("norm1", "norm2")}
    state = {"queries": torch.randn(1, 64, 384)}
    for prefix, module in parts.items():
        state |= under(prefix, module.state_dict())
    state = shaken(state)
    model = imported(entry, under("backbone.", dinov2.state_dict() | side) | state, tmp_path)
    x = photos(DINO_SIZE, 1)
    with torch.inference_mode():
        memory = linear(state, "fc", side_tokens(dinov2, side, x, "low_rank")[0])
        q = state["queries"]
        for i in range(2):
            at = f"decoder.layers.{i}"
            for part, norm, keys in (("self_attn", "norm1", None), ("multihead_attn", "norm2", memory)):
                q = q + attention(state, f"{at}.{part}", q, q if keys is None else keys, 16)
                q = functional.layer_norm(q, (384,), state[f"{at}.{norm}.weight"], state[f"{at}.{norm}.bias"])
        compare(model, x, linear(state, "row_proj", linear(state, "channel_proj", q).mT).flatten(1))


def test_sage(dinov2, tmp_path):
    """Blocks recalibrated by a power of their values, soft weights, and bilinear sums of 64 clusters of 128 channels."""
    entry = small("sage_base", "vit_small_patch14_sage", DINO_SIZE)
    salads = salad_state(64, 128, 256)
    del salads["dust_bin"]
    parts = {f"backbone.gpn_norms.{i}.projection.": (384, 16, 3) for i in range(4)}
    parts |= {"aggregator.gpn.projection.": (64, 32, 3), "aggregator.soft_weighting.predictor.": (1, 128, 2)}
    state = under("backbone.model.", dinov2.state_dict()) | under("aggregator.", salads)
    for prefix, (width, hidden, second) in parts.items():
        state |= under(f"{prefix}0.", nn.Linear(width, hidden).state_dict())
        state |= under(f"{prefix}{second}.", nn.Linear(hidden, 1).state_dict())
    idle = under("aggregator.single_branch.0.", nn.Conv2d(384, 512, 1).state_dict())
    model = imported(entry, state | idle, tmp_path)
    x = photos(DINO_SIZE, 1)

    def power(prefix, x):
        hidden = linear(state, f"{prefix}.projection.0", x.mean(1)).relu()
        return x.sign() * (x.abs() + 1e-6) ** linear(state, f"{prefix}.projection.3", hidden).sigmoid()[:, None] + x

    with torch.inference_mode():
        tokens = dinov2_tokens(dinov2, x, norm=False, blocks=8)[0]
        for i, block in enumerate(dinov2.blocks[8:]):
            tokens = power(f"backbone.gpn_norms.{i}", block(tokens))
        tokens = dinov2.norm(tokens)
        size = tokens[:, 1:].norm(dim=-1, keepdim=True) + 1e-6
        soft = "aggregator.soft_weighting.predictor"
        weight = linear(state, f"{soft}.2", linear(state, f"{soft}.0", size).relu()).sigmoid()
        local = tokens[:, 1:] * (1 + 0.5 * weight)

        def mlp(part, x, second):
            x = functional.linear(x, salads[f"{part}.0.weight"].flatten(1), salads[f"{part}.0.bias"]).relu()
            return functional.linear(x, salads[f"{part}.{second}.weight"].flatten(1), salads[f"{part}.{second}.bias"])

        f, share = mlp("cluster_features", local, 3).mT, mlp("score", local, 3).softmax(1)
        sums = power("aggregator.gpn", (f - f.mean()) @ share / local.shape[1])
        whole = functional.normalize(mlp("token_features", tokens[:, 0], 2), dim=-1)
        compare(model, x, torch.cat([whole, functional.normalize(sums, dim=1).flatten(1)], 1))


def test_dinomix(dinov2, tmp_path):
    entry = small("dinomix", "vit_small_patch14_dinov2", DINO_SIZE)
    mixers = [nn.Sequential(nn.LayerNorm(90), nn.Linear(90, 90), nn.ReLU(), nn.Linear(90, 90)) for _ in range(2)]
    channels, rows = nn.Linear(384, 1024), nn.Linear(90, 4)
    kept = {k: v for k, v in dinov2.state_dict().items() if not k.startswith("norm.")}
    state = under("backbone.dino_model.", kept) | under("aggregator.channel_proj.", channels.state_dict())
    state |= under("aggregator.row_proj.", rows.state_dict())
    for i, mixer in enumerate(mixers):
        state |= under(f"aggregator.mix.{i}.mix.", mixer.state_dict())
    model = imported(entry, state, tmp_path)
    x = photos(DINO_SIZE, 1)
    with torch.inference_mode():
        features = dinov2_tokens(dinov2, x, norm=False)[0][:, 1:].mT
        for mixer in mixers:
            features = features + mixer(features)
        compare(model, x, rows(channels(features.mT).mT).flatten(1))


def salad_state(clusters, depth, extra, channels=384, hidden=512):
    parts = {
        "cluster_features.0.": nn.Conv2d(channels, hidden, 1),
        "cluster_features.3.": nn.Conv2d(hidden, depth, 1),
        "score.0.": nn.Conv2d(channels, hidden, 1),
        "score.3.": nn.Conv2d(hidden, clusters, 1),
        "token_features.0.": nn.Linear(channels, hidden),
        "token_features.2.": nn.Linear(hidden, extra),
    }
    state = {"dust_bin": torch.tensor(0.7)}
    for prefix, module in parts.items():
        state |= under(prefix, module.state_dict())
    return state


def salad(state, tokens, _rows, _columns):
    """Sinkhorn over scores with a dustbin, masses 1/(m+n) and (n−m)/(m+n), three rounds, then unit clusters."""

    def mlp(part, x, second):
        x = functional.relu(functional.linear(x, state[f"{part}.0.weight"].flatten(1), state[f"{part}.0.bias"]))
        return functional.linear(x, state[f"{part}.{second}.weight"].flatten(1), state[f"{part}.{second}.bias"])

    local = tokens[:, 1:]
    f, s = mlp("cluster_features", local, 3).mT, mlp("score", local, 3).mT
    batch, m, n = s.shape
    z = torch.cat([s, state["dust_bin"].expand(batch, 1, n)], 1)
    mu = torch.full((batch, m + 1), -math.log(m + n))
    mu[:, -1] += math.log(n - m)
    nu = torch.full((batch, n), -math.log(m + n))
    u, v = torch.zeros_like(mu), torch.zeros_like(nu)
    for _ in range(3):
        u = mu - torch.logsumexp(z + v[:, None], 2)
        v = nu - torch.logsumexp(z + u[:, :, None], 1)
    share = (z + u[:, :, None] + v[:, None] + math.log(m + n)).exp()[:, :-1]
    sums = (f[:, :, None] * share[:, None]).sum(-1)
    token = functional.normalize(mlp("token_features", tokens[:, 0], 2), dim=-1)
    return functional.normalize(torch.cat([token, functional.normalize(sums, dim=1).flatten(1)], 1), dim=-1)


def test_salad(dinov2, tmp_path):
    entry = small("salad", "vit_small_patch14_dinov2", DINO_SIZE)
    state = salad_state(64, 128, 256)
    checkpoint = under("backbone.model.", dinov2.state_dict()) | under("aggregator.", state)
    model = imported(entry, checkpoint, tmp_path)
    x = photos(DINO_SIZE, 1)
    with torch.inference_mode():
        compare(model, x, salad(state, *dinov2_tokens(dinov2, x, norm=True)))
    model.save(tmp_path / "model")
    with torch.inference_mode():
        torch.testing.assert_close(PlaceModel.from_pretrained(tmp_path / "model")(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prefix", ["backbone.model.", "backbone."])
def test_megaloc_under_both_of_its_names(prefix, dinov2, tmp_path):
    """Its repository moved the backbone from `backbone.model.` to `backbone.`."""
    entry = PUBLISHED["megaloc"]
    state, linear = salad_state(64, 256, 256), nn.Linear(64 * 256 + 256, 32)  # 32 of its 8448 rows
    checkpoint = under(prefix, dinov2.state_dict()) | under("aggregator.agg.", state)
    torch.save(checkpoint | under("aggregator.linear.", linear.state_dict()), tmp_path / "checkpoint.pth")
    model = PlaceModel.skeleton(small("salad", "vit_small_patch14_dinov2", DINO_SIZE).config)
    model.pool = ProjectedSalad(384, lambda: (9, 10), dim=32)
    checkpoints.fill_published(model, entry, tmp_path / "checkpoint.pth")
    x = photos(DINO_SIZE, 1)
    with torch.inference_mode():
        compare(model, x, linear(salad(state, *dinov2_tokens(dinov2, x, norm=True))))


def attention(state, prefix, queries, keys, heads):
    """Multi-head attention by its formula: softmax(QKᵀ/√d)V in each head."""
    weight, bias = state[f"{prefix}.in_proj_weight"].chunk(3), state[f"{prefix}.in_proj_bias"].chunk(3)
    q, k, v = (functional.linear(x, w, b) for x, w, b in zip((queries, keys, keys), weight, bias, strict=True))
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    mixed = ((q @ k.mT) / math.sqrt(q.shape[-1])).softmax(-1) @ v
    merged = mixed.transpose(1, 2).flatten(2)
    return functional.linear(merged, state[f"{prefix}.out_proj.weight"], state[f"{prefix}.out_proj.bias"])


def boq(state, space, width):
    """Two blocks of an encoder layer and queries that attend to themselves, then to the features; rows mixed at last."""

    def norm(name, x):
        return functional.layer_norm(x, (width,), state[f"{name}.weight"], state[f"{name}.bias"])

    heads = width // 64
    x = functional.conv2d(space, state["proj_c.weight"], state["proj_c.bias"], padding=1).flatten(2).mT
    x, outs = norm("norm_input", x), []
    for i in range(2):
        layer = f"boqs.{i}.encoder"
        x = norm(f"{layer}.norm1", x + attention(state, f"{layer}.self_attn", x, x, heads))
        inner = functional.linear(x, state[f"{layer}.linear1.weight"], state[f"{layer}.linear1.bias"]).relu()
        outer = functional.linear(inner, state[f"{layer}.linear2.weight"], state[f"{layer}.linear2.bias"])
        x = norm(f"{layer}.norm2", x + outer)
        q = state[f"boqs.{i}.queries"].expand(len(x), -1, -1)
        q = norm(f"boqs.{i}.norm_q", q + attention(state, f"boqs.{i}.self_attn", q, q, heads))
        outs.append(norm(f"boqs.{i}.norm_out", attention(state, f"boqs.{i}.cross_attn", q, x, heads)))
    return functional.linear(torch.cat(outs, 1).mT, state["fc.weight"], state["fc.bias"]).flatten(1)


def boq_state(channels, width):
    parts = {"proj_c.": nn.Conv2d(channels, width, 3), "norm_input.": nn.LayerNorm(width), "fc.": nn.Linear(128, 32)}
    for i in range(2):
        parts |= {
            f"boqs.{i}.encoder.": nn.TransformerEncoderLayer(width, 1, 4 * width),
            f"boqs.{i}.self_attn.": nn.MultiheadAttention(width, 1),
            f"boqs.{i}.cross_attn.": nn.MultiheadAttention(width, 1),
            f"boqs.{i}.norm_q.": nn.LayerNorm(width),
            f"boqs.{i}.norm_out.": nn.LayerNorm(width),
        }
    state = {f"boqs.{i}.queries": torch.randn(1, 64, width) for i in range(2)}
    for prefix, module in parts.items():
        state |= under(prefix, module.state_dict())
    return {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in state.items()}


def test_bag_of_queries_on_dinov2(dinov2, tmp_path):
    entry = small("boq_dinov2_12288", "vit_small_patch14_dinov2", DINO_SIZE)
    state = boq_state(384, 384)
    model = imported(entry, under("backbone.dino.", dinov2.state_dict()) | under("aggregator.", state), tmp_path)
    x = photos(DINO_SIZE, 1)
    with torch.inference_mode():
        tokens, rows, columns = dinov2_tokens(dinov2, x, norm=False)
        compare(model, x, boq(state, tokens[:, 1:].mT.unflatten(-1, (rows, columns)), 384))


def test_bag_of_queries_on_resnet(tmp_path):
    entry = small("boq_resnet50_16384", "resnet50", (64, 64))
    net, state = random_network("resnet50"), boq_state(1024, 512)
    model = imported(entry, under("backbone.net.", numbered(net, 7)) | under("aggregator.", state), tmp_path)
    x = photos((64, 64), 1)
    with torch.inference_mode():
        compare(model, x, boq(state, after(net, x, "layer3"), 512))


def linear(state, name, x):
    return functional.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def shaken(state, seed=0):
    """Every tensor moved a little, statistics kept positive."""
    generator = torch.Generator().manual_seed(seed)
    return {
        k: v + 0.05 * torch.rand(v.shape, generator=generator) if v.is_floating_point() else v for k, v in state.items()
    }


def transvpr_state():
    """Names and shapes as in the published files."""
    torch.manual_seed(5)
    parts = {}
    for stage, (before, now) in enumerate(itertools.pairwise((3, 64, 128, 256, 512)), 1):
        parts |= {f"conv{stage}.0.": nn.Conv2d(before, now, 3), f"conv{stage}.1.": nn.BatchNorm2d(now)}
        parts[f"tokenizer{stage}.conv_layer."] = nn.Conv2d(now, 64, 2 ** (4 - stage))
    for block in range(6):
        at = f"transformer.blocks.{block}."
        parts |= {f"{at}pre_norm.": nn.LayerNorm(256), f"{at}norm1.": nn.LayerNorm(256)}
        parts |= {f"{at}self_attn.qkv.": nn.Linear(256, 768, bias=False), f"{at}self_attn.proj.": nn.Linear(256, 256)}
        parts |= {f"{at}linear1.": nn.Linear(256, 512), f"{at}linear2.": nn.Linear(512, 256)}
    parts |= {"transformer.norm.": nn.LayerNorm(256), "pool.fc.1.": nn.Linear(768, 256)}
    parts["pool.attention_pool."] = nn.Linear(768, 3)
    state = {"transformer.class_emb": torch.rand(1, 1, 256)}
    for prefix, module in parts.items():
        state |= under(prefix, module.state_dict())
    return shaken(state)


def transvpr(state, x):
    """Convolutions, tokens of all scales, six blocks, three attention masks: descriptor, tokens of block 4, masks."""

    def norm(name, x):
        return functional.layer_norm(x, (256,), state[f"{name}.weight"], state[f"{name}.bias"])

    tokens = []
    for stage in range(1, 5):
        x = functional.conv2d(x, state[f"conv{stage}.0.weight"], state[f"conv{stage}.0.bias"], padding=1)
        bn = f"conv{stage}.1."
        names = ("running_mean", "running_var", "weight", "bias")
        x = functional.batch_norm(x, *(state[bn + name] for name in names)).relu()
        x = functional.max_pool2d(x, 3, 2, 1)
        kernel = state[f"tokenizer{stage}.conv_layer.weight"]
        bias = state[f"tokenizer{stage}.conv_layer.bias"]
        tokens.append(functional.conv2d(x, kernel, bias, stride=kernel.shape[-1]).flatten(2).mT)
    x = torch.cat([state["transformer.class_emb"].expand(len(x), -1, -1), torch.cat(tokens, -1)], 1)
    levels = []
    for block in range(6):
        at = f"transformer.blocks.{block}."
        q, k, v = (heads_of(y, 4) for y in linear(state, f"{at}self_attn.qkv", norm(f"{at}pre_norm", x)).chunk(3, -1))
        mixed = ((q @ k.mT) / 8).softmax(-1) @ v
        x = norm(f"{at}norm1", x + linear(state, f"{at}self_attn.proj", mixed.transpose(1, 2).flatten(2)))
        x = x + linear(state, f"{at}linear2", functional.gelu(linear(state, f"{at}linear1", x)))
        levels.append(norm("transformer.norm", x)[:, 1:])
    chosen = [levels[1], levels[3], levels[5]]
    masks = linear(state, "pool.attention_pool", torch.cat(chosen, -1)).softmax(1)
    sums = torch.cat([(masks[..., i : i + 1] * level).sum(1) for i, level in enumerate(chosen)], -1)
    return linear(state, "pool.fc.1", functional.normalize(sums, dim=-1)), levels[3], masks


def test_transvpr(tmp_path):
    entry = small("transvpr", "transvpr", (64, 96))
    state = transvpr_state()
    generator = torch.Generator().manual_seed(0)  # masks that differ from place to place
    state["pool.attention_pool.weight"] *= 20 * torch.randn(3, 768, generator=generator)
    model = imported(entry, state, tmp_path)
    x = photos((64, 96))
    with torch.inference_mode():
        expected, tokens, masks = transvpr(state, x)
        compare(model, x, expected, idle=["pool.attention.bias"])  # a softmax takes it out
        local, counts = model.pool.patches(model.local_features(x))
    torch.testing.assert_close(local.flatten(2).mT, tokens, rtol=1e-4, atol=1e-4)
    low, high = masks.amin(1, keepdim=True), masks.amax(1, keepdim=True)
    joint = ((masks - low) / (high - low)).sum(-1)
    joint = (joint - joint.amin(1, keepdim=True)) / (joint.amax(1, keepdim=True) - joint.amin(1, keepdim=True))
    clear = (joint - 0.02).abs() > 0.008  # at the threshold itself, rounding decides, which stretching multiplies
    assert torch.equal(counts.flatten(1)[clear], joint[clear] > 0.02)
    assert clear.float().mean() > 0.9
    assert (joint[clear] < 0.02).any()
    assert not counts.all()
    model.save(tmp_path / "model")
    assert PlaceModel.load(tmp_path / "model").fingerprint() == model.fingerprint()


def adapted_tokens(net, state, x, attended, beside):
    """DINOv2's forward with something behind its attention and something beside its MLP; both take (block, tokens)."""
    rows, columns = x.shape[-2] // 14, x.shape[-1] // 14
    side = math.isqrt(net.pos_embed.shape[1] - 1)
    grid = net.pos_embed[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((rows + 0.1) / side, (columns + 0.1) / side)
    stretched = functional.interpolate(grid, scale_factor=scale, mode="bicubic").permute(0, 2, 3, 1).flatten(1, 2)
    tokens = torch.cat([net.cls_token.expand(len(x), -1, -1), net.patch_embed.proj(x).flatten(2).mT], 1)
    tokens = tokens + torch.cat([net.pos_embed[:, :1], stretched], 1)
    for index, block in enumerate(net.blocks):
        tokens = tokens + attended(index, block.attn(block.norm1(tokens))) * block.ls1.gamma
        inner = block.norm2(tokens)
        tokens = tokens + (block.mlp(inner) + 0.2 * beside(index, inner)) * block.ls2.gamma
    return net.norm(tokens)


def test_selavpr(dinov2, tmp_path):
    """An adapter with a skip behind each attention, one without beside each MLP, and 224 pixels as published."""
    entry = small("selavpr", "vit_small_patch14_selavpr", (224, 224))
    parts = {f"blocks.{b}.adapter{a}.D_fc{f}": nn.Linear(*((384, 192) if f == 1 else (192, 384)))
             for b in range(12) for a in (1, 2) for f in (1, 2)}  # fmt: skip
    adapters = {f"{name}.{k}": v for name, module in parts.items() for k, v in module.state_dict().items()}
    up1, up2 = nn.ConvTranspose2d(384, 96, 3, 2, 1), nn.ConvTranspose2d(96, 48, 3, 2, 1)
    state = under("backbone.", dinov2.state_dict() | adapters) | {"aggregation.1.p": torch.tensor([2.5])}
    state |= under("LocalAdapt.upconv1.", up1.state_dict()) | under("LocalAdapt.upconv2.", up2.state_dict())
    model = imported(entry, under("module.", state), tmp_path)
    x = photos((224, 224), 1)

    def adapter(which, index, tokens):
        inner = linear(adapters, f"blocks.{index}.adapter{which}.D_fc1", tokens).relu()
        return linear(adapters, f"blocks.{index}.adapter{which}.D_fc2", inner)

    with torch.inference_mode():
        tokens = adapted_tokens(dinov2, state, x, lambda i, t: t + adapter(1, i, t), lambda i, t: adapter(2, i, t))
        space = tokens[:, 1:].mT.unflatten(-1, (16, 16))
        unit = functional.normalize(space, dim=1)
        expected = unit.clamp(min=1e-6).pow(2.5).mean((-2, -1)).pow(1 / 2.5)
        compare(model, x, expected, idle=["pool.finer"])
        finer, counts = model.pool.patches(model.local_features(x))
        expected = functional.normalize(up2(up1(space).relu()), dim=1)
    torch.testing.assert_close(finer, expected, rtol=1e-3, atol=1e-4)
    assert finer.shape[1:] == (48, 61, 61)
    assert counts.all()


def test_cricavpr_of_one_image_alone(dinov2, tmp_path):
    """Alone in its batch, attention over the batch gives each region its own value."""
    entry = small("cricavpr", "vit_small_patch14_cricavpr", (224, 224))
    parts = {}
    for b in range(12):
        at = f"blocks.{b}.adapter."
        parts |= {f"{at}D_fc1.": nn.Linear(384, 192), f"{at}D_fc2.": nn.Linear(192, 384)}
        for branch, out, side in (("branch1", 96, 1), ("branch2.0", 12, 1), ("branch2.1", 48, 3), ("branch3.0", 12, 1),
                                  ("branch3.1", 48, 5)):  # fmt: skip
            into = 12 if branch.endswith(".1") else 192
            parts |= {f"{at}{branch}.conv.": nn.Conv2d(into, out, side), f"{at}{branch}.bn.": nn.BatchNorm2d(out)}
    adapters = shaken({k: v for prefix, module in parts.items() for k, v in under(prefix, module.state_dict()).items()})
    layer = nn.TransformerEncoderLayer(384, 16, 2048, dropout=0.0, activation="gelu")
    encoder = shaken(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).state_dict(), 1)
    state = under("backbone.", dinov2.state_dict() | adapters) | under("encoder.", encoder)
    model = imported(entry, under("module.", state | {"aggregation.1.p": torch.tensor([2.5])}), tmp_path)
    x = photos((224, 224), 1)

    def convolved(at, x):
        x = functional.conv2d(x, adapters[f"{at}.conv.weight"], adapters[f"{at}.conv.bias"], padding="same")
        names = ("running_mean", "running_var", "weight", "bias")
        return functional.batch_norm(x, *(adapters[f"{at}.bn.{n}"] for n in names), eps=1e-3).relu()

    def adapter(index, tokens):
        at = f"blocks.{index}.adapter"
        own = linear(adapters, f"{at}.D_fc1", tokens).relu()
        space = own[:, 1:].mT.unflatten(-1, (16, 16))
        two, three = (convolved(f"{at}.branch{b}.1", convolved(f"{at}.branch{b}.0", space)) for b in (2, 3))
        seen = torch.cat([convolved(f"{at}.branch1", space), two, three], 1).flatten(2).mT
        return linear(adapters, f"{at}.D_fc2", torch.cat([2 * own[:, :1], own[:, 1:] + seen], 1))

    def encoded(v):
        for i in range(2):
            at = f"layers.{i}."
            _, _, value = encoder[f"{at}self_attn.in_proj_weight"].chunk(3)
            value_bias = encoder[f"{at}self_attn.in_proj_bias"].chunk(3)[2]
            mixed = linear(encoder, f"{at}self_attn.out_proj", functional.linear(v, value, value_bias))
            v = functional.layer_norm(v + mixed, (384,), encoder[f"{at}norm1.weight"], encoder[f"{at}norm1.bias"])
            inner = linear(encoder, f"{at}linear2", functional.gelu(linear(encoder, f"{at}linear1", v)))
            v = functional.layer_norm(v + inner, (384,), encoder[f"{at}norm2.weight"], encoder[f"{at}norm2.bias"])
        return v

    with torch.inference_mode():
        tokens = adapted_tokens(dinov2, state, x, lambda _, t: t, adapter)
        unit = functional.normalize(tokens[:, 1:].mT.unflatten(-1, (16, 16)), dim=1)
        regions = [tokens[:, 0]]
        for cuts in ((0, 8, 16), (0, 5, 11, 16)):
            for (top, bottom), (left, right) in itertools.product(itertools.pairwise(cuts), repeat=2):
                part = unit[:, :, top:bottom, left:right].clamp(min=1e-6)
                regions.append(part.pow(2.5).mean((-2, -1)).pow(1 / 2.5))
        compare(model, x, torch.cat([encoded(region) for region in regions], -1))
        torch.testing.assert_close(model(torch.cat([x, x + 1]))[:1], model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="square images"):
        model(photos((224, 238), 1))


@pytest.mark.parametrize("facet", ["value", "key", "query", "token"])
@pytest.mark.parametrize("soft", [False, True])
def test_anyloc_from_its_vocabulary(facet, soft, dinov2, tmp_path):
    """Block 3 of DINOv2: its tokens, or one of the three parts of its attention; residuals to the vocabulary's centres."""
    entry = small("anyloc_vitg14", "vit_small_patch14_dinov2", DINO_SIZE)
    config = dataclasses.replace(entry.config, blocks=3, facet=facet, pool="softvlad32" if soft else "vlad32")
    x = photos(DINO_SIZE, 1)
    with torch.inference_mode():
        before, _, _ = dinov2_tokens(dinov2, x, norm=False, blocks=2)
        block = dinov2.blocks[2]
        parts = dict(zip(("query", "key", "value"), block.attn.qkv(block.norm1(before)).chunk(3, -1), strict=True))
        features = functional.normalize((block(before) if facet == "token" else parts[facet])[0, 1:], dim=1)
    centres = 0.9 * features[torch.arange(32) * 2] + 0.01 * torch.rand(32, 384)
    torch.save(centres, tmp_path / "c_centers.pt")
    torch.save(dinov2.state_dict(), tmp_path / "dinov2.pth")
    model = PlaceModel.skeleton(config)
    checkpoints.fill_published(model, entry, tmp_path / "c_centers.pt", str(tmp_path / "dinov2.pth"))
    cosine = functional.normalize(features, dim=1) @ functional.normalize(centres, dim=1).T
    clusters = []
    for k in range(32):
        if soft:
            share = cosine.softmax(1)[:, k]
            total = sum(share[q] * (features[q] - centres).sum(0) for q in range(len(features)))
        else:
            total = (features[cosine.argmax(1) == k] - centres[k]).sum(0)
        clusters.append(functional.normalize(total, dim=0))
    compare(model, x, torch.cat(clusters)[None])
    assert model.card["weights"]["file"] == "c_centers.pt"
    assert model.card["weights"]["backbone"]["file"] == "dinov2.pth"


def test_a_vocabulary_is_one_matrix(dinov2, tmp_path):
    entry = small("anyloc_vitg14", "vit_small_patch14_dinov2", DINO_SIZE)
    model = PlaceModel.skeleton(dataclasses.replace(entry.config, blocks=3))
    torch.save({"a": torch.rand(3), "b": torch.rand(3)}, tmp_path / "c_centers.pt")
    with pytest.raises(InputError, match="no single matrix"):
        checkpoints.fill_published(model, entry, tmp_path / "c_centers.pt")
    torch.save(torch.rand(16, 384), tmp_path / "c_centers.pt")
    with pytest.raises(InputError, match=r"\(16, 384\) there, \(32, 384\)"):
        checkpoints.fill_published(model, entry, tmp_path / "c_centers.pt")
    with pytest.raises(InputError, match="--weights out"):
        checkpoints.fill_published(model, PUBLISHED["salad"], tmp_path / "c_centers.pt", "dinov2.pth")


def squares(rows, columns):
    """R-MAC's regions by its authors' rule: as many along the longer side as overlap by 40 %."""
    short = min(rows, columns)
    gaps = [(max(rows, columns) - short) / (steps - 1) for steps in range(2, 8)]
    extra = 1 + min(range(6), key=lambda i: abs((short**2 - short * gaps[i]) / short**2 - 0.4))
    for level in (1, 2, 3):
        side = math.floor(2 * short / (level + 1))
        down, across = level + extra * (rows > columns), level + extra * (columns > rows)
        for i in range(down):
            for j in range(across):
                top = math.floor(i * (rows - side) / (down - 1)) if down > 1 else 0
                left = math.floor(j * (columns - side) / (across - 1)) if across > 1 else 0
                yield slice(top, top + side), slice(left, left + side)


@pytest.mark.parametrize(("kind", "size"), [("gem", (64, 96)), ("rmac", (96, 160)), ("rmac", (96, 96))])
def test_cirtorch_on_vgg(kind, size, tmp_path):
    """VGG16 up to its last ReLU, without the pooling behind it; the training script's numpy arrays lie in the file too."""
    backbones.import_timm()
    from torchvision.models import vgg16

    torch.manual_seed(4)
    features = nn.Sequential(*list(vgg16(weights=None).features.children())[:-1]).eval()
    whiten = nn.Linear(512, 512)
    state = under("features.", features.state_dict()) | ({"pool.p": torch.tensor([2.9])} if kind == "gem" else {})
    state |= under("whiten.", whiten.state_dict())
    meta = {"Lw": {"m": np.zeros(3), "P": np.eye(3, dtype=np.float32)}, "best": np.float64(0.5)}
    torch.save({"meta": meta, "state_dict": state}, tmp_path / "checkpoint.pth")
    entry = small(f"{kind}_vgg16_512", "vgg16_cirtorch", size)
    model = checkpoints.fill_published(PlaceModel.skeleton(entry.config), entry, tmp_path / "checkpoint.pth")
    x = photos(size, 1)
    with torch.inference_mode():
        space = features(x)
        if kind == "gem":
            pooled = space.clamp(min=1e-6).pow(2.9).mean((-2, -1)).pow(1 / 2.9)
        else:
            parts = [space, *(space[:, :, rows, columns] for rows, columns in squares(*space.shape[-2:]))]
            pooled = sum(functional.normalize(part.amax((-2, -1)), dim=-1) for part in parts)
        compare(model, x, whiten(functional.normalize(pooled, dim=-1)))


def test_a_checkpoint_of_another_system_is_refused(dinov2, tmp_path):
    entry = small("salad", "vit_small_patch14_dinov2", DINO_SIZE)
    with pytest.raises(InputError, match="lacks the pooling"):
        imported(entry, under("backbone.model.", dinov2.state_dict()), tmp_path)


def test_a_missing_checkpoint_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="Bag-of-Queries/releases"):
        PlaceModel.from_pretrained("boq_resnet50_16384")
    with pytest.raises(InputError, match="did you mean 'megaloc'"):
        PlaceModel.from_pretrained("megalok")
    with pytest.raises(InputError, match="'123' is no SHA-256"):
        PlaceModel.from_pretrained("megaloc:123")
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="is a file; give a model folder"):
        PlaceModel.from_pretrained(tmp_path / "model.onnx")
    with pytest.raises(InputError, match="runs/none does not exist; give a model folder"):
        PlaceModel.from_pretrained("runs/none")


class Flat(nn.Module):
    """A user's own module."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, x):
        return self.layer(x.mean((-2, -1)))


def test_any_module_can_be_wrapped(tmp_path):
    module = Flat()
    model = PlaceModel.wrap(module, (32, 48), IMAGENET_MEAN, IMAGENET_STD)
    x = photos((32, 48))
    assert model.dim == 5
    with torch.inference_mode():
        torch.testing.assert_close(model(x), functional.normalize(module(x), dim=-1))
    before = model.fingerprint()
    with torch.no_grad():
        module.layer.bias.add_(1)
    assert model.fingerprint() != before
    with pytest.raises(InputError, match="export_onnx"):
        model.save(tmp_path / "model")
    with pytest.raises(InputError, match="one vector per image"):
        PlaceModel.wrap(nn.Identity(), (32, 48))
    with pytest.raises(InputError, match="wrap takes a torch module, not function"):
        PlaceModel.wrap(lambda x: x, (32, 48))
    with pytest.raises(InputError, match=r"\(height, width\) of at least 16 pixels, not 224"):
        PlaceModel.wrap(module, 224)
