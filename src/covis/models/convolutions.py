"""Faster convolutions for training on processors: Winograd's tiles for 3 × 3, and gradients by matrix products.

A convolution of 3 × 3 takes a quarter of the multiplications (Winograd's F(4 × 4, 3 × 3); Lavin and Gray, 2016). Tiles
of 6 × 6 pixels and the kernel are transformed, multiplied element by element, and transformed back to tiles of 4 × 4:
36 products instead of 144. The backward pass uses the transposes of the same three transforms. On processors torch has
no such convolution, and its direct one already runs at the speed of a matrix product, so that only fewer products make
it faster: two to three times for the large maps of VGG and ResNet, forward and backward. Rounding differs by about
1e-5 of the largest value; networks that only describe images convolve directly, so that their descriptors do not
change.

On maps of few pixels, most of the work is in the kernel's transforms. There tiles are one pixel wide: 18 products
instead of 36 for four pixels in a column, and half of the transforms. Where that does not pay either, only the
gradients are computed differently: torch's gradient of the weight runs at a third to two thirds of the speed of a
matrix product, so it becomes one matrix product for each place of the kernel, as does the gradient of the input where
the convolution has a stride. A convolution of 1 × 1 is a matrix product as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from covis.core.compiling import kernel

_OUT, _IN = 4, 6
"""Sides of a tile of the output and of the input."""
_LEAST_PRODUCTS = 42
"""Products per transformed channel; below this number, the transforms of a large map cost as much as the tiles save."""
_KERNEL_COST, _PIXEL_COST = 200, 120
"""Cost of transforming one entry of a kernel, and one of a map, forward and backward, in operations of a matrix
product; fitted to times of 256 and 512 channels on maps of 4 × 5 to 8 × 10, which it predicts to a tenth."""
_LEAST_GAIN = 0.9
"""Tiles must cost less than this share of the direct convolution, since the estimate may be off by the rest."""
_LEAST_WEIGHTS = 1 << 16
"""Input times output channels from which on matrix products give a weight's gradient faster; measured as well."""


class TrainedConvolution(nn.Conv2d):
    """A convolution that is computed by Winograd's tiles, or its gradient by matrix products, where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) → (B, O, H, W)."""
        maps: Tensor
        if input.device.type != "cpu" or {input.dtype, self.weight.dtype} != {torch.float32}:
            return super().forward(input)
        if torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        tiles = cheapest_tiles(input, self.out_channels) if _fits(self) else Tiles.NONE
        if tiles:
            maps = _Winograd.apply(input, self.weight, tiles is Tiles.FLAT)  # type: ignore[no-untyped-call]
        elif _wide(self) and self.weight.requires_grad and torch.is_grad_enabled():
            maps = _ByProducts.apply(input, self.weight, self.stride)  # type: ignore[no-untyped-call]
        else:
            return super().forward(input)
        return maps if self.bias is None else maps + self.bias.view(-1, 1, 1)


def train_convolutions(module: nn.Module, on: bool) -> None:
    """Switches the faster computation on or off for all convolutions of `module` that have one."""
    before, after = (nn.Conv2d, TrainedConvolution) if on else (TrainedConvolution, nn.Conv2d)
    for part in module.modules():
        if type(part) is before and (_fits(part) or _wide(part)):
            part.__class__ = after


def _fits(part: nn.Conv2d) -> bool:
    ins, outs = part.in_channels, part.out_channels
    wide = ins * outs >= _LEAST_PRODUCTS * (ins + outs)
    return _plain(part) and part.kernel_size == (3, 3) and part.stride == (1, 1) and wide


def _wide(part: nn.Conv2d) -> bool:
    return _plain(part) and part.in_channels * part.out_channels >= _LEAST_WEIGHTS


def _plain(part: nn.Conv2d) -> bool:
    """Whether the kernel is 3 × 3 or 1 × 1, padded so that the map keeps its size except for a stride."""
    kept = (part.kernel_size, part.padding) in (((3, 3), (1, 1)), ((1, 1), (0, 0)))
    return kept and part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"


