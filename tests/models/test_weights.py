"""Weights in: layouts of others, files that are wrong, files that would run code."""

import hashlib
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from covis.core.errors import InputError
from covis.models import ModelConfig, PlaceModel, backbones, hub, pins, weights

backbones.import_timm()
import torchvision  # noqa: E402

SIZE = (64, 64)


def shaken(net):
    """Weights and statistics that leave no part of the network without effect."""
    generator = torch.Generator().manual_seed(7)
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            noise = 1 + 0.3 * torch.rand(tensor.shape, generator=generator)
            tensor.copy_(tensor * noise if tensor.ndim > 1 or name.endswith("running_var") else tensor + noise - 1.15)
    return net.eval()


def built(backbone, file, pool="gem"):
    return PlaceModel.build(ModelConfig(backbone, pool, SIZE, weights=str(file)))


def imported(backbone, file, pool="gem"):
    model = PlaceModel.build(ModelConfig(backbone, pool, SIZE))
    weights.fill_from_file(model, file)
    return model


def same_features(model, features):
    x = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        got, expected = model.local_features(x), features(x)
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


def resnet_features(net):
    return torch.nn.Sequential(*list(net.children())[:-2])


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_torchvision_resnets_load_as_they_are(name, tmp_path):
    net = shaken(getattr(torchvision.models, name)(weights=None))
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    same_features(built(name, tmp_path / "w.safetensors"), resnet_features(net))


def test_a_tensor_without_a_place_is_refused_and_classifiers_are_left_out(tmp_path):
    state = torchvision.models.resnet18(weights=None).state_dict()
    assert "fc.weight" in state
    torch.save(state | {"pool.conv.weight": torch.ones(2)}, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"'pool\.conv\.weight' has no place in resnet18 with gem"):
        imported("resnet18", tmp_path / "w.pth")


def test_torchvision_mobilenet_is_matched_by_order(tmp_path):
    net = shaken(torchvision.models.mobilenet_v2(weights=None))
    torch.save(net.state_dict(), tmp_path / "w.pth")
    same_features(imported("mobilenetv2_100", tmp_path / "w.pth"), net.features)


def test_torchvision_densenet(tmp_path):
    net = shaken(torchvision.models.densenet121(weights=None))
    torch.save(net.state_dict(), tmp_path / "w.pth")
    same_features(imported("densenet121", tmp_path / "w.pth"), lambda x: net.features(x).relu())
    old = {k.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): v for k, v in net.state_dict().items()}
    torch.save({"state_dict": old}, tmp_path / "old.pth")
    same_features(imported("densenet121", tmp_path / "old.pth"), lambda x: net.features(x).relu())


