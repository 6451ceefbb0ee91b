"""Published weights give the features they were published with (needs the files beside the project)."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from covis.models import ModelConfig, PlaceModel, backbones
from covis.reading.decoding import decode
from covis.whitening import Whitening

MOBILENET = "mobilenetv2_100_imagenet.safetensors"
RESNET = "resnet50_v1_imagenet_fp16.safetensors"
VGG = "vgg16_features_imagenet_fp16.safetensors"


def weights_file(shared_data, file):
    weights = shared_data / "weights" / file
    if not weights.is_file():
        pytest.skip(f"needs the weights file {file} among the shared data")
    return weights


def model_of(shared_data, backbone, file, size, pool="gem", **options):
    config = ModelConfig(backbone, pool, size, "none", str(weights_file(shared_data, file)), **options)
    return PlaceModel.build(config)


def street_photos(shared_data, model, count=29):
    files = sorted((shared_data / "photos_exif").rglob("*.jpg"))[:count]
    size = model.preprocessing.image_size
    return torch.stack([torch.from_numpy(decode(f, size).copy()).permute(2, 0, 1) for f in files])


def classes(model, head, photos):
    """Class scores of the network that the weights came from: its own classifier on averaged features."""
    with torch.inference_mode():
        pooled = model.local_features(model.normalise(photos)).mean((-2, -1))
        return pooled @ head["weight"].float().T + head["bias"].float()


def head_of(shared_data, file, name):
    state = load_file(weights_file(shared_data, file))
    return {part: state[f"{name}.{part}"] for part in ("weight", "bias")}


def test_mobilenet_gives_torchvisions_features(shared_data):
    backbones.import_timm()
    import torchvision

    state = load_file(shared_data / "weights" / MOBILENET)
    peer = torchvision.models.mobilenet_v2(weights=None).eval()
    names = [n for n in peer.state_dict() if not n.startswith("classifier")]
    model = model_of(shared_data, "mobilenetv2_100", MOBILENET, (160, 160))
    ours = model.backbone.net.state_dict()
    peer.load_state_dict(dict(zip(names, ours.values(), strict=True)), strict=False)
    assert torch.equal(ours["conv_stem.weight"], state["conv_stem.weight"])
    photos = street_photos(shared_data, model, 4)
    with torch.inference_mode():
        x = model.normalise(photos)
        torch.testing.assert_close(model.local_features(x), peer.features(x), rtol=1e-4, atol=1e-4)


def test_resnet_of_2015_needs_its_strides_in_their_old_place(shared_data):
    """Two networks trained on one task name the same things; with strides misplaced they agree less."""
    mobile = model_of(shared_data, "mobilenetv2_100", MOBILENET, (224, 224))
    photos = street_photos(shared_data, mobile)
    wanted = classes(mobile, head_of(shared_data, MOBILENET, "classifier"), photos)
    head = head_of(shared_data, RESNET, "fc")
    agreement = {}
    for place in ("conv1", "conv2"):
        model = model_of(shared_data, "resnet50", RESNET, (224, 224), stride_on=place)
        scores = classes(model, head, photos)
        agreement[place] = float(torch.nn.functional.cosine_similarity(scores, wanted).mean())
    assert agreement["conv1"] > agreement["conv2"] + 0.02
    assert agreement["conv1"] > 0.5


def test_vgg_and_resnet_give_torchvisions_features(shared_data):
    """The published network, built by its own library with the same file, gives the features that ours pools."""
    backbones.import_timm()
    import torchvision

    vgg = model_of(shared_data, "vgg16", VGG, (96, 128))
    resnet = model_of(shared_data, "resnet50", RESNET, (96, 128), stride_on="conv1")
    peers = torchvision.models.vgg16(weights=None).features, torchvision.models.resnet50(weights=None)
    for block in (peers[1].layer2[0], peers[1].layer3[0], peers[1].layer4[0]):
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    peers[1].avgpool, peers[1].fc = torch.nn.Identity(), torch.nn.Identity()
    for model, peer, file, prefix in ((vgg, peers[0], VGG, "features."), (resnet, peers[1], RESNET, "")):
        state = load_file(shared_data / "weights" / file)
        peer.load_state_dict(
            {name.removeprefix(prefix): tensor.float() for name, tensor in state.items()}, strict=False
        )
        x = model.normalise(street_photos(shared_data, model, 3))
        with torch.inference_mode():
            ours, theirs = model.local_features(x), peer.eval()(x)
        torch.testing.assert_close(ours.flatten(), theirs.flatten(), rtol=1e-4, atol=1e-4)
        assert ours.std() > 0


def test_dinov2_is_the_librarys_own_reading_of_the_file(shared_data):
    backbones.import_timm()
    import timm

    path = shared_data / "weights" / "dinov2_vits14_reg_fp16.safetensors"
    name = "vit_small_patch14_reg4_dinov2"
    overlay = {"file": str(path)}
    peer = timm.create_model(
        name, pretrained=True, num_classes=0, dynamic_img_size=True, pretrained_cfg_overlay=overlay
    ).eval()
    model = model_of(shared_data, name, path.name, (98, 126), pool="token")
    x = model.normalise(street_photos(shared_data, model, 2))
    with torch.inference_mode():
        torch.testing.assert_close(model.backbone(x), peer.forward_features(x), rtol=1e-4, atol=1e-4)


@pytest.mark.drill
def test_frozen_mobilenet_gives_the_recalls_it_came_with(shared_data):
    """GeM(3) at 160 × 160, whitened to 256 dims on train: R@1/5/10 = 28.1/54.6/65.9 on west, within 15 m and 45°."""
    from covis.describing.embedding import embed
    from covis.reading.table import read_table

    train, west = (read_table(shared_data / "campus" / f"{split}.csv") for split in ("train", "west"))
    model = model_of(shared_data, "mobilenetv2_100", MOBILENET, (160, 160))
    model.whiten(Whitening.fit(embed(model, train, workers=0), 256))
    got = recall(embed(model, west, workers=0), west)
    np.testing.assert_allclose([got[k] for k in (1, 5, 10)], [28.1, 54.6, 65.9], atol=1.0)


def recall(descriptors, images):
    """R@k in percent: positives within 15 m and 45°, photos of other walks only."""
    distance = np.linalg.norm(images.poses.xy[:, None] - images.poses.xy, axis=-1)
    turn = np.abs((images.poses.heading[:, None] - images.poses.heading + 180) % 360 - 180)
    other = images.group[:, None] != images.group
    positive = (distance <= 15) & (turn <= 45) & other
    similarity = np.where(other, descriptors @ descriptors.T, -2)
    ranking = np.argsort(-similarity, axis=1, kind="stable")[:, :10]
    hits = np.take_along_axis(positive, ranking, axis=1)[positive.any(1)]
    return {k: 100 * hits[:, :k].any(1).mean() for k in (1, 5, 10)}
