"""What a user points at → photo files: files, folders, tables, patterns, a list on standard input.

Nothing heavy is imported here, so that a mistyped path is told at once.
"""

from __future__ import annotations

import difflib
import glob
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from covis.errors import InputError
from covis.files import IMAGE_SUFFIXES, walk_images

TABLES = (".csv", ".parquet", ".pq", ".geojson", ".gpkg", ".geoparquet")
STDIN = "-"


def select_photos(given: Iterable[Path | str], stdin: TextIO | None = None) -> list[Path]:
    """The photo files that `given` names, in order, each once.

    A folder stands for the images below it, a table for the images it names, a pattern such as `new/*.jpg` for what
    matches it, `-` for the lines of standard input.
    """
    photos = list(dict.fromkeys(_expanded(given, stdin or sys.stdin)))
    if not photos:
        raise InputError("no photo is given; name photos, a folder, a table or - for a list on standard input")
    if not any(photo.exists() for photo in photos):
        first = photos[0]
        raise InputError(f"{first} is not there{did_you_mean(first)}")
    return photos


def _expanded(given: Iterable[Path | str], stdin: TextIO) -> Iterator[Path]:
    for item in given:
        path = Path(item)
        if str(item) == STDIN:
            yield from _expanded((line for line in map(_line, stdin) if line), stdin)
        elif path.is_dir():
            yield from _inside(path)
        elif path.suffix.lower() in TABLES and path.is_file():
            yield from _of_table(path)
        elif not path.exists() and glob.has_magic(str(path)):
            found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - patterns may begin at the root
            if not found:
                raise InputError(f"{path} matches no file; check the pattern")
            yield from _expanded(found, stdin)
        else:
            yield path


def _line(text: str) -> str:
    return text.rstrip("\r\n")


def _inside(folder: Path) -> list[Path]:
    names = walk_images(folder)
    if not names:
        raise InputError(f"{folder} has no photos; expected files such as {folder}/photo.jpg")
    return [folder / name for name in names]


def _of_table(path: Path) -> list[Path]:
    """The images of a table; their positions are not looked at."""
    from covis.reading.sources import open_images

    images = open_images(path)
    return [images.path(i) for i in range(len(images))]


def did_you_mean(path: Path) -> str:
    """A hint for a path that is not there: the nearest name beside it, or the folder that is missing."""
    parent = path.parent
    if not parent.is_dir():
        return f"; {parent} is not there either, check the path"
    near = difflib.get_close_matches(path.name, sorted(p.name for p in parent.iterdir()), n=1, cutoff=0.6)
    return f"; did you mean {parent / near[0]}?" if near else "; check the path"


def check_map(path: Path, others: Sequence[Path], pointer: str = "CURRENT") -> None:
    """Says what is wrong where `path` is no map: not there, a photo, or given in the place of another argument."""
    if (path / pointer).is_file() or (path / "map.json").is_file():
        return
    swapped = next((other for other in others if (other / pointer).is_file()), None)
    if swapped is not None:
        raise InputError(f"{swapped} is the map, and it comes first: covis locate {swapped} {path}")
    if not path.exists():
        raise InputError(f"{path} is not there{did_you_mean(path)} (make a map with: covis index PHOTOS -o MAP)")
    what = "a photo" if path.suffix.lower() in IMAGE_SUFFIXES else "not a covis map"
    raise InputError(
        f"{path} is {what}; the first argument is a map: covis locate MAP PHOTO… (make one with: covis index PHOTOS -o MAP)"
    )
