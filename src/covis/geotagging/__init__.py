"""A photo library gets its missing places: photos with GPS teach where, photos without are located and, if asked, written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from covis.core import artifacts, machine
from covis.core.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.geotagging.session import Geotagged
    from covis.geotagging.suggestions import Suggestion
    from covis.geotagging.writing import Written

WAYS = ("xmp", "exif", "csv", "immich")
"""How positions are written: those of a folder, then those of a server."""
SAVED = "saved"
"""In place of a file of decisions: those that were saved in the service."""


class Outcome(NamedTuple):
    """What a run found, and what it wrote."""

    found: Geotagged
    chosen: list[Suggestion]
    """Those that may be written: by a person's decisions, or the confident ones."""
    written: Written | None


def geotag(
    library: Path | str | None = None,
    *,
    map: Path | str | None = None,
    model: Path | str | None = None,
    weights: str = "",
    near: str = "",
    inside: str = "",
    precision: float = 0.9,
    decisions: Path | str | None = None,
    write: str = "",
    table: Path | str = "geotag.csv",
    page: Path | str | None = None,
    tiles: str = "",
    immich: str = "",
    key: Path | str | None = None,
) -> Outcome:
    """Finds positions for the photos of a library that have none, as `covis geotag` does; writes only where asked to.

    library: a folder. map: where its map is kept, by default in the user's cache. model, weights: as for `Map.build`.
    near (`LAT,LON,RADIUS_M`), inside (GeoJSON or corners): where positions must lie. precision: probability from which
    on a position is written unasked. decisions: a file of the review page, or `saved` for those saved in `covis serve`,
    which then decides alone. write: `xmp`, `exif`, `csv` (to `table`) or `immich`. page: where a review page is written.
    tiles: streets on it. immich: the address of a server that is read instead of a folder, with the API key of the file
    `key`.

    >>> found, chosen, written = covis.geotag("Pictures/", page="review.html")  # doctest: +SKIP
    >>> chosen[0].answer.lat, chosen[0].answer.lon, chosen[0].evidence  # doctest: +SKIP
    (55.7046, 13.1911, 'pictures and time')
    """
    from covis.geotagging.decisions import accepted
    from covis.geotagging.immich import Immich
    from covis.geotagging.library import Library, scan
    from covis.geotagging.review import StoredReview, review_data, write_review
    from covis.geotagging.session import GeotagOptions, suggest
    from covis.geotagging.writing import known_guesses, write_positions, write_table
    from covis.search.area import read_area

    if (library is None) == (not immich):
        raise InputError("give the folder of a photo library, or --immich URL")
    ways = WAYS[2:] if library is None else WAYS[:3]
    if write and write not in ways:
        raise unknown_name("way of writing", write, ways)
    options = GeotagOptions(model, weights, precision, read_area(near, inside))
    server = Immich.of(immich, None if key is None else Path(key)) if library is None else None
    folder = None if library is None else existing_library(library)
    path = map_of(immich if folder is None else str(folder), map)
    memory = memory_of(path)
    memory.mkdir(parents=True, exist_ok=True)
    root = folder or memory / "previews"
    with artifacts.lock(memory):
        record = memory / "library.json"
        known = Library.load(record, root)
        if server is not None:
            server.read_into(known, memory)
        else:
            scan(known, record)
            known.photos = known_guesses(known.photos, root)
        found = suggest(known, path, options, lambda: known.save(record))
        data, stored = review_data(found, precision), StoredReview(memory)
        stored.write(data, root)
        if page is not None:
            write_review(Path(page), data, root, tiles)
        if decisions is None:
            chosen = [suggestion for suggestion in found.suggestions if suggestion.confident]
        else:
            chosen = accepted(found.suggestions, stored.decisions if decisions == SAVED else Path(decisions))
        written = None
        if write == "csv":
            written = write_table(chosen, Path(table))
        elif write and server is not None:
            written = server.write(chosen, memory)
        elif write:
            written = write_positions(chosen, write, root)
        return Outcome(found, chosen, written)


def undo(library: Path | str) -> Written:
    """Takes back everything that `geotag` wrote into a library."""
    from covis.geotagging.writing import Journal

    return Journal(existing_library(library)).undo()


def existing_library(library: Path | str) -> Path:
    """The folder of a library."""
    root = Path(library).resolve()
    if not root.is_dir():
        raise InputError(f"{library} is not a folder; give the folder of a photo library")
    return root


def map_of(library: str, given: Path | str | None) -> Path:
    """Where the map of a library is kept; an error where something else is there."""
    if given is None:
        return machine.cache_folder() / "geotag" / artifacts.fingerprint(library) / "library.map"
    path = Path(given)
    if path.is_file() or (path.exists() and not memory_of(path).is_dir() and any(path.iterdir())):
        raise InputError(f"{path} was not made by covis geotag; give another --map, or covis locate {path} PHOTOS")
    return path


def memory_of(map: Path) -> Path:
    """The folder that remembers the library of a map."""
    return map.with_name(f"{map.name}.library")


__all__ = ["WAYS", "Outcome", "geotag", "undo"]
