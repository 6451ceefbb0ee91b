"""Pictures that no map has: a bank that a new photo is compared with, to tell whether its place is in the map at all.

The bank has streets of a simulated town that nobody photographs, and things that are no places, drawn here (noise, plain
and graded colour, textures, pages of text, screens, faces). A user's own photos of other places may join it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from covis.core import artifacts, machine
from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.core.progress import say
from covis.images import ImageSet
from covis.maps.evidence import FAR
from covis.poses import Poses
from covis.ranking import Ranking
from covis.reading.decoding import open_image
from covis.search import rank

if TYPE_CHECKING:
    from covis.models import Embedder

_KIND, _VERSION = "elsewhere", 2
SIZE = (320, 240)
SHEET, SHEET_COLUMNS = Path(__file__).with_name("elsewhere.webp"), 10
"""Streets of the town on one sheet (`python -m evidence.bank`)."""
_WORDS = [
    "where",
    "was",
    "this",
    "photo",
    "taken",
    "map",
    "place",
    "overlap",
    "camera",
    "view",
    "street",
    "house",
    "walk",
    "answer",
    "likely",
    "label",
    "the",
    "and",
    "of",
]


@dataclass(frozen=True, eq=False)
class Bank:
    """Descriptors of pictures that are not of the map's places."""

    descriptors: NDArray[np.float32]
    """(B, D)"""
    family: Ids
    """(B,) pictures of one kind, such as pages of text; another kind stands for what the bank does not have."""

    @classmethod
    def empty(cls, dim: int) -> Bank:
        """A bank without pictures."""
        return cls(np.zeros((0, dim), np.float32), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.family)

    def distances(self, vectors: NDArray[np.float32]) -> Floats:
        """(Q,) from descriptors (Q, D) to the nearest picture."""
        return _first(rank(vectors, self.descriptors, 1)) if len(self) else np.full(len(vectors), FAR)

    def distances_between_families(self) -> Floats:
        """(B,) from each picture to the nearest of another family."""
        family = self.family
        return (
            _first(rank(self.descriptors, self.descriptors, 1, family, family, "other")) if len(self) else np.zeros(0)
        )


def _first(ranking: Ranking) -> Floats:
    return np.minimum(ranking.distances[:, 0].astype(np.float64), FAR)


def bank_images(folder: Path | None = None) -> tuple[ImageSet, Ids]:
    """The bank's pictures, drawn into the user's cache once, and their families; `folder`: more photos of other places."""
    files = _drawn()
    if folder is not None:
        from covis.reading.sources import open_images

        own = open_images(folder)
        if not len(own):
            raise InputError(f"{folder} holds no photo that can be used; give a folder of photos taken elsewhere")
        for i in range(len(own)):
            files.setdefault(f"own {own.group_names[own.group[i]]}", []).append(own.path(i).resolve())
    family = np.repeat(np.arange(len(files)), [len(part) for part in files.values()])
    every = [file for part in files.values() for file in part]
    root = Path(every[0].anchor)
    nowhere = Poses(np.zeros((len(every), 2)), np.full(len(every), np.nan))
    return ImageSet.of(root, [str(file.relative_to(root)) for file in every], nowhere), family


def describe_bank(model: Embedder, folder: Path | None = None) -> Bank:
    """The bank as `model` describes it; the part that everybody has is described once per model and kept in the cache."""
    from covis.describing.embedding import embed

    pictures, family = bank_images(folder)
    say(f"describing {len(pictures)} pictures of other places, to tell photos from elsewhere")
    if folder is not None:
        return Bank(embed(model, pictures), family)
    key = artifacts.fingerprint(model.fingerprint(), pictures.fingerprint())
    store = embed(model, pictures, machine.cache_folder() / "descriptors" / f"{_KIND}-{key}")
    return Bank(np.asarray(store[:], np.float32), family)


def _drawn() -> dict[str, list[Path]]:
    """Pictures of streets and of no place, by kind."""
    folder = machine.cache_folder() / f"{_KIND}-{_VERSION}"
    if not (folder / artifacts.MANIFEST).is_file():
        with artifacts.create(folder, _KIND, replace=True, durable=False) as draft:
            for i, street in enumerate(_streets()):
                street.save(draft.path / f"town{i:02d}.jpg", quality=90)
            for kind, (count, draw) in _DRAWN.items():
                for i in range(count):
                    picture = draw(np.random.default_rng([1, *kind.encode(), i]))
                    picture.save(draft.path / f"{kind}{i:02d}.jpg", quality=90)
    return {kind: sorted(folder.resolve().glob(f"{kind}*.jpg")) for kind in ("town", *_DRAWN)}


def _streets() -> Iterator[Image.Image]:
    with open_image(SHEET) as sheet:
        for y in range(0, sheet.height, SIZE[1]):
            for x in range(0, sheet.width, SIZE[0]):
                yield sheet.crop((x, y, x + SIZE[0], y + SIZE[1]))


