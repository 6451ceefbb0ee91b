"""Convolutions for training on processors: 3 × 3 by a quarter of the multiplications (Winograd's F(4 × 4, 3 × 3); Lavin and
Gray, 2016), and gradients by matrix products.

Tiles of 6 × 6 pixels and the kernel are transformed, multiplied place by place, and transformed back to tiles of 4 × 4: 36
products instead of 144. Its backward pass is the same three transforms the other way round. On processors torch has no such
convolution, and its direct one already runs at the speed of a matrix product, so that only fewer products make it faster:
2.4 to 2.9 times here for the large maps of VGG and ResNet, forward and backward. Rounding differs by about 1e-5 of the
largest value; so that descriptors stay what they are, networks that only describe images convolve directly.

Where tiles do not pay, on small maps of many channels, torch's gradient of the weight runs at a third to two thirds of the
speed of a matrix product: there it is one, for each place of the kernel, and a convolution of 1 × 1 is one altogether.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_OUT, _IN = 4, 6
"""Sides of a tile of the output and of the input."""
_LEAST_CHANNELS, _LEAST_TILES, _LEAST_SAVED = 128, 96, 2.4
"""Below, the transforms cost what the fewer products save, as measured by `benchmarks/bench_training.py`."""
_LEAST_WEIGHTS = 1 << 17
"""Channels in times channels out from which on a weight's gradient by matrix products is faster, measured likewise."""


def _both_sides(rows: list[list[float]]) -> Tensor:
    """The matrix that transforms the rows and the columns of a flattened tile."""
    return torch.from_numpy(np.kron(rows, rows).astype(np.float32))