class Tiles(IntEnum):
    """What a convolution of 3 × 3 is cut into."""

    NONE = 0
    SQUARE = 1
    FLAT = 2


def cheapest_tiles(x: Tensor, outs: int) -> Tiles:
    """The cheapest way to convolve (B, C, H, W) 3 × 3 to `outs` channels.

    Flat tiles are one pixel wide and save half of the products instead of three quarters. They also halve the kernel's
    transforms, which are most of the work on a map of few tiles.
    """
    images, ins, height, width = x.shape
    rows, columns = _grid(x)

    def cost(entries: int, tiles: int) -> float:
        return entries * (6 * tiles + _KERNEL_COST + _PIXEL_COST * tiles * (1 / ins + 1 / outs))

    costs = {
        Tiles.NONE: _LEAST_GAIN * 6 * 9 * images * height * width,
        Tiles.SQUARE: cost(_IN * _IN, images * rows * columns),
        Tiles.FLAT: cost(_IN * 3, images * rows * width),
    }
    return min(costs, key=costs.__getitem__)


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
        """Gradients of the input and of the weight, each only if it is needed."""
        x, weight = ctx.saved_tensors
        stride, side = ctx.stride, weight.shape[-1]
        outputs = gradient.permute(0, 2, 3, 1).reshape(-1, len(weight))
        to_input = to_weight = None
        if ctx.needs_input_grad[1]:
            pixels = x.permute(0, 2, 3, 1)
            padded = functional.pad(pixels, (0, 0, 1, 1, 1, 1)) if side > 1 else pixels
            to_weight = torch.empty_like(weight)
            for i, j in np.ndindex(side, side):
                seen = _seen(padded, (i, j), stride, gradient.shape[2:])
                torch.mm(outputs.T, seen.reshape(-1, x.shape[1]), out=to_weight[:, :, i, j])
        if ctx.needs_input_grad[0] and stride == (1, 1) and side == 1:
            to_input = (outputs @ weight.flatten(1)).view(*x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
        elif ctx.needs_input_grad[0] and stride == (1, 1):
            to_input = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, stride, [1, 1], [1, 1], False, [0, 0], 1, [True, False, False]
            )[0]
        elif ctx.needs_input_grad[0]:
            margin = side // 2
            images, ins, height, width = x.shape
            padded = x.new_zeros(images, height + 2 * margin, width + 2 * margin, ins)
            for i, j in np.ndindex(side, side):
                seen = _seen(padded, (i, j), stride, gradient.shape[2:])
                seen += (outputs @ weight[:, :, i, j]).view(seen.shape)
            to_input = padded[:, margin : margin + height, margin : margin + width].permute(0, 3, 1, 2)
        return to_input, to_weight, None