def _colour(rng: np.random.Generator, low: int = 0, high: int = 256) -> tuple[int, ...]:
    return tuple(rng.integers(low, high, 3).tolist())


def _noise(rng: np.random.Generator) -> Image.Image:
    coarse = 2 ** int(rng.integers(0, 3))
    pixels = rng.integers(0, 256, (SIZE[1] // coarse, SIZE[0] // coarse, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(SIZE)


def _one_colour(rng: np.random.Generator) -> Image.Image:
    """A wall, a lens cap: one colour with a little sensor noise."""
    grain = rng.normal(0, rng.uniform(0, 4), (SIZE[1], SIZE[0], 3))
    return Image.fromarray(np.clip(np.array(_colour(rng)) + grain, 0, 255).astype(np.uint8))


def _gradient(rng: np.random.Generator) -> Image.Image:
    """A sky, a blurred close-up: colours that pass into each other."""
    corners = rng.integers(0, 256, (int(rng.integers(2, 4)), int(rng.integers(1, 4)), 3), dtype=np.uint8)
    return Image.fromarray(corners).resize(SIZE, Image.Resampling.BICUBIC)


def _texture(rng: np.random.Generator) -> Image.Image:
    """Clouds, leaves, fabric: noise at several scales."""
    first, channels = int(rng.integers(2, 6)), int(rng.choice([1, 3]))
    total = np.zeros((SIZE[1], SIZE[0], channels))
    for octave in range(first, 8):
        for channel in range(channels):
            small = rng.normal(size=(max(2, 3 * 2**octave // 4), 2**octave)).astype(np.float32)
            grown = Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC)
            total[..., channel] += np.asarray(grown) / 1.6 ** (octave - first)
    total = (total - total.min()) / np.ptp(total) - 0.5
    shade = np.array(_colour(rng, 60, 200)) + total * rng.integers(80, 220)
    return Image.fromarray(np.clip(np.broadcast_to(shade, (SIZE[1], SIZE[0], 3)), 0, 255).astype(np.uint8))


def _page(rng: np.random.Generator) -> Image.Image:
    picture = Image.new("RGB", SIZE, _colour(rng, 225))
    pen = ImageDraw.Draw(picture)
    for y in range(8, SIZE[1] - 8, int(rng.integers(9, 16))):
        pen.text((10, y), " ".join(rng.choice(_WORDS, 9)), fill=_colour(rng, 0, 90))
    return picture


def _screen(rng: np.random.Generator) -> Image.Image:
    picture = Image.new("RGB", SIZE, _colour(rng, 20))
    pen = ImageDraw.Draw(picture)
    pen.rectangle((0, 0, SIZE[0], 22), fill=_colour(rng))
    for _ in range(int(rng.integers(4, 14))):
        x, y = int(rng.integers(0, 260)), int(rng.integers(24, 200))
        pen.rectangle((x, y, x + int(rng.integers(20, 140)), y + int(rng.integers(8, 60))), _colour(rng), "black")
        pen.text((x + 3, y + 2), str(rng.choice(_WORDS)), fill="black")
    return picture


def _face(rng: np.random.Generator) -> Image.Image:
    picture = _gradient(rng)
    pen = ImageDraw.Draw(picture)
    x, y, r = int(rng.integers(110, 210)), int(rng.integers(90, 150)), int(rng.integers(50, 100))
    skin = tuple((np.array((90, 60, 45)) + rng.uniform(0, 1) * np.array((150, 130, 115))).astype(int).tolist())
    pen.ellipse((x - r, y - int(1.35 * r), x + r, y + int(0.3 * r)), fill=_colour(rng, 0, 120))
    pen.ellipse((x - int(0.8 * r), y - r, x + int(0.8 * r), y + int(1.2 * r)), fill=skin)
    for side in (-1, 1):
        eye = x + side * r // 3
        pen.ellipse((eye - r // 8, y - r // 10, eye + r // 8, y + r // 10), fill="white")
        pen.ellipse((eye - r // 18, y - r // 18, eye + r // 18, y + r // 18), fill=_colour(rng, 0, 90))
    pen.arc((x - r // 3, y + r // 3, x + r // 3, y + 3 * r // 4), 20, 160, fill=(150, 40, 40), width=max(2, r // 14))
    return picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.5, 2.5))))


_DRAWN: dict[str, tuple[int, Callable[[np.random.Generator], Image.Image]]] = {
    "face": (12, _face),
    "gradient": (16, _gradient),
    "noise": (16, _noise),
    "page": (24, _page),
    "plain": (16, _one_colour),
    "screen": (24, _screen),
    "texture": (32, _texture),
}
"""How many pictures of each kind there are, and how one is drawn."""
NO_PLACES = range(1, 1 + len(_DRAWN))
"""The families of the bank that are no places, after the town."""
