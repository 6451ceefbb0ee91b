"""Image files → RGB pixels: orientation applied, odd formats converted, bad files refused with a reason code.

Sizes are (height, width) in pixels. JPEG files are decoded at the smallest scale that still covers the wanted size,
then resized with an antialiasing filter; every other format goes through Pillow. Training, embedding, evaluation and
service all decode here, so that they see the same pixels.

Ordinary JPEG files and PNG files are decoded in this process, bounded by their pixels and scans; all else, and PNG files of
strangers, in one that ends at a limit (`covis.reading.isolation`).
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from covis.core import files
from covis.core.foreign import read_bounded
from covis.reading.isolation import LONGEST_S, Ended, run_isolated

P = ParamSpec("P")
R = TypeVar("R")
Pixels = NDArray[np.uint8]
Size = tuple[int, int]

MAX_PIXELS = 50_000_000
"""Larger images are refused before they are decoded."""
_MAX_BYTES = 512_000_000
"""Larger files are refused before they are read."""
REASONS = {
    "missing": "the file does not exist",
    "unreadable": "the file cannot be opened",
    "empty": "the file has no bytes",
    "not-an-image": "not an image format that covis reads: JPEG, PNG, WebP, TIFF, HEIC, AVIF, BMP, GIF, PPM",
    "too-large": f"more than {MAX_PIXELS // 1_000_000} megapixels or {_MAX_BYTES // 1_000_000} MB",
    "truncated": "the file ends before the image does",
    "corrupt": "the image data is damaged",
    "float-pixels": "floating-point pixels have no known range",
    "not-shown": "outside the folders that were given to the map on this machine; covis serve --pictures FOLDER",
    "panorama": "a full panorama has no one heading; left out unless asked for",
}
"""Reason code → what it means, as `rejects.csv` uses it."""
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "HEIF")
"""The formats that are read, of the many that Pillow knows: others (EPS) would hand the file to another program."""
_ORIENTATION = 0x0112
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_MAX_SCANNED = 1_000_000_000
"""Pixels times scans of a JPEG file: each scan of a progressive one goes over all pixels (1 s per 400 million)."""
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_DAMAGE = {"premature end of data segment": "corrupt", "Premature end of JPEG file": "truncated"}


class Reject(Exception):  # noqa: N818 - a verdict on a file, not a defect
    """A file that is not used, with one of the `REASONS`."""

    def __init__(self, reason: str, path: str, detail: str = "") -> None:
        super().__init__(reason, path, detail)
        self.reason, self.path, self.detail = reason, path, detail

    def __str__(self) -> str:
        return f"{self.path}: {self.reason} ({self.detail or REASONS[self.reason]})"


class Decoded(NamedTuple):
    """Pixels and what had to be done to get them."""

    pixels: Pixels
    """(H, W, 3) RGB."""
    orientation: int
    """EXIF orientation 1–8 that was applied; 1 where there was none."""
    notes: tuple[str, ...]
    """What a person may want to know: `first-frame`, `rescaled-16-bit`, `converted-<mode>`, `corrupt-exif`."""


def decode(path: Path | str, size: Size | None = None) -> Pixels:
    """The image at `path` as (H, W, 3) RGB, resized to `size` = (height, width) if given; raises `Reject`."""
    return decode_noted(path, size).pixels


def decode_noted(path: Path | str, size: Size | None = None) -> Decoded:
    """Like `decode`, with the orientation applied and notes."""
    return decode_bytes(read(path), size, str(path))


def decode_bytes(data: bytes, size: Size | None = None, name: str = "image", *, stranger: bool = False) -> Decoded:
    """Like `decode_noted`, from a file's content; `name` is what a `Reject` calls it. stranger: whether someone else sent it."""
    if not data:
        raise Reject("empty", name)
    if data.startswith(_JPEG):
        quick = _decode_jpeg(data, size, name)
        if quick is not None:
            return quick
    in_place = data.startswith(_PNG) and not stranger
    return call_decoder(name, in_place, _decode_content, data, size, name)


def is_plain(head: bytes) -> bool:
    """Whether the header of a file that begins so can be read in this process."""
    return head.startswith((_JPEG, _PNG))


