"""Photo files that a user points at: files, folders, tables, patterns, a list on standard input."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from covis.core.errors import InputError, near_path

STDIN = "-"


def select_photos(given: Iterable[Path | str], stdin: TextIO | None = None) -> list[Path]:
    """The photo files that `given` names, in order, each once.

    A folder stands for the images below it, a table for the images it names, a pattern such as `new/*.jpg` for what
    matches it, `-` for the lines of standard input.
    """
    photos = list(dict.fromkeys(_expand(given, stdin or sys.stdin)))
    if not photos:
        raise InputError("no photo is given; name photos, a folder, a table or - for a list on standard input")
    if not any(photo.exists() for photo in photos):
        first = photos[0]
        raise InputError(f"{first} does not exist{near_path(first)}; check the path")
    return photos


def _expand(given: Iterable[Path | str], stdin: TextIO) -> Iterator[Path]:
    for item in given:
        path = Path(item)
        if str(item) == STDIN:
            yield from _expand((name for line in stdin if (name := line.rstrip("\r\n"))), stdin)
        elif path.is_dir():
            yield from _photos_in(path)
        elif path.is_file() and _is_table(path):
            from covis.reading.table import image_files

            yield from image_files(path)
        elif not path.exists() and glob.has_magic(str(path)):
            matching = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - patterns may begin at the root
            if not matching:
                raise InputError(f"{path} matches no file; check the pattern")
            yield from _expand(matching, stdin)
        else:
            yield path


def _is_table(path: Path) -> bool:
    from covis.core.listings import IMAGE_SUFFIXES

    if path.suffix.lower() in IMAGE_SUFFIXES:
        return False
    from covis.reading.table import SUFFIXES  # a photo does not need it

    return path.suffix.lower() in SUFFIXES


def _photos_in(folder: Path) -> list[Path]:
    from covis.core.listings import walk_images

    names = walk_images(folder)
    if not names:
        raise InputError(f"{folder} has no photos; expected files such as {folder}/photo.jpg")
    return [folder / name for name in names]
