"""Photos as people have them: paths, folders, Pillow images, arrays, tensors, bytes, open files, and lists of these."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covis.reading.decoding import Pixels, Size, decode, decode_bytes, decode_opened, resize
from covis.reading.selection import select_photos


@dataclass(frozen=True, eq=False)
class Photo:
    """A photo to be described: a file, or an image in memory."""

    path: Path
    """The file; of an image in memory, a name for it."""
    image: bytes | Image.Image | Pixels | None = None
    """A file's content, a Pillow image or (H, W, 3) RGB; None: the file is read."""

    def pixels(self, size: Size | None = None) -> Pixels:
        """(H, W, 3) RGB, resized to `size` = (height, width) if given; raises `Reject`."""
        if self.image is None:
            return decode(self.path, size)
        if isinstance(self.image, bytes):
            return decode_bytes(self.image, size, str(self.path)).pixels
        if isinstance(self.image, Image.Image):
            return decode_opened(self.image, size, str(self.path)).pixels
        return resize(self.image, size)


def expand_photos(given: Any) -> list[Photo]:
    """The photos of one input or of several, in order; a file that does not exist is an error.

    A path may also be a folder (the images below it), a table or a pattern. Arrays and tensors are RGB, not OpenCV's BGR:
    (H, W, 3), (3, H, W) or (H, W), or a batch with one more axis; 8 or 16 bits, or floats from 0 to 1.
    """
    photos = list(_expand(given))
    return [
        photo if photo.path.name else Photo(Path(f"photo-{i}"), photo.image) for i, photo in enumerate(photos, start=1)
    ]


def _expand(given: Any) -> Iterator[Photo]:
    if isinstance(given, Photo):
        yield given
    elif isinstance(given, str | os.PathLike):
        yield from map(Photo, select_photos([Path(given)], stdin=io.StringIO()))
    elif isinstance(given, bytes | bytearray | memoryview):
        yield Photo(Path(), bytes(given))
    elif isinstance(given, Image.Image):
        yield Photo(_name_of(getattr(given, "filename", "")), given)
    elif hasattr(given, "read"):
        content = given.read()
        if not isinstance(content, bytes):
            raise TypeError('a photo is read in binary: open(path, "rb")')
        yield Photo(_name_of(getattr(given, "name", "")), content)
    elif hasattr(given, "__array__") and (array := _as_array(given)).dtype.kind not in "OUS":
        yield from (Photo(Path(), pixels) for pixels in _rgb_images(array))
    elif isinstance(given, Iterable):
        for item in given:
            yield from _expand(item)
    else:
        raise TypeError(
            f"a photo is a path, a folder, a Pillow image, an array, a tensor, bytes or an open file, not {type(given).__name__}"
        )


def _name_of(name: Any) -> Path:
    """Of an open file; one without a path has a number or nothing."""
    return Path(name) if isinstance(name, str | os.PathLike) else Path()


def _as_array(given: Any) -> NDArray[Any]:
    """An array, or a tensor on any device, with or without gradient."""
    return np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)


def _rgb_images(array: NDArray[Any]) -> Iterator[Pixels]:
    """The images of an array: one, or a batch."""
    wanted = "an image is (H, W, 3), (3, H, W) or (H, W)"
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise ValueError(f"{wanted}, or a batch of them, not {array.shape}")
    if array.shape[-1] not in (1, 3, 4):
        array = np.moveaxis(array, -3, -1)
    if array.shape[-1] not in (1, 3, 4):
        raise ValueError(f"{wanted}, or a batch of them, not {array.shape}")
    colours = np.broadcast_to(_eight_bits(array)[..., :3], (*array.shape[:-1], 3))
    yield from (np.ascontiguousarray(image) for image in (colours if array.ndim == 4 else colours[None]))


def _eight_bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return np.asarray(array, np.uint8)
    if array.dtype == np.uint16:
        return np.asarray(np.rint(array / 257), np.uint8)
    if array.dtype.kind != "f" or not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(f"pixels are 8 or 16 bits, or floats from 0 to 1, not {array.dtype} beyond them")
    return np.asarray(np.rint(255 * array), np.uint8)