def _seen(padded: Tensor, place: tuple[int, int], stride: tuple[int, int], size: torch.Size) -> Tensor:
    """The pixels of (B, H, W, C) that one place of a kernel sees, for a map of `size`."""
    rows, columns = (slice(p, p + s * (n - 1) + 1, s) for p, s, n in zip(place, stride, size, strict=True))
    return padded[:, rows, columns]


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, flat: bool) -> Tensor:
        """(B, C, H, W), (O, C, 3, 3) → (B, O, H, W), with one pixel of padding, channels last in memory.

        flat: tiles are one column wide, and each pixel also carries the channels of its neighbours in the row.
        """
        pixels, kernels = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
        if flat:
            pixels, kernels = _beside(pixels), kernels.flatten(2)[:, :, None]
        kernels = cut_tiles(kernels, Transform.KERNEL, (1, 1), flat=flat).flatten(1, 3)
        tiles = cut_tiles(pixels, Transform.INPUT, (_grid(x)[0], x.shape[3]) if flat else _grid(x), margin=1, flat=flat)
        ctx.save_for_backward(tiles, kernels)
        ctx.size, ctx.flat = x.shape[2:], flat
        products = torch.bmm(tiles.flatten(1, 3), kernels.transpose(1, 2))
        maps = join_tiles(products.view(*tiles.shape[:4], -1), Transform.OUTPUT, ctx.size, flat=flat)
        return maps.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Gradients of the input and of the weight, each only if it is needed."""
        tiles, kernels = ctx.saved_tensors
        products = cut_tiles(gradient.permute(0, 2, 3, 1), Transform.OUTPUT_T, tiles.shape[2:4], flat=ctx.flat)
        to_input = to_weight = None
        if ctx.needs_input_grad[1]:
            kernel = torch.bmm(products.flatten(1, 3).transpose(1, 2), tiles.flatten(1, 3))[:, :, None, None]
            to_weight = join_tiles(kernel, Transform.KERNEL_T, (3, 1 if ctx.flat else 3), flat=ctx.flat)
            to_weight = to_weight.reshape(len(to_weight), 3, 3, -1).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[0]:
            spread = torch.bmm(products.flatten(1, 3), kernels).view(tiles.shape)
            to_input = join_tiles(spread, Transform.INPUT_T, ctx.size, margin=1, flat=ctx.flat)
            to_input = (_sum_beside(to_input) if ctx.flat else to_input).permute(0, 3, 1, 2)
        return to_input, to_weight, None


def _beside(pixels: Tensor) -> Tensor:
    """(B, H, W, C) → (B, H, W, 3 C): each pixel's channels between those of its left and its right neighbour."""
    padded = functional.pad(pixels, (0, 0, 1, 1))
    return torch.cat([padded[:, :, j : j + pixels.shape[2]] for j in range(3)], -1)


def _sum_beside(pixels: Tensor) -> Tensor:
    """The transpose of `_beside`: (B, H, W, 3 C) → (B, H, W, C)."""
    left, own, right = pixels.chunk(3, -1)
    total = own.contiguous()
    total[:, :, :-1] += left[:, :, 1:]
    total[:, :, 1:] += right[:, :, :-1]
    return total


def _grid(x: Tensor) -> tuple[int, int]:
    """Rows and columns of tiles of an image."""
    return -(-x.shape[2] // _OUT), -(-x.shape[3] // _OUT)


# Transforms of tiles. Each multiplies a tile's columns and then its rows by one matrix. Channels go in parts that stay in
# the processor's cache; there pixel (i, j) lies at (6 i + j) · 128 whatever the tile's size, and a pass transposes the tile.

_PART = 128
_ROW = _IN * _PART
_2, _4, _5, _8 = map(np.float32, (2, 4, 5, 8))
_QUARTER, _SIXTH, _TWELFTH, _TWENTY_FOURTH = map(np.float32, (1 / 4, 1 / 6, 1 / 12, 1 / 24))
_Values = NDArray[np.float32]


class Transform(IntEnum):
    """Matrices of F(4 × 4, 3 × 3), each with its transpose, which its gradient needs."""

    INPUT = 0
    INPUT_T = 1
    OUTPUT = 2
    OUTPUT_T = 3
    KERNEL = 4
    KERNEL_T = 5

    @property
    def sides(self) -> tuple[int, int]:
        """Sides of a tile before and after."""
        return ((6, 6), (6, 6), (6, 4), (4, 6), (3, 6), (6, 3))[self]


def cut_tiles(maps: Tensor, transform: Transform, grid: tuple[int, int], margin: int = 0, flat: bool = False) -> Tensor:
    """(B, H, W, C) → (pixels, B, rows, columns, C): transformed tiles of a grid that begins `margin` outside the image.

    flat: tiles are one pixel wide, and only the rows have a margin.
    """
    maps = maps.contiguous()
    tiles = maps.new_empty(transform.sides[1] ** (1 if flat else 2), len(maps), *grid, maps.shape[-1])
    _by_images(_cut, maps, tiles, transform, margin, flat)
    return tiles


def join_tiles(
    tiles: Tensor, transform: Transform, size: tuple[int, int], margin: int = 0, flat: bool = False
) -> Tensor:
    """(pixels, B, rows, columns, C) → (B, H, W, C): the sum of transformed tiles, laid out as `cut_tiles` does."""
    maps = tiles.new_empty(tiles.shape[1], *size, tiles.shape[-1])
    _by_images(_join, maps, tiles, transform, margin, flat)
    return maps


def _by_images(
    work: Callable[..., None], maps: Tensor, tiles: Tensor, transform: Transform, margin: int, flat: bool
) -> None:
    threads = min(torch.get_num_threads(), len(maps))
    fixed: tuple[Any, ...] = (maps.numpy(), tiles.numpy(), int(transform), *transform.sides, margin, flat)
    if threads <= 1:
        work(*fixed, 0, len(maps))
        return
    ends = np.linspace(0, len(maps), threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda first, last: work(*fixed, first, last), ends[:-1], ends[1:]))


