"""Convolution by fewer products, held to torch's own in double precision."""

import pytest
import torch
from torch.nn import functional

from covis.models import ModelConfig, PlaceModel, convolutions


def made(ins: int, outs: int, bias: bool = True) -> torch.nn.Sequential:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(ins, outs, 3, padding=1, bias=bias))
    convolutions.train_convolutions(net, True)
    return net


@pytest.mark.parametrize("shape", [(12, 128, 15, 20), (16, 160, 9, 12), (3, 128, 23, 29)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_values_and_gradients_are_those_of_a_convolution(shape, layout):
    net = made(shape[1], 136)
    x = torch.randn(shape).relu().contiguous(memory_format=layout).requires_grad_()
    assert convolutions._pays(x)
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


@pytest.mark.parametrize(("side", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_gradients_by_products_are_those_of_a_convolution(side, stride, layout):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(256, 520, side, stride=stride, padding=side // 2))
    convolutions.train_convolutions(net, True)
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
        torch.nn.Conv2d(128, 64, 3, padding=1),
        torch.nn.Conv2d(512, 512, 1, padding=1),
        torch.nn.Conv2d(512, 512, 3, padding=1, dilation=2),
        torch.nn.Conv2d(512, 512, 5, padding=2),
        torch.nn.Conv2d(256, 256, 1),
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
        patch.setattr(convolutions, "_pays", lambda x: False)
        patch.setattr(convolutions, "_wide", lambda part: False)
        direct = model(x)
    assert 0 < (mine - direct).abs().max() < 1e-5
    assert torch.equal(model.eval()(x), described)
    assert not any(isinstance(part, convolutions.TrainedConvolution) for part in model.modules())