_INPUT = _both_sides([[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
                      [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]])  # fmt: skip
_KERNEL = _both_sides([[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
                       [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]])  # fmt: skip
_OUTPUT = _both_sides([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])


class TrainedConvolution(nn.Conv2d):
    """A convolution that is computed by Winograd's tiles, or its gradient by matrix products, where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) → (B, O, H, W)."""
        maps: Tensor
        if input.device.type != "cpu" or {input.dtype, self.weight.dtype} != {torch.float32}:
            return super().forward(input)
        if torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        if _fits(self) and _pays(input):
            maps = _Winograd.apply(input, self.weight)  # type: ignore[no-untyped-call]
        elif _wide(self) and self.weight.requires_grad and torch.is_grad_enabled():
            maps = _ByProducts.apply(input, self.weight, self.stride)  # type: ignore[no-untyped-call]
        else:
            return super().forward(input)
        return maps if self.bias is None else maps + self.bias.view(-1, 1, 1)


def train_convolutions(module: nn.Module, on: bool) -> None:
    """Has the convolutions of `module` that can be computed faster for training be so, or no longer."""
    before, after = (nn.Conv2d, TrainedConvolution) if on else (TrainedConvolution, nn.Conv2d)
    for part in module.modules():
        if type(part) is before and (_fits(part) or _wide(part)):
            part.__class__ = after


def _fits(part: nn.Conv2d) -> bool:
    wide = min(part.in_channels, part.out_channels) >= _LEAST_CHANNELS
    return _plain(part) and part.kernel_size == (3, 3) and part.stride == (1, 1) and wide


def _wide(part: nn.Conv2d) -> bool:
    return _plain(part) and part.in_channels * part.out_channels >= _LEAST_WEIGHTS


def _plain(part: nn.Conv2d) -> bool:
    """Of 3 × 3 or 1 × 1, padded so that the map keeps its size but for a stride."""
    kept = (part.kernel_size, part.padding) in (((3, 3), (1, 1)), ((1, 1), (0, 0)))
    return kept and part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"


def _pays(x: Tensor) -> bool:
    images, _, height, width = x.shape
    tiles = -(-height // _OUT) * -(-width // _OUT)
    saved = 9 * height * width / (_IN * _IN * tiles)
    return images * tiles >= _LEAST_TILES and saved >= _LEAST_SAVED


class _ByProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: tuple[int, int]) -> Tensor:
        """(B, C, H, W), (O, C, side, side) → the convolution's map with (side − 1) / 2 pixels of padding."""
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        if weight.shape[-1] > 1:
            return functional.conv2d(x, weight, stride=stride, padding=1)
        seen = x[..., :: stride[0], :: stride[1]].permute(0, 2, 3, 1)
        return functional.linear(seen, weight.flatten(1)).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Gradients of the input and of the weight, each if it is asked for."""
        x, weight = ctx.saved_tensors
        stride, side = ctx.stride, weight.shape[-1]
        outputs = gradient.permute(0, 2, 3, 1).reshape(-1, len(weight))
        to_input = to_weight = None
        if ctx.needs_input_grad[1]:
            padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, *4 * (side // 2,)))
            to_weight = torch.empty_like(weight)
            for i, j in np.ndindex(side, side):
                stop = (i + stride[0] * (gradient.shape[2] - 1) + 1, j + stride[1] * (gradient.shape[3] - 1) + 1)
                seen = padded[:, i : stop[0] : stride[0], j : stop[1] : stride[1]].reshape(-1, x.shape[1])
                to_weight[:, :, i, j] = outputs.T @ seen
        if ctx.needs_input_grad[0] and side > 1:
            to_input = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, stride, [1, 1], [1, 1], False, [0, 0], 1, [True, False, False]
            )[0]
        elif ctx.needs_input_grad[0]:
            spread = (outputs @ weight.flatten(1)).view(*gradient.shape[:1], *gradient.shape[2:], -1)
            to_input = spread.permute(0, 3, 1, 2)
            if stride != (1, 1):
                to_input = torch.zeros_like(x)
                to_input[..., :: stride[0], :: stride[1]] = spread.permute(0, 3, 1, 2)
        return to_input, to_weight, None


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """(B, C, H, W), (O, C, 3, 3) → (B, O, H, W), with one pixel of padding, channels last in memory."""
        outs, ins = weight.shape[:2]
        images, _, height, width = x.shape
        rows, columns = -(-height // _OUT), -(-width // _OUT)
        kernels = (_KERNEL @ weight.permute(2, 3, 0, 1).reshape(9, -1)).view(-1, outs, ins)
        tiles = (_INPUT @ _tiles(x, rows, columns)).view(_IN * _IN, -1, ins)
        ctx.save_for_backward(tiles, kernels)
        ctx.shape = (images, height, width, rows, columns)
        products = torch.bmm(tiles, kernels.transpose(1, 2))
        out = (_OUTPUT @ products.view(_IN * _IN, -1)).view(_OUT, _OUT, images, rows, columns, outs)
        maps = out.permute(2, 3, 0, 4, 1, 5).reshape(images, _OUT * rows, _OUT * columns, outs)
        return maps[:, :height, :width].contiguous().permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the input and of the weight, each if it is asked for."""
        tiles, kernels = ctx.saved_tensors
        images, height, width, rows, columns = ctx.shape
        outs, ins = kernels.shape[1:]
        padded = gradient.new_zeros(images, _OUT * rows, _OUT * columns, outs)
        padded[:, :height, :width] = gradient.permute(0, 2, 3, 1)
        parts = padded.view(images, rows, _OUT, columns, _OUT, outs).permute(2, 4, 0, 1, 3, 5)
        products = (_OUTPUT.T @ parts.reshape(_OUT * _OUT, -1)).view(_IN * _IN, -1, outs)
        to_input = to_weight = None
        if ctx.needs_input_grad[1]:
            kernel = _KERNEL.T @ torch.bmm(products.transpose(1, 2), tiles).view(_IN * _IN, -1)
            to_weight = kernel.view(3, 3, outs, ins).permute(2, 3, 0, 1)
        if ctx.needs_input_grad[0]:
            spread = (_INPUT.T @ torch.bmm(products, kernels).view(_IN * _IN, -1)).view(-1, images, rows, columns, ins)
            whole = gradient.new_zeros(images, _OUT * rows + 2, _OUT * columns + 2, ins)
            for at, part in zip(_places(rows, columns), spread, strict=True):
                whole[at] += part
            to_input = whole[:, 1 : height + 1, 1 : width + 1].permute(0, 3, 1, 2)
        return to_input, to_weight


def _tiles(x: Tensor, rows: int, columns: int) -> Tensor:
    """(B, C, H, W) → (36, tiles · C): each pixel of every tile, with zeros around the image."""
    images, channels, height, width = x.shape
    padded = x.new_zeros(images, _OUT * rows + 2, _OUT * columns + 2, channels)
    padded[:, 1 : height + 1, 1 : width + 1] = x.permute(0, 2, 3, 1)
    tiles = x.new_empty(_IN * _IN, images, rows, columns, channels)
    for tile, at in zip(tiles, _places(rows, columns), strict=True):
        tile.copy_(padded[at])
    return tiles.view(_IN * _IN, -1)


def _places(rows: int, columns: int) -> list[tuple[slice, slice, slice]]:
    """Where in padded images (B, H, W, C) the pixels of all tiles lie, from the tiles' first to their last."""
    lasts = _OUT * (rows - 1) + 1, _OUT * (columns - 1) + 1
    return [
        (slice(None), slice(i, i + lasts[0], _OUT), slice(j, j + lasts[1], _OUT))
        for i in range(_IN)
        for j in range(_IN)
    ]