@kernel()
def _cut(
    maps: _Values,
    tiles: _Values,
    transform: int,
    before: int,
    after: int,
    margin: int,
    flat: bool,
    first: int,
    last: int,
) -> None:
    """Tiles of images first … last − 1."""
    _, height, width, channels = maps.shape
    _, _, rows, columns, _ = tiles.shape
    pixels, half = np.zeros(_IN * _ROW, np.float32), np.zeros(_IN * _ROW, np.float32)
    wide, across, step, left = (1, 1, 1, 0) if flat else (before, after, _OUT, margin)
    for b in range(first, last):
        for r in range(rows):
            for k in range(columns):
                for start in range(0, channels, _PART):
                    stop = min(start + _PART, channels)
                    for i in range(before):
                        y = _OUT * r + i - margin
                        for j in range(wide):
                            x = step * k + j - left
                            room = pixels[i * _ROW + j * _PART :]
                            if 0 <= y < height and 0 <= x < width:
                                _copy(maps[b, y, x, start:stop], room)
                            else:
                                room[:_PART] = 0
                    _transformed(transform, pixels, half, wide, after, flat)
                    for i in range(after):
                        for j in range(across):
                            _copy(pixels[i * _ROW + j * _PART :], tiles[i * across + j, b, r, k, start:stop])


@kernel()
def _join(
    maps: _Values,
    tiles: _Values,
    transform: int,
    before: int,
    after: int,
    margin: int,
    flat: bool,
    first: int,
    last: int,
) -> None:
    """Images first … last − 1, from their tiles."""
    _, height, width, channels = maps.shape
    _, _, rows, columns, _ = tiles.shape
    pixels, half = np.zeros(_IN * _ROW, np.float32), np.zeros(_IN * _ROW, np.float32)
    wide, across, step, left = (1, 1, 1, 0) if flat else (before, after, _OUT, margin)
    for b in range(first, last):
        if after > _OUT:
            maps[b] = 0
        for r in range(rows):
            for k in range(columns):
                for start in range(0, channels, _PART):
                    stop = min(start + _PART, channels)
                    for i in range(before):
                        for j in range(wide):
                            _copy(tiles[i * wide + j, b, r, k, start:stop], pixels[i * _ROW + j * _PART :])
                    _transformed(transform, pixels, half, wide, after, flat)
                    for i in range(after):
                        y = _OUT * r + i - margin
                        for j in range(across):
                            x = step * k + j - left
                            if 0 <= y < height and 0 <= x < width:
                                pixel, total = pixels[i * _ROW + j * _PART :], maps[b, y, x, start:stop]
                                if after > _OUT:  # neighbours overlap
                                    for c in range(len(total)):
                                        total[c] += pixel[c]
                                else:
                                    _copy(pixel, total)


@kernel()
def _copy(source: _Values, target: _Values) -> None:
    """Copies as many values as the shorter array has."""
    for c in range(min(len(source), len(target))):
        target[c] = source[c]


@kernel()
def _transformed(transform: int, pixels: _Values, half: _Values, wide: int, after: int, flat: bool) -> None:
    """Transforms a tile in place; a flat one only along its column."""
    _pass(transform, pixels, half, wide)
    if not flat:
        _pass(transform, half, pixels, after)
        return
    for i in range(after):
        _copy(half[i * _PART : (i + 1) * _PART], pixels[i * _ROW :])


