"""`covis geotag`: positions for the photos of a library that have none."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.options import MODEL_HELP, Json, TilesOption, choice_of, existing, existing_model, existing_weights
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
        Path | None, typer.Argument(metavar="LIBRARY", callback=existing, help="The folder of a photo library.")
    ] = None,
    map_path: Annotated[
        Path | None, typer.Option("--map", help="Where the library's map is kept. [default: in the cache]")
    ] = None,
    weights: Annotated[
        str,
        typer.Option(callback=existing_weights, help="Backbone weights (.safetensors), if they cannot be downloaded."),
    ] = "",
    model: Annotated[Path | None, typer.Option(callback=existing_model, help=MODEL_HELP)] = None,
    near: Annotated[str, typer.Option(help="LAT,LON,RADIUS_M: only positions this near.")] = "",
    inside: Annotated[
        str, typer.Option(help="Only positions in a polygon: a GeoJSON file, or corners 'LAT,LON LAT,LON LAT,LON …'.")
    ] = "",
    precision: Annotated[float, typer.Option(help="Probability from which on a position is written unasked.")] = 0.9,
    write: Annotated[
        str,
        typer.Option(
            callback=choice_of("--write", ("", "xmp", "exif", "csv", "immich")),
            help="xmp (files beside the photos), exif (inside JPEG files), csv, or immich. [default: nothing is written]",
        ),
    ] = "",
    decisions: Annotated[
        str, typer.Option(help="What to write: the file of the review page, or saved (in covis serve).")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="The review page (.html), or the table of --write csv (.csv).")
    ] = None,
    tiles: TilesOption = "",
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back everything that was written into the library.")
    ] = False,
    immich: Annotated[str, typer.Option(help="Instead of a folder: the address of an Immich server.")] = "",
    key: Annotated[
        Path | None,
        typer.Option(
            callback=existing, help="A file with the API key of Immich. [default: environment IMMICH_API_KEY]"
        ),
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
        "decisions": decisions or None, "page": page, "tiles": tiles, "write": write, "table": table, "immich": immich, "key": key,
    }  # fmt: skip
    outcome = geotagging.geotag(library, **options)
    source = f"--immich {immich}" if library is None else str(library)
    _emit(outcome, source if library is None else shlex.quote(source), page, json)


def _emit(outcome: Outcome, library: str, page: Path | None, json: bool) -> None:
    counts, written = outcome.found.counts(), outcome.written
    if json:
        emit([suggestion.to_dict() for suggestion in outcome.found.suggestions], True)
    lines = [
        f"{counted(counts['photos'], 'photo')}: {counts['with_position']} with a position in "
        f"{counted(counts['regions'], 'region')}, {counts['without_position']} without, {counts['unusable']} unusable"
    ]
    sure = sum(counts["confident"].values())
    kinds = ", ".join(f"{n} by {kind}" for kind, n in sorted(counts["confident"].items()))
    lines.append(f"{counts['suggested']} suggestions, {sure} of them confident{f' ({kinds})' if kinds else ''}")
    if written is None:
        lines.append("nothing was written")
    else:
        lines.append(f"{counted(len(written.files), 'file')} written")
        lines += [f"left alone: {name}: {why}" for name, why in sorted(written.left.items())[:5]]
    then = f"open {page} in a browser" if page else f"covis geotag {library} -o review.html, or --write xmp"
    if not json:
        emit(None, False, "\n".join(lines), then if written is None and counts["suggested"] else "")


def _emit_undone(done: Written, json: bool) -> None:
    lines = [f"{counted(len(done.files), 'file')} restored"]
    lines += [f"left alone: {name}: {why}" for name, why in sorted(done.left.items())]
    emit(done.to_dict(), json, "\n".join(lines))
