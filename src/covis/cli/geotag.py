"""`covis geotag`: positions for the photos of a library that have none."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from covis.cli.options import MODEL_HELP, Json, TilesOption, existing, existing_model, existing_weights
from covis.cli.output import emit
from covis.cli.verbs import LOCALISE, verb
from covis.core.errors import InputError
from covis.core.tables import counted

if TYPE_CHECKING:
    from covis.geotagging import Outcome
    from covis.geotagging.writing import Written


@verb("geotag", section=LOCALISE, order=3)
def geotag(
    library: Annotated[
        Path | None, Argument(metavar="LIBRARY", callback=existing, help="The folder of a photo library.")
    ] = None,
    map_path: Annotated[
        Path | None, Option("--map", help="Where the library's map is kept. [default: in the cache]")
    ] = None,
    weights: Annotated[
        str, Option(callback=existing_weights, help="Backbone weights (.safetensors), if they cannot be downloaded.")
    ] = "",
    model: Annotated[Path | None, Option(callback=existing_model, help=MODEL_HELP)] = None,
    near: Annotated[str, Option(help="LAT,LON,RADIUS_M: only positions this near.")] = "",
    inside: Annotated[str, Option(help="Only positions in a polygon: GeoJSON, or 'LAT,LON LAT,LON LAT,LON …'.")] = "",
    precision: Annotated[float, Option(help="Probability from which on a position is written unasked.")] = 0.9,
    write: Annotated[
        Literal["xmp", "exif", "csv", "immich"] | None,
        Option(help="Files beside the photos, EXIF of JPEG files, a table, or Immich. [default: nothing is written]"),
    ] = None,
    decisions: Annotated[
        str, Option(help="What to write: the file of the review page, or saved (in covis serve).")
    ] = "",
    output: Annotated[
        Path | None, Option("-o", "--out", help="The review page (.html), or the table of --write csv (.csv).")
    ] = None,
    tiles: TilesOption = "",
    undo: Annotated[bool, Option("--undo", help="Take back all that was written into the library.")] = False,
    immich: Annotated[str, Option(help="Instead of a folder: the address of an Immich server.")] = "",
    key: Annotated[
        Path | None, Option(callback=existing, help="File with Immich's API key. [default: IMMICH_API_KEY]")
    ] = None,
    json: Json = False,
) -> None:
    """Find positions for the photos of a library that have none. By pictures and by time; writes only with --write.

    \b
    Examples:
      covis geotag Pictures/
      covis geotag Pictures/ -o review.html
      covis geotag Pictures/ --decisions decisions.json --write xmp
      covis geotag Pictures/ --write exif --near 55.7047,13.1910,5000
      covis geotag Pictures/ --undo
      covis geotag --immich http://localhost:2283 --key immich.key -o review.html
    """
    import covis.geotagging as geotagging

    if undo:
        if library is None:
            raise InputError("Immich has no way to take a position away by its API; correct photos on its page")
        _emit_undone(geotagging.undo(library), json)
        return
    table, page = Path("geotag.csv"), output
    if output is not None and output.suffix.lower() == ".csv":
        if write != "csv":
            raise InputError(f"{output} is the table of --write csv; give --write csv, or a page (.html)")
        table, page = output, None
    elif output is not None and output.suffix.lower() != ".html":
        raise InputError(f"{output} must end in .html (the review page) or .csv")
    options: dict[str, Any] = {
        "map": map_path, "model": model, "weights": weights, "near": near, "inside": inside, "precision": precision,
        "decisions": decisions or None, "page": page, "tiles": tiles, "write": write or "", "table": table, "immich": immich,
        "key": key,
    }  # fmt: skip
    outcome = geotagging.geotag(library, **options)
    _emit(outcome, f"--immich {immich}" if library is None else shlex.quote(str(library)), page, json)


def _emit(outcome: Outcome, library: str, page: Path | None, json: bool) -> None:
    counts, written = outcome.found.counts(), outcome.written
    sure = sum(counts["confident"].values())
    kinds = ", ".join(f"{n} by {kind}" for kind, n in sorted(counts["confident"].items()))
    lines = [
        f"{counted(counts['photos'], 'photo')}: {counts['with_position']} with a position in "
        f"{counted(counts['regions'], 'region')}, {counts['without_position']} without, {counts['unusable']} unusable",
        f"{counts['suggested']} suggestions, {sure} of them confident{f' ({kinds})' if kinds else ''}",
        "nothing was written" if written is None else f"{counted(len(written.files), 'file')} written",
    ]
    lines += [f"left alone: {name}: {why}" for name, why in sorted(written.left.items())[:5]] if written else []
    then = f"open {page} in a browser" if page else f"covis geotag {library} -o review.html, or --write xmp"
    data = [suggestion.to_dict() for suggestion in outcome.found.suggestions] if json else None
    emit(data, json, "\n".join(lines), then if written is None and counts["suggested"] else "")


def _emit_undone(done: Written, json: bool) -> None:
    lines = [f"{counted(len(done.files), 'file')} restored"]
    lines += [f"left alone: {name}: {why}" for name, why in sorted(done.left.items())]
    emit(done.to_dict(), json, "\n".join(lines))
