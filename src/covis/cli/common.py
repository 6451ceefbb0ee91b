"""What every verb shares: its common options, paths that are checked first, and results on stdout."""

from __future__ import annotations

import difflib
import glob
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer

from covis.cli.names import check_name, known_names
from covis.core import machine
from covis.core.errors import InputError, near_path, unknown_name, visible
from covis.core.progress import say
from covis.core.tables import text_table as table

__all__ = [
    "AXES",
    "MODEL_HELP",
    "DataPath",
    "Device",
    "Json",
    "Workers",
    "choice_of",
    "emit",
    "existing",
    "named",
    "table",
]
PathOrPaths = TypeVar("PathOrPaths", Path, Path | None, list[Path], list[Path] | None)
MODEL_HELP = "A model or run folder, an ONNX file, a descriptor store, or another tool's FILE.npy with FILE.txt."
AXES = ("x", "y", "z", "-x", "-y", "-z")
"""Axes that may point up (`poses.Axis`, which is not imported before it is needed)."""


def existing(given: PathOrPaths) -> PathOrPaths:
    """Checks that the path or paths of an argument exist, before anything heavy is imported."""
    for path in (given,) if isinstance(given, Path) else given or ():
        if not path.exists():
            raise InputError(f"{path} does not exist{near_path(path)}; check the path")
    return given


def existing_model(path: Path | None) -> Path | None:
    """Checks that the path of a model exists, before anything heavy is imported."""
    if path is not None and not path.exists():
        hint = "give a model folder, a run folder, an ONNX file or a descriptor store"
        raise InputError(f"{path} does not exist{near_path(path)}; {hint}")
    return path


def existing_weights(given: str) -> str:
    """Checks that weights are a name (`pretrained`, `none`) or an existing file, before anything heavy is imported."""
    if given and given.partition(":")[0] not in ("pretrained", "none", "null"):
        existing(Path(given))
    return given


def existing_map(path: Path) -> Path:
    """Checks that the path of a map exists, before anything heavy is imported."""
    if not path.exists():
        raise InputError(f"{path} does not exist{near_path(path)}; make a map with: covis index PHOTOS -o MAP")
    return path


def some_existing(photos: list[Path]) -> list[Path]:
    """Checks that at least one of the photos, folders and patterns exists; `-` stands for a list that is read later."""
    if not any(path.exists() or re.search(r"[*?[]", str(path)) or str(path) == "-" for path in photos):
        existing(photos[0])
    return photos


def named(kind: str) -> Callable[[Any], Any]:
    """A check that an argument, or each of a list, is a registered name of a kind."""

    def check(given: Any) -> Any:
        for name in given if isinstance(given, list) else [given]:
            if name:
                check_name(kind, name)
        return given

    return check


def known_backbone(name: str) -> str:
    """A name of a backbone, which may carry a weights tag (`resnet18.tv_in1k`)."""
    if name:
        from covis.models import backbone_names

        if name.partition(".")[0] not in (known := backbone_names()):
            raise unknown_name("backbone", name, known)
    return name


def index_kind(name: str) -> str:
    """`auto`, `exact`, or a kind of approximate index."""
    from covis.search import KINDS

    known = ("auto", "exact", *KINDS)
    if name not in known:
        raise unknown_name("kind of index", name, known)
    return name


def choice_of(option: str, choices: Sequence[str]) -> Callable[[Any], Any]:
    """A check of an option that takes one of a few words."""

    def check(given: Any) -> Any:
        if given is not None and given not in choices:
            raise unknown_name(option, given, choices)
        return given

    return check


def _check_data(given: list[str] | None) -> list[str] | None:
    """Checks that the datasets in --data are known and that their paths exist."""
    for entry in given or ():
        name, equals, path = entry.partition("=")
        known = known_names("dataset")
        if equals and name not in known and not Path(entry).exists():
            raise unknown_name("dataset in --data", name, known)
        existing(Path(path if equals and name in known else entry))
    return given