@kernel()
def _pass(transform: int, source: _Values, target: _Values, columns: int) -> None:
    """Transforms each column of a tile into a row."""
    for j in range(columns):
        s, t = source[j * _PART :], target[j * _ROW :]
        if transform == 0:
            _input(s, t)
        elif transform == 1:
            _input_t(s, t)
        elif transform == 2:
            _output(s, t)
        elif transform == 3:
            _output_t(s, t)
        elif transform == 4:
            _kernel(s, t)
        else:
            _kernel_t(s, t)


@kernel()
def _input(s: _Values, t: _Values) -> None:
    for c in range(_PART):
        a, b, d, e, f, g = s[c], s[_ROW + c], s[2 * _ROW + c], s[3 * _ROW + c], s[4 * _ROW + c], s[5 * _ROW + c]
        t[c] = _4 * a - _5 * d + f
        t[_PART + c] = f + e - _4 * (d + b)
        t[2 * _PART + c] = f - e - _4 * (d - b)
        t[3 * _PART + c] = f - d + _2 * (e - b)
        t[4 * _PART + c] = f - d - _2 * (e - b)
        t[5 * _PART + c] = _4 * b - _5 * e + g


@kernel()
def _input_t(s: _Values, t: _Values) -> None:
    for c in range(_PART):
        a, b, d, e, f, g = s[c], s[_ROW + c], s[2 * _ROW + c], s[3 * _ROW + c], s[4 * _ROW + c], s[5 * _ROW + c]
        t[c] = _4 * a
        t[_PART + c] = _4 * (d - b + g) - _2 * (e - f)
        t[2 * _PART + c] = -_5 * a - _4 * (b + d) - e - f
        t[3 * _PART + c] = b - d + _2 * (e - f) - _5 * g
        t[4 * _PART + c] = a + b + d + e + f
        t[5 * _PART + c] = g


@kernel()
def _output(s: _Values, t: _Values) -> None:
    for c in range(_PART):
        a, b, d, e, f, g = s[c], s[_ROW + c], s[2 * _ROW + c], s[3 * _ROW + c], s[4 * _ROW + c], s[5 * _ROW + c]
        t[c] = a + b + d + e + f
        t[_PART + c] = b - d + _2 * (e - f)
        t[2 * _PART + c] = b + d + _4 * (e + f)
        t[3 * _PART + c] = b - d + _8 * (e - f) + g


@kernel()
def _output_t(s: _Values, t: _Values) -> None:
    for c in range(_PART):
        a, b, d, e = s[c], s[_ROW + c], s[2 * _ROW + c], s[3 * _ROW + c]
        t[c] = a
        t[_PART + c] = a + b + d + e
        t[2 * _PART + c] = a - b + d - e
        t[3 * _PART + c] = a + _2 * b + _4 * d + _8 * e
        t[4 * _PART + c] = a - _2 * b + _4 * d - _8 * e
        t[5 * _PART + c] = e


@kernel()
def _kernel(s: _Values, t: _Values) -> None:
    for c in range(_PART):
        a, b, d = s[c], s[_ROW + c], s[2 * _ROW + c]
        t[c] = _QUARTER * a
        t[_PART + c] = -_SIXTH * (a + b + d)
        t[2 * _PART + c] = -_SIXTH * (a - b + d)
        t[3 * _PART + c] = _TWENTY_FOURTH * a + _TWELFTH * b + _SIXTH * d
        t[4 * _PART + c] = _TWENTY_FOURTH * a - _TWELFTH * b + _SIXTH * d
        t[5 * _PART + c] = d


@kernel()
def _kernel_t(s: _Values, t: _Values) -> None:
    for c in range(_PART):
        a, b, d, e, f, g = s[c], s[_ROW + c], s[2 * _ROW + c], s[3 * _ROW + c], s[4 * _ROW + c], s[5 * _ROW + c]
        t[c] = _QUARTER * a - _SIXTH * (b + d) + _TWENTY_FOURTH * (e + f)
        t[_PART + c] = _SIXTH * (d - b) + _TWELFTH * (e - f)
        t[2 * _PART + c] = _SIXTH * (e + f - b - d) + g
