"""Options that several verbs share, and checks of arguments before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from typer import Argument, Option

from covis.cli.names import check_name, known_names
from covis.core.errors import InputError, near_path, unknown_name

PathOrPaths = TypeVar("PathOrPaths", Path, Path | None, list[Path], list[Path] | None)
MODEL_HELP = (
    "A model or run folder, an ONNX file, a descriptor store, another tool's FILE.npy with FILE.txt, or a name from "
    "`covis list models`."
)
MAKE_A_MAP = "make a map with: covis index PHOTOS -o MAP"


def missing(path: Path, hint: str = "check the path") -> InputError:
    """An error for a path that does not exist."""
    return InputError(f"{path} does not exist{near_path(path)}; {hint}")


def existing(given: PathOrPaths) -> PathOrPaths:
    """Checks that the path or paths of an argument exist."""
    for path in (given,) if isinstance(given, Path) else given or ():
        if not path.exists():
            raise missing(path)
    return given


def existing_model(path: Path | None) -> Path | None:
    """Checks that a model is an existing path or a known name."""
    if path is None or path.exists():
        return path
    from covis.models.published import is_published

    if not is_published(path):
        hint = "give a model folder, a run folder, an ONNX file, a descriptor store or a name (covis list models)"
        raise missing(path, hint)
    return path


def existing_weights(given: str) -> str:
    """Checks that weights are a name (`pretrained`, `none`) or an existing file."""
    if given and given.partition(":")[0] not in ("pretrained", "none", "null"):
        existing(Path(given))
    return given


def existing_map(path: Path) -> Path:
    """Checks that the path of a map exists."""
    if not path.exists():
        raise missing(path, MAKE_A_MAP)
    return path


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


def _index_kind(name: str) -> str:
    from covis.search import KINDS

    known = ("auto", "exact", *KINDS)
    if name not in known:
        raise unknown_name("kind of index", name, known)
    return name


def known_recipe(given: str | list[str] | None) -> str | list[str] | None:
    """Checks that recipes are known names or existing files."""
    for name in [given] if isinstance(given, str) else given or []:
        if name.endswith((".toml", ".json")):
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


Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Checkpoint = Annotated[
    Path | None,
    Option("--weights", callback=existing, help="The checkpoint of a model given by name, if it cannot be downloaded."),
]
DataPath = Annotated[
    list[str] | None,
    Option("--data", callback=_check_data, help="DATASET=PATH, repeatable; PATH alone for one. The town needs none."),
]
RecipeSet = Annotated[
    list[str] | None,
    Option("--set", callback=_check_settings, help="Change a field of the recipe: FIELD=VALUE, repeatable."),
]
MapPath = Annotated[Path, Argument(callback=existing_map, metavar="MAP", help="A map (covis index).")]
FrameOption = Annotated[
    str,
    Option("--frame", help="Frame in metres: EPSG:CODE, PROJ text or LAT,LON of its origin. [default: by positions]"),
]
TrackOption = Annotated[
    Path | None, Option(callback=existing, help="A table or track (GPX) with the positions of the photos.")
]
UtcOffset = Annotated[str, Option(help="Offset of the camera's clock, if photos do not state it, such as +02:00.")]
IndexKind = Annotated[str, Option("--kind", callback=_index_kind, help="auto, or a name from `covis list indexes`.")]
PicturesOption = Annotated[
    list[Path] | None,
    Option(callback=existing, metavar="FOLDER", help="Also show photos from here (the map's own are shown anyway)."),
]
TilesOption = Annotated[
    str, Option(help="Streets below the map: osm, a tile server's address with {z}, {x}, {y}, or a FILE.mbtiles.")
]
PhotoDescriptors = Annotated[
    Path | None,
    Option(callback=existing, help="Descriptors of the photos: a store (covis embed), or FILE.npy with FILE.txt."),
]
TableFormat = Annotated[Literal["text", "markdown", "latex", "csv"], Option("--format", help="How tables are written.")]
