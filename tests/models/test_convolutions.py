"""Convolution by fewer products, held to torch's own in double precision."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from covis.models import ModelConfig, PlaceModel, convolutions
from covis.models.convolutions import Tiles, Transform, cheapest_tiles, cut_tiles, join_tiles


def made(ins: int, outs: int, bias: bool = True) -> torch.nn.Sequential:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(ins, outs, 3, padding=1, bias=bias))
    convolutions.train_convolutions(net, True)
    return net


SQUARE = [(12, 128, 15, 20), (16, 160, 9, 12), (3, 128, 23, 29), (8, 64, 16, 13)]
FLAT = [(16, 160, 4, 5), (100, 130, 4, 1), (48, 130, 8, 1), (18, 200, 4, 5)]


@pytest.mark.parametrize(
    ("shape", "tiles"), [*((shape, Tiles.SQUARE) for shape in SQUARE), *((shape, Tiles.FLAT) for shape in FLAT)]
)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_values_and_gradients_are_those_of_a_convolution(shape, tiles, layout):
    net = made(shape[1], 136).to(memory_format=layout)
    x = torch.randn(shape).relu().contiguous(memory_format=layout).requires_grad_()
    assert cheapest_tiles(x, 136) is tiles
    maps = net(x)
    exact = functional.conv2d(x.double(), net[0].weight.double(), net[0].bias.double(), padding=1)
    weights = torch.randn(maps.shape)
    both = [
        torch.autograd.grad((out * weights.to(out.dtype)).sum(), (x, net[0].weight, net[0].bias))
        for out in (maps, exact)
    ]
    assert maps.is_contiguous(memory_format=torch.channels_last)
    for mine, right in ((maps, exact), *zip(*both, strict=True)):
        assert (mine - right).abs().max() < 2e-5 * right.abs().max()


MATRICES = {  # as the method's authors print them
    Transform.INPUT: [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
                      [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]],
    Transform.OUTPUT: [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    Transform.KERNEL: [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
                       [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]],
}  # fmt: skip


@pytest.mark.parametrize("transform", list(Transform))
@pytest.mark.parametrize("channels", [3, 128, 200])
def test_a_tile_is_transformed_by_its_matrix_from_both_sides(transform, channels):
    torch.manual_seed(0)
    rows = MATRICES[transform] if transform in MATRICES else np.transpose(MATRICES[Transform(transform - 1)])
    matrix = torch.tensor(np.array(rows, np.float64))
    before, after = transform.sides
    tile = torch.randn(2, before, before, channels)
    exact = torch.einsum("pi,bijc,qj->bpqc", matrix, tile.double(), matrix)
    mine = cut_tiles(tile, transform, (1, 1))
    assert (mine.view(after, after, 2, channels).permute(2, 0, 1, 3) - exact).abs().max() < 1e-5 * exact.abs().max()
    tiles = tile.permute(1, 2, 0, 3).reshape(before**2, 2, 1, 1, channels)
    joined = join_tiles(tiles, transform, (after, after))
    assert (joined - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("transform", list(Transform))
def test_flat_tiles_are_transformed_by_their_matrix_from_one_side(transform):
    torch.manual_seed(0)
    rows = MATRICES[transform] if transform in MATRICES else np.transpose(MATRICES[Transform(transform - 1)])
    before, after = transform.sides
    columns = torch.randn(2, before, 3, 130)
    exact = torch.einsum("pi,bijc->bpjc", torch.tensor(np.array(rows, np.float64)), columns.double())
    mine = cut_tiles(columns, transform, (1, 3), flat=True)
    assert (mine[:, :, 0].transpose(0, 1) - exact).abs().max() < 1e-5 * exact.abs().max()
    joined = join_tiles(columns.transpose(0, 1)[:, :, None].contiguous(), transform, (after, 3), flat=True)
    assert (joined - exact).abs().max() < 1e-5 * exact.abs().max()


def test_tiles_are_the_same_on_any_number_of_threads():
    torch.manual_seed(0)
    maps, before = torch.randn(5, 7, 9, 130), torch.get_num_threads()
    found = []
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        tiles = cut_tiles(maps, Transform.INPUT, (2, 3), margin=1)
        found.append((tiles, join_tiles(tiles, Transform.INPUT_T, (7, 9), margin=1)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(("side", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_gradients_by_products_are_those_of_a_convolution(side, stride, layout):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(256, 520, side, stride=stride, padding=side // 2))
    convolutions.train_convolutions(net.to(memory_format=layout), True)
    x = torch.randn(2, 256, 5, 6).contiguous(memory_format=layout).requires_grad_()
    maps = net(x)
    assert "ByProducts" in str(maps.grad_fn.next_functions[0][0])
    exact = functional.conv2d(
        x.double(), net[0].weight.double(), net[0].bias.double(), stride=stride, padding=side // 2
    )
    weights = torch.randn(maps.shape)
    both = [
        torch.autograd.grad((out * weights.to(out.dtype)).sum(), (x, net[0].weight, net[0].bias))
        for out in (maps, exact)
    ]
    for mine, right in ((maps, exact), *zip(*both, strict=True)):
        assert (mine - right).abs().max() < 5e-6 * right.abs().max()


def test_no_gradient_is_computed_that_nobody_asks_for(monkeypatch):
    net, x = made(128, 128, bias=False), torch.randn(12, 128, 15, 20)
    products = []
    real = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: products.append(1) or real(a, b))
    net(x).sum().backward()
    assert len(products) == 2  # forward, and the weight's gradient; the input of the first trained layer has none
    net.requires_grad_(False)
    net(x.requires_grad_()).sum().backward()
    assert len(products) == 4


@pytest.mark.parametrize(
    "conv",
    [
        torch.nn.Conv2d(128, 128, 3, padding=1, stride=2),
        torch.nn.Conv2d(128, 128, 3),
        torch.nn.Conv2d(128, 128, 3, padding=2, dilation=2),
        torch.nn.Conv2d(128, 128, 3, padding=1, groups=2),
        torch.nn.Conv2d(128, 128, 3, padding=1, padding_mode="reflect"),
        torch.nn.Conv2d(128, 128, 1),
        torch.nn.Conv2d(64, 64, 3, padding=1),
        torch.nn.Conv2d(512, 512, 1, padding=1),
        torch.nn.Conv2d(512, 512, 3, padding=1, dilation=2),
        torch.nn.Conv2d(512, 512, 5, padding=2),
        torch.nn.Conv2d(128, 256, 1),
    ],
)
def test_other_convolutions_are_left_alone(conv):
    net = torch.nn.Sequential(conv)
    convolutions.train_convolutions(net, True)
    assert type(net[0]) is torch.nn.Conv2d


def test_a_model_convolves_so_while_it_trains_and_directly_when_it_describes(monkeypatch):
    torch.manual_seed(0)
    model = PlaceModel.build(ModelConfig("vgg16", "gem", (96, 96), "last2"))
    names, x = list(model.state_dict()), torch.rand(4, 3, 96, 96)
    described, mine = model(x), model.train()(x)
    assert torch.equal(mine, model(x)), "the same bits each time"
    assert list(model.state_dict()) == names
    with monkeypatch.context() as patch:
        patch.setattr(convolutions, "cheapest_tiles", lambda x, outs: Tiles.NONE)
        patch.setattr(convolutions, "_wide", lambda part: False)
        direct = model(x)
    assert 0 < (mine - direct).abs().max() < 1e-5
    assert torch.equal(model.eval()(x), described)
    assert not any(isinstance(part, convolutions.TrainedConvolution) for part in model.modules())
