"""Published models: synthetic checkpoints under their authors' names, against the papers' formulas written out plainly."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from covis.errors import InputError
from covis.models import PlaceModel, backbones, published
from covis.models.config import IMAGENET_MEAN, IMAGENET_STD
from covis.models.pooling import ProjectedSalad
from covis.models.published import PUBLISHED

DINO_SIZE = (126, 140)


def small(name, backbone, size):
    """The published entry on a smaller network of the same family, so that the test is quick."""
    entry = PUBLISHED[name]
    return dataclasses.replace(entry, config=dataclasses.replace(entry.config, backbone=backbone, image_size=size))


def imported(entry, state, tmp_path):
    torch.save({"state_dict": state}, tmp_path / "checkpoint.pth")
    return published.fill_published(PlaceModel.skeleton(entry.config), entry, tmp_path / "checkpoint.pth")


def photos(size, count=2):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(0))


def compare(model, x, expected):
    with torch.inference_mode():
        torch.testing.assert_close(model(x), functional.normalize(expected, dim=-1), rtol=1e-4, atol=2e-5)


def under(prefix, tensors):
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def random_network(name):
    backbones.ensure()
    import timm

    torch.manual_seed(1)
    net = timm.create_model(name, num_classes=0).eval()
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


@pytest.mark.parametrize("projected", [False, True])
def test_netvlad_and_patch_netvlad(projected, tmp_path):
    """`encoder.*` is VGG16 up to conv5_3 without its ReLU; WPCA is a convolution of one pixel over the descriptor."""
    backbones.ensure()
    from torchvision.models import vgg16

    torch.manual_seed(2)
    encoder = nn.Sequential(*list(vgg16(weights=None).features.children())[:-2]).eval()
    centroids, conv = torch.rand(16, 512), nn.Conv2d(512, 16, 1, bias=False)
    nn.init.normal_(conv.weight)
    wpca = nn.Conv2d(16 * 512, 24, 1)
    state = under("encoder.", encoder.state_dict()) | {"pool.centroids": centroids, "pool.conv.weight": conv.weight}
    state |= under("WPCA.0.", wpca.state_dict()) if projected else {}
    model = imported(small("netvlad16_vgg16", "vgg16", (64, 96)), state, tmp_path)
    x = photos((64, 96))
    with torch.inference_mode():
        local = functional.normalize(encoder(x), dim=1)
        share = conv(local).flatten(2).softmax(1)
        residual = local.flatten(2)[:, None] - centroids[None, :, :, None]
        vlad = functional.normalize((residual * share[:, :, None]).sum(-1), dim=2).flatten(1)
        vlad = functional.normalize(vlad, dim=1)
        expected = wpca(vlad[:, :, None, None]).flatten(1) if projected else vlad
        compare(model, x, expected)
    assert model.dim == (24 if projected else 16 * 512)


def test_generalised_mean_with_whitening(tmp_path):
    entry = small("gem_resnet50_2048", "resnet50", (64, 64))
    net, linear, p = random_network("resnet50"), nn.Linear(2048, 2048), torch.tensor([2.9])
    state = under("features.", numbered(net, 8)) | {"pool.p": p} | under("whiten.", linear.state_dict())
    model = imported(entry, state, tmp_path)
    x = photos((64, 64), 1)
    with torch.inference_mode():
        mean = after(net, x, "layer4").clamp(min=1e-6).pow(p).mean((-2, -1)).pow(1 / p)
        compare(model, x, linear(functional.normalize(mean, dim=-1)))


def test_mixvpr(tmp_path):
    entry = small("mixvpr_resnet50_512", "resnet50", (64, 64))
    net = random_network("resnet50")
    mixers = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(4)]
    channels, rows = nn.Linear(1024, 256), nn.Linear(16, 2, bias=False)
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


def dinov2_tokens(net, x, *, norm):
    """DINOv2's own forward: positions stretched by (n + 0.1) / 37, bicubic; no register tokens."""
    rows, columns = x.shape[-2] // 14, x.shape[-1] // 14
    patches = net.patch_embed.proj(x).flatten(2).mT
    side = math.isqrt(net.pos_embed.shape[1] - 1)
    grid = net.pos_embed[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((rows + 0.1) / side, (columns + 0.1) / side)
    stretched = functional.interpolate(grid, scale_factor=scale, mode="bicubic").permute(0, 2, 3, 1).flatten(1, 2)
    positions = torch.cat([net.pos_embed[:, :1], stretched], 1)
    tokens = torch.cat([net.cls_token.expand(len(x), -1, -1), patches], 1) + positions
    for block in net.blocks:
        tokens = block(tokens)
    return (net.norm(tokens) if norm else tokens), rows, columns


@pytest.fixture(scope="module")
def dinov2():
    net = random_network("vit_small_patch14_dinov2")
    with torch.no_grad():
        for parameter in net.parameters():  # the library starts some of them at zero
            parameter.add_(0.02 * torch.randn_like(parameter))
    return net


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


def test_megaloc(dinov2, tmp_path):
    entry = PUBLISHED["megaloc"]
    state, linear = salad_state(64, 256, 256), nn.Linear(64 * 256 + 256, 32)  # 32 of its 8448 rows
    checkpoint = under("backbone.model.", dinov2.state_dict()) | under("aggregator.agg.", state)
    torch.save(checkpoint | under("aggregator.linear.", linear.state_dict()), tmp_path / "checkpoint.pth")
    model = PlaceModel.skeleton(small("salad", "vit_small_patch14_dinov2", DINO_SIZE).config)
    model.pool = ProjectedSalad(384, lambda: (9, 10), dim=32)
    published.fill_published(model, entry, tmp_path / "checkpoint.pth")
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


def test_a_checkpoint_of_another_system_is_refused(dinov2, tmp_path):
    entry = small("salad", "vit_small_patch14_dinov2", DINO_SIZE)
    with pytest.raises(InputError, match="lacks the pooling"):
        imported(entry, under("backbone.model.", dinov2.state_dict()), tmp_path)


def test_a_missing_checkpoint_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="Bag-of-Queries repository"):
        PlaceModel.from_pretrained("boq_resnet50_16384")
    with pytest.raises(InputError, match="did you mean 'megaloc'"):
        PlaceModel.from_pretrained("megalok")


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