class Authors(torch.nn.Module):
    """The layout of the method's published checkpoints: numbered children under `backbone`, the exponent `pool.p`."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.pool = torch.nn.Module()
        self.pool.p = torch.nn.Parameter(torch.tensor([2.61]))


@pytest.mark.parametrize("wrap", [dict, lambda s: {"model_state_dict": s, "epoch": 3}, lambda s: {"state_dict": s}])
def test_published_checkpoints_of_the_method_resnet(wrap, tmp_path):
    net = Authors(resnet_features(shaken(torchvision.models.resnet18(weights=None))))
    torch.save(wrap(net.state_dict()), tmp_path / "published.pth")
    model = imported("resnet18", tmp_path / "published.pth")
    same_features(model, net.backbone.eval())
    assert model.pool.p.item() == pytest.approx(2.61)
    assert model.pool.p.requires_grad


@pytest.mark.parametrize(("name", "convert"), [("densenet121", torch.relu), ("vgg11", lambda x: x)])
def test_published_checkpoints_of_the_method_others(name, convert, tmp_path):
    vgg = torchvision.models.vgg
    features = (
        vgg.make_layers(vgg.cfgs["A"]) if name == "vgg11" else torchvision.models.densenet121(weights=None).features
    )
    net = Authors(shaken(features))
    torch.save({f"module.{k}": v for k, v in net.state_dict().items()}, tmp_path / "published.pth")
    model = imported(name, tmp_path / "published.pth")
    same_features(model, lambda x: convert(net.backbone(x)))
    assert model.pool.p.item() == pytest.approx(2.61)


def test_half_precision_files_become_single(tmp_path):
    net = torchvision.models.resnet18(weights=None)
    save_file({k: v.half() if v.ndim > 1 else v for k, v in net.state_dict().items()}, tmp_path / "w.safetensors")
    model = built("resnet18", tmp_path / "w.safetensors")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    expected = net.conv1.weight.half().float()
    assert torch.equal(model.backbone.net.conv1.weight, expected)


def test_a_model_can_start_from_another_model(tmp_path):
    first = PlaceModel.build(ModelConfig("tiny", "gem", SIZE), seed=4)
    first.pool.p.data.fill_(4.5)
    first.save(tmp_path / "first")
    second = PlaceModel.build(ModelConfig("tiny", "gem", (96, 96), "last1", weights=str(tmp_path / "first")), seed=5)
    assert second.pool.p.item() == 4.5
    assert second.preprocessing.image_size == (96, 96)
    assert second.card["weights"] == {"model": "first", "fingerprint": first.fingerprint()}
    for name, tensor in first.backbone.state_dict().items():
        assert torch.equal(tensor, second.backbone.state_dict()[name])
    with pytest.raises(InputError, match="holds backbone tiny, not resnet18"):
        built("resnet18", tmp_path / "first")


def test_the_card_names_the_file_and_its_content(tmp_path):
    net = torchvision.models.resnet18(weights=None)
    save_file(net.state_dict(), tmp_path / "mine.safetensors")
    card = built("resnet18", tmp_path / "mine.safetensors").card
    assert card["weights"]["file"] == "mine.safetensors"
    assert len(card["weights"]["sha256"]) == 64


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_code_in_a_weights_file_is_never_run(tmp_path):
    state = torchvision.models.resnet18(weights=None).state_dict()
    torch.save({"state_dict": state, "extra": Bomb(tmp_path / "harmed")}, tmp_path / "bomb.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Bomb(tmp_path / "harmed")))
    for name in ("bomb.pth", "plain.pth"):
        with pytest.raises(InputError, match="more than weights or is damaged"):
            imported("resnet18", tmp_path / name)
    assert not (tmp_path / "harmed").exists()


def test_pth_files_go_through_the_importer_only(tmp_path):
    torch.save({}, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"covis model import .*w\.pth --backbone resnet18 -o MODEL"):
        built("resnet18", tmp_path / "w.pth")


def test_bad_files_are_one_line(tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    torch.save({"lr": 0.1, "state_dict": {}}, tmp_path / "empty.pth")
    save_file({"conv1.weight": torch.zeros(3), "x": torch.zeros(1)}, tmp_path / "other.safetensors")
    net = torchvision.models.resnet18(weights=None).state_dict()
    save_file(net | {"conv1.weight": torch.zeros(64, 3, 3, 3)}, tmp_path / "shape.safetensors")
    for name, message in {
        "absent.safetensors": "does not exist",
        "cut.safetensors": "is not a safetensors file",
        "empty.pth": "holds no table of tensors",
        "other.safetensors": "does not fit backbone resnet18",
        "shape.safetensors": r"'conv1.weight' is \(64, 3, 3, 3\) there, \(64, 3, 7, 7\) here",
    }.items():
        with pytest.raises(InputError, match=message) as caught:
            imported("resnet18", tmp_path / name)
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)


def test_pretrained_without_a_network_tells_how_to_give_a_file(monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("socket.create_connection", unreachable)
    monkeypatch.setattr(hub, "getproxies", dict)
    with pytest.raises(InputError, match=r"cannot be fetched here .*weights='FILE\.safetensors'"):
        built("resnet34", "pretrained")
    with pytest.raises(InputError, match="tiny has no pretrained weights"):
        built("tiny", "pretrained")


def test_pretrained_weights_come_from_the_librarys_cache(monkeypatch, tmp_path):
    net = shaken(torchvision.models.resnet18(weights=None))
    folder = tmp_path / "models--timm--resnet18.tv_in1k"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    save_file(net.state_dict(), folder / "snapshots" / "abc" / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "covis"))
    model = built("resnet18.tv_in1k", "pretrained")
    same_features(model, resnet_features(net))
    file = folder / "snapshots" / "abc" / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert model.card["weights"] == {"name": "resnet18.tv_in1k, from timm", "sha256": digest}
    save_file(shaken(net).state_dict(), file)  # the same name, another file
    with pytest.raises(InputError, match=f"expected {digest}"):
        built("resnet18.tv_in1k", "pretrained")
    other = hashlib.sha256(file.read_bytes()).hexdigest()
    assert built("resnet18.tv_in1k", f"pretrained:{other}").card["weights"]["sha256"] == other
    with pytest.raises(InputError, match="'latest' is no SHA-256"):
        built("resnet18.tv_in1k", "pretrained:latest")


def test_downloads_are_pinned(monkeypatch, tmp_path):
    (tmp_path / "got").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "covis"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_reach", lambda: None)
    monkeypatch.setattr(hub, "_download", lambda hub_id, file, revision: tmp_path / "got")
    with pytest.raises(InputError, match="expected 0000"):
        hub.fetch("a/b", "c", "0" * 64)
    assert hub.fetch("a/b", "c", "unpinned") == tmp_path / "got"  # and its SHA-256 is remembered
    assert hub.fetch("a/b", "c") == weights.fetch("a/b", "c", digest)
    (tmp_path / "got").write_bytes(b"others")
    for pin in ("", "unpinned"):
        with pytest.raises(InputError, match="it was changed there or damaged here"):
            hub.fetch("a/b", "c", pin)
    monkeypatch.setitem(pins.PINS, "d/e", digest)
    with pytest.raises(InputError, match=f"expected {digest}"):
        hub.fetch("d/e", "c")