def call_decoder(name: str, in_place: bool, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    """`function` of a picture in a process that can be killed, unless it is safe `in_place`; raises `Reject`."""
    if in_place or not sys.executable:
        return function(*arguments, **options)
    try:
        return run_isolated(function, *arguments, **options)
    except Ended:
        raise Reject("corrupt", name, f"its decoder crashed, or took more than {LONGEST_S:.0f} s") from None


def _decode_content(data: bytes, size: Size | None, name: str) -> Decoded:
    if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS and "HEIF" not in _available_formats():
        hint = "a HEIC photo needs the package pillow-heif; install it with: pip install 'covis[heic]'"
        raise Reject("not-an-image", name, hint)
    with _rejecting(name), open_image(io.BytesIO(data)) as image:
        return _decode_any(image, size, name)


def decode_opened(image: Image.Image, size: Size | None = None, name: str = "image") -> Decoded:
    """Like `decode_noted`, from Pillow's image, which is left as it is."""
    with _rejecting(name):
        return _decode_any(image.copy(), size, name)


def open_image(source: Path | str | IO[bytes]) -> Image.Image:
    """Pillow's image of a file: its header, pixels when asked for; the only door to Pillow's readers."""
    return Image.open(source, formats=_available_formats())


def stored_values(path: Path) -> NDArray[Any]:
    """The values of an image as they are stored, such as depths; raises `Reject`."""
    data = read(path)
    return call_decoder(str(path), data.startswith(_PNG), _stored_values, data, str(path))


def _stored_values(data: bytes, name: str) -> NDArray[Any]:
    with _rejecting(name), open_image(io.BytesIO(data)) as image:
        if image.width * image.height > MAX_PIXELS:
            raise Reject("too-large", name, f"{image.width}×{image.height} pixels")
        return np.asarray(image)


@cache
def _available_formats() -> tuple[str, ...]:
    """Those of `FORMATS` that this installation reads; HEIC, as phones write it, needs a package of its own."""
    Image.init()
    with contextlib.suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def read(path: Path | str) -> bytes:
    """A file's content; raises `Reject` where it is missing, unreadable or too large to be a photo."""
    try:
        return read_bounded(path, _MAX_BYTES)
    except FileNotFoundError:
        raise Reject("missing", str(path)) from None
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        reason = "too-large" if getattr(error, "errno", None) == errno.EFBIG else "unreadable"
        raise Reject(reason, str(path), getattr(error, "strerror", None) or str(error)) from None


def orientation_of(data: bytes) -> tuple[int, bool]:
    """EXIF orientation 1–8 of a JPEG's content, and whether its EXIF block could be read."""
    at = data.find(b"Exif\0\0", 0, 1 << 16)
    if at < 0:
        return 1, True

    def parse() -> Image.Exif:
        exif = Image.Exif()
        exif.load(data[at : at + (1 << 16)])
        return exif

    return _orientation(parse)


def _orientation(parse: Callable[[], Image.Exif]) -> tuple[int, bool]:
    """The orientation that `parse` finds (1 if none), and whether the block was whole."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = parse().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises many kinds here, and a damaged EXIF block must not cost the photo
        return 1, False
    return (value if value in range(1, 9) else 1), not caught


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """Pixels as the photographer saw them, for EXIF orientation 1–8."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    flip_rows = orientation in (3, 4, 7, 8)
    flip_columns = orientation in (2, 3, 6, 7)
    return np.ascontiguousarray(pixels[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1])


def resize(pixels: Pixels, size: Size | None) -> Pixels:
    """(H, W, 3) pixels at `size` = (height, width), bilinear with antialiasing."""
    if size is None or pixels.shape[:2] == tuple(size):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _decode_jpeg(data: bytes, size: Size | None, name: str) -> Decoded | None:
    """The quick way for ordinary JPEG files; None leaves the verdict to Pillow."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    if height * width > MAX_PIXELS:
        raise Reject("too-large", name, f"{width}×{height} pixels")
    if (scans := data.count(b"\xff\xda")) * height * width > _MAX_SCANNED:
        raise Reject("too-large", name, f"{width}×{height} pixels in {scans} scans")
    if colours not in ("YCbCr", "Gray", "RGB"):
        return None
    orientation, readable = orientation_of(data)
    wanted = (0, 0) if size is None else (size if orientation < 5 else size[::-1])
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=wanted[0], min_width=wanted[1])
    except ValueError as error:
        for text, reason in _DAMAGE.items():  # Pillow would fill the lost part with grey and say nothing
            if text in str(error):
                raise Reject(reason, name, str(error)) from None
        return None
    notes = () if readable else ("corrupt-exif",)
    return Decoded(resize(turn(pixels, orientation), size), orientation, notes)


def _decode_any(image: Image.Image, size: Size | None, name: str) -> Decoded:
    """The thorough way: any format, mode and depth that Pillow opens."""
    if image.width * image.height > MAX_PIXELS:
        raise Reject("too-large", name, f"{image.width}×{image.height} pixels")
    notes = ["first-frame"] if getattr(image, "is_animated", False) else []  # counting frames reads them all
    orientation, readable = _orientation(image.getexif)
    notes += [] if readable else ["corrupt-exif"]
    if size is not None:
        image.draft("RGB", (size[1], size[0]) if orientation < 5 else size)
    image.load()
    rgb = _to_rgb(image, name, notes, size if orientation == 1 else None)
    return Decoded(resize(turn(np.asarray(rgb), orientation), size), orientation, tuple(notes))


_SCALED_DEPTH = np.rint(np.arange(1 << 16) / 257).astype(np.uint8)
"""16-bit value → 8-bit value."""
_ROWS_AT_ONCE = 64


def _to_rgb(image: Image.Image, name: str, notes: list[str], size: Size | None) -> Image.Image:
    """The image in RGB, at `size` if given: it is reduced as early as possible, since large ones take much memory."""
    if image.mode == "F":
        raise Reject("float-pixels", name)
    if image.mode.startswith("I"):
        notes.append("rescaled-16-bit")
        deep = np.asarray(image)
        if deep.min(initial=0) < 0 or deep.max(initial=0) > 65535:
            raise Reject("float-pixels", name, "32-bit pixels have no known range")
        grey = np.empty(deep.shape, np.uint8)
        for row in range(0, len(deep), _ROWS_AT_ONCE):
            grey[row : row + _ROWS_AT_ONCE] = _SCALED_DEPTH[deep[row : row + _ROWS_AT_ONCE]]
        return _reduced(Image.fromarray(grey), size).convert("RGB")
    if image.mode == "RGB":
        return _reduced(image, size)
    notes.append(f"converted-{image.mode}")
    if image.mode in ("P", "PA", "LA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode == "L":
        return _reduced(image, size).convert("RGB")
    return _reduced(image.convert("RGB"), size)


def _reduced(image: Image.Image, size: Size | None) -> Image.Image:
    if size is None or image.size == (size[1], size[0]):
        return image
    return image.resize((size[1], size[0]), Image.Resampling.BILINEAR)


def pixel_count(data: bytes) -> int:
    """Pixels that the header of a stranger's file announces; 0 where it is no image, or has more than are decoded."""
    try:
        count = call_decoder("", is_plain(data), _pixel_count, data)
    except Reject:
        return 0
    return count if count <= MAX_PIXELS else 0


def _pixel_count(data: bytes) -> int:
    with _rejecting(""), open_image(io.BytesIO(data)) as image:
        return image.width * image.height


@contextlib.contextmanager
def _rejecting(name: str) -> Iterator[None]:
    """Turns any error that a decoder raises on a bad file into a `Reject`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Reject:
        raise
    except UnidentifiedImageError:
        raise Reject("not-an-image", name) from None
    except MemoryError:
        raise Reject("too-large", name, "decoding it takes too much memory") from None
    except Image.DecompressionBombError as error:
        raise Reject("too-large", name, str(error)) from None
    except (EOFError, OSError) as error:
        text = str(error)
        cut = "truncated" in text or "unexpected end" in text.lower() or isinstance(error, EOFError)
        raise Reject("truncated" if cut else "corrupt", name, text) from None
    except Exception as error:  # a damaged file can break a decoder in any way; one file must not end the run
        raise Reject("corrupt", name, f"{type(error).__name__}: {error}") from None


REJECTS = "rejects.csv"


class Rejected(NamedTuple):
    """A file that is left out; one line of `rejects.csv`."""

    image: str
    reason: str
    detail: str


def write_rejects(path: Path, rejects: Iterable[Rejected]) -> None:
    """Writes `image,reason,detail` lines; a reader sees the old file or the new one."""
    with (
        files.replacing(path) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle,
    ):
        writer = csv.writer(handle)
        writer.writerow(Rejected._fields)
        writer.writerows(rejects)