DataPath = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        callback=_check_data,
        help="DATASET=PATH, repeatable; PATH alone if only one dataset is needed. The town needs none.",
    ),
]
Workers = Annotated[int | None, typer.Option(help="Decoding processes (default: one per core, at most 8).")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def _use_device(name: str | None) -> str | None:
    """Makes this process run networks on the device of that name."""
    if name is not None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?|mps", name):
            raise InputError(f"--device is cpu, cuda, cuda:N or mps, not {name!r}")
        machine.use_device(name)
    return name


Device = Annotated[
    str | None,
    typer.Option("--device", callback=_use_device, help="cpu, cuda, cuda:N or mps (default: a GPU if there is one)."),
]

FrameOption = Annotated[
    str,
    typer.Option(
        "--frame",
        help="Coordinate frame in metres: EPSG:CODE, PROJ text, or LAT,LON of its origin. [default: chosen from the positions]",
    ),
]


def emit(data: Any, as_json: bool, text: str = "", then: str = "") -> None:
    """Prints the result: JSON for programs, `text` for people, followed by the next command, `then`."""
    if as_json:
        json.dump(data, sys.stdout, indent=2, ensure_ascii=False, default=_plain)
        sys.stdout.write("\n")
    elif text:
        print("\n".join(map(visible, text.split("\n"))))
    if then and not as_json:
        sys.stdout.flush()
        say(f"next: {visible(then)}")


def _plain(value: Any) -> Any:
    """numpy scalars and arrays, and paths, as values for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


# What a user points at → photo files: files, folders, tables, patterns, a list on standard input.


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
        raise InputError(f"{first} does not exist{did_you_mean(first)}")
    return photos


def _expanded(given: Iterable[Path | str], stdin: TextIO) -> Iterator[Path]:
    for item in given:
        path = Path(item)
        if str(item) == STDIN:
            yield from _expanded((line for line in map(_line, stdin) if line), stdin)
        elif path.is_dir():
            yield from _inside(path)
        elif path.is_file() and _is_table(path):
            from covis.reading.table import image_files

            yield from image_files(path)
        elif not path.exists() and glob.has_magic(str(path)):
            matching = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - patterns may begin at the root
            if not matching:
                raise InputError(f"{path} matches no file; check the pattern")
            yield from _expanded(matching, stdin)
        else:
            yield path


def _is_table(path: Path) -> bool:
    from covis.core.files import IMAGE_SUFFIXES

    if path.suffix.lower() in IMAGE_SUFFIXES:
        return False
    from covis.reading.table import SUFFIXES  # a photo does not need it

    return path.suffix.lower() in SUFFIXES


def _line(text: str) -> str:
    return text.rstrip("\r\n")


def _inside(folder: Path) -> list[Path]:
    from covis.core.files import walk_images

    names = walk_images(folder)
    if not names:
        raise InputError(f"{folder} has no photos; expected files such as {folder}/photo.jpg")
    return [folder / name for name in names]


def did_you_mean(path: Path) -> str:
    """A hint for a path that does not exist: the nearest name beside it, or the folder that is missing."""
    parent = path.parent
    if not parent.is_dir():
        return f"; {parent} does not exist either, check the path"
    near = difflib.get_close_matches(path.name, sorted(p.name for p in parent.iterdir()), n=1, cutoff=0.6)
    return f"; did you mean {parent / near[0]}?" if near else "; check the path"


def require_map(path: Path, others: Sequence[Path], pointer: str = "CURRENT") -> None:
    """Raises an error if `path` is no map, and says why: missing, a photo, or swapped with another argument."""
    if (path / pointer).is_file() or (path / "map.json").is_file():
        return
    swapped = next((other for other in others if (other / pointer).is_file()), None)
    if swapped is not None:
        raise InputError(f"{swapped} is the map, and it comes first: covis locate {swapped} {path}")
    if not path.exists():
        raise InputError(f"{path} does not exist{did_you_mean(path)} (make a map with: covis index PHOTOS -o MAP)")
    from covis.core.files import IMAGE_SUFFIXES

    what = "a photo" if path.suffix.lower() in IMAGE_SUFFIXES else "not a covis map"
    raise InputError(
        f"{path} is {what}; the first argument is a map: covis locate MAP PHOTO… (make one with: covis index PHOTOS -o MAP)"
    )
