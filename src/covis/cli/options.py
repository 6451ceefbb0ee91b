"""Options that several verbs share, and checks of arguments before anything heavy is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from covis.cli.names import check_name, known_names
from covis.core.errors import InputError, near_path, unknown_name

PathOrPaths = TypeVar("PathOrPaths", Path, Path | None, list[Path], list[Path] | None)
MODEL_HELP = (
    "A model or run folder, an ONNX file, a descriptor store, another tool's FILE.npy with FILE.txt, or a name from "
    "`covis list models`."
)
AXES = ("x", "y", "z", "-x", "-y", "-z")
"""Axes that may point up (`poses.Axis`, which is not imported before it is needed)."""
TABLE_FORMATS = ("text", "markdown", "latex", "csv")
RECIPE_FILES = (".toml", ".json")
_MAKE_A_MAP = "make a map with: covis index PHOTOS -o MAP"


def existing(given: PathOrPaths) -> PathOrPaths:
    """Checks that the path or paths of an argument exist."""
    for path in (given,) if isinstance(given, Path) else given or ():
        if not path.exists():
            raise InputError(f"{path} does not exist{near_path(path)}; check the path")
    return given


def existing_model(path: Path | None) -> Path | None:
    """Checks that a model is an existing path or a known name."""
    if path is None or path.exists():
        return path
    from covis.models.published import is_published

    if not is_published(path):
        hint = "give a model folder, a run folder, an ONNX file, a descriptor store or a name (covis list models)"
        raise InputError(f"{path} does not exist{near_path(path)}; {hint}")
    return path


def existing_weights(given: str) -> str:
    """Checks that weights are a name (`pretrained`, `none`) or an existing file."""
    if given and given.partition(":")[0] not in ("pretrained", "none", "null"):
        existing(Path(given))
    return given


def existing_map(path: Path) -> Path:
    """Checks that the path of a map exists."""
    if not path.exists():
        raise InputError(f"{path} does not exist{near_path(path)}; {_MAKE_A_MAP}")
    return path


def some_existing(photos: list[Path]) -> list[Path]:
    """Checks that at least one of the photos, folders and patterns exists; `-` stands for a list that is read later."""
    if not any(path.exists() or re.search(r"[*?[]", str(path)) or str(path) == "-" for path in photos):
        existing(photos[0])
    return photos


def require_map(path: Path, others: Sequence[Path] = (), pointer: str = "CURRENT") -> None:
    """Raises an error if `path` is no map, and says why: missing, a photo, or swapped with another argument."""
    if (path / pointer).is_file() or (path / "map.json").is_file():
        return
    swapped = next((other for other in others if (other / pointer).is_file()), None)
    if swapped is not None:
        raise InputError(f"{swapped} is the map, and it comes first: covis locate {swapped} {path}")
    from covis.core.listings import IMAGE_SUFFIXES

    existing_map(path)
    what = "a photo" if path.suffix.lower() in IMAGE_SUFFIXES else "not a covis map"
    raise InputError(f"{path} is {what}; the first argument is a map: covis locate MAP PHOTO… ({_MAKE_A_MAP})")


def named(kind: str) -> Callable[[Any], Any]:
    """A check that an argument, or each of a list, is a registered name of a kind."""

    def check(given: Any) -> Any:
        for name in given if isinstance(given, list) else [given]:
            if name:
                check_name(kind, name)
        return given

    return check


def choice_of(option: str, choices: Sequence[str]) -> Callable[[Any], Any]:
    """A check of an option that takes one of a few words."""

    def check(given: Any) -> Any:
        if given is not None and given not in choices:
            raise unknown_name(option, given, choices)
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


def known_recipe(given: str | list[str] | None) -> str | list[str] | None:
    """Checks that recipes are known names or existing files."""
    for name in [given] if isinstance(given, str) else given or []:
        if name.endswith(RECIPE_FILES):
            existing(Path(name))
        else:
            check_name("recipe", name)
    return given


def _check_settings(given: list[str] | None) -> list[str] | None:
    """Checks the names of networks and poolings in FIELD=VALUE; a recipe checks its other fields when they are set."""
    for setting in given or ():
        field, _, value = (part.strip() for part in setting.partition("="))
        if field == "model.backbone":
            known_backbone(value)
        if field == "model.pool":
            check_name("pooling", value)
    return given


ROLES = ("train", "val")
"""What photos of one's own are for, in --data of `covis train`."""


def _check_data(given: list[str] | None) -> list[str] | None:
    """Checks that the datasets in --data are known, or say what one's own photos are for, and that their paths exist."""
    for entry in given or ():
        name, equals, path = entry.partition("=")
        known = {*known_names("dataset"), *ROLES}
        if equals and name not in known and not Path(entry).exists():
            raise unknown_name("dataset in --data", name, known)
        existing(Path(path if equals and name in known else entry))
    return given


Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        callback=existing,
        help="The checkpoint's file of a model that is given by its name, if it cannot be downloaded here.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DataPath = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        callback=_check_data,
        help="DATASET=PATH, repeatable; PATH alone if only one dataset is needed. The town needs none.",
    ),
]
RecipeSet = Annotated[
    list[str] | None,
    typer.Option("--set", callback=_check_settings, help="Change a field of the recipe: FIELD=VALUE, repeatable."),
]
MapPath = Annotated[Path, typer.Argument(callback=existing_map, metavar="MAP", help="A map (covis index).")]
FrameOption = Annotated[
    str,
    typer.Option(
        "--frame",
        help="Coordinate frame in metres: EPSG:CODE, PROJ text, or LAT,LON of its origin. [default: chosen from the positions]",
    ),
]
TrackOption = Annotated[
    Path | None, typer.Option(callback=existing, help="A table or track (GPX) with the positions of the photos.")
]
UtcOffset = Annotated[
    str, typer.Option(help="UTC offset of the camera's clock, if the photos do not state it, such as +02:00.")
]
IndexKind = Annotated[
    str, typer.Option("--kind", callback=index_kind, help="Index: auto, or a name from `covis list indexes`.")
]
PicturesOption = Annotated[
    list[Path] | None,
    typer.Option(
        callback=existing,
        metavar="FOLDER",
        help="Also show map photos from here (those of folders given to covis index are always shown).",
    ),
]
TilesOption = Annotated[
    str, typer.Option(help="Streets below the map: osm, or the address of a tile server with {z}, {x} and {y}.")
]
PhotoDescriptors = Annotated[
    Path | None,
    typer.Option(
        callback=existing,
        help="Descriptors of the photos, to skip embedding: a store (covis embed), or FILE.npy with FILE.txt.",
    ),
]
TableFormat = Annotated[
    str,
    typer.Option(
        "--format",
        callback=choice_of("--format", TABLE_FORMATS),
        help="Tables as text, markdown, latex (booktabs) or csv.",
    ),
]
