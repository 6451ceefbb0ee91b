"""`covis sample`: photos to try covis with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from covis.cli.options import Json
from covis.cli.output import emit
from covis.cli.verbs import LOCALISE, verb


@verb("sample", section=LOCALISE, order=0)
def sample(
    folder: Annotated[Path, Argument(metavar="DIR", help="Folder for the photos; made if it does not exist.")],
    json: Json = False,
) -> None:
    """Write sample photos: three walks through a simulated town, and a new walk to locate. Re-run to resume.

    The photos in DIR/photos have position, heading and time in their EXIF data; so have those in DIR/new, to compare.
    Nothing is downloaded.

    \b
    Examples:
      covis sample town-photos
      covis index town-photos/photos -o town.map
      covis locate town.map town-photos/new -o found.html
    """
    import numba  # noqa: F401 - rendering would take hours without it

    from covis.town.sample import write_sample

    counts = write_sample(folder)
    text = f"{folder}: {counts['photos']} photos of three walks in photos/, {counts['new']} of a new walk in new/"
    emit({"folder": str(folder), **counts}, json, text, f"covis index {folder}/photos -o {folder}/town.map")
