"""From a library to suggestions: its map brought up to date, photos without a position located by pictures and by time."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from covis.core.arrays import Bools, Descriptors
from covis.core.errors import InputError
from covis.core.progress import say, track
from covis.core.tables import counted
from covis.geotagging.clocks import Clocks
from covis.geotagging.describing import describe
from covis.geotagging.library import Library, LibraryPhoto, bursts
from covis.geotagging.likelihood import likely
from covis.geotagging.regions import Regions
from covis.geotagging.suggestions import Suggestion, combine, on_earth
from covis.images import ImageSet
from covis.maps.answers import Answer, unusable
from covis.maps.building import BuildOptions, build_map
from covis.maps.elsewhere import NO_PLACES, Bank
from covis.maps.locating import LocateOptions
from covis.maps.map import Map
from covis.maps.storage.layout import CURRENT
from covis.poses import Poses
from covis.search import Area

_BATCH = 2048
_MATCHES = 10
_SHOWN_MATCHES = 5
_NO_PLACE_SHARE = 0.02
"""Share of the drawn pictures of no place that look like a place to a map that knows only those of other kinds."""
_TOGETHER = 0.2
"""Probability of a match from which on it counts when clocks are compared."""
_FEWEST = 20
"""Photos with a position that are needed for a map."""


@dataclass(frozen=True)
class GeotagOptions:
    """How positions are found."""

    model: Path | str | None = None
    """A model to use unchanged; None: one is fitted to the library."""
    weights: str = ""
    """Weights of the network that is fitted."""
    precision: float = 0.9
    """Probability from which on a position is written unasked."""
    area: Callable[[str], Area] | None = None
    """Frame → the area in it that positions must lie in; None: anywhere."""

    def __post_init__(self) -> None:
        if not 0 < self.precision < 1:
            raise InputError(f"--precision is a share between 0 and 1 such as 0.9, not {self.precision:g}")


@dataclass
class Geotagged:
    """What is suggested for the photos of a library."""

    library: Library
    suggestions: list[Suggestion] = field(default_factory=list)

    def counts(self) -> dict[str, Any]:
        """Numbers of photos, for people and for JSON."""
        photos, found = self.library.photos, [s for s in self.suggestions if s.answer.position is not None]
        return {
            "photos": len(photos), "with_position": sum(p.lat is not None for p in photos),
            "earlier_guesses": sum(p.own for p in photos), "unusable": sum(bool(p.problem) for p in photos),
            "regions": len(self.library.regions), "without_position": len(self.suggestions), "suggested": len(found),
            "confident": dict(Counter(s.evidence for s in found if s.confident)),
        }  # fmt: skip


def suggest(library: Library, path: Path, options: GeotagOptions, save: Callable[[], None]) -> Geotagged:
    """Suggestions for all photos without a position, by the map at `path`, which is made or brought up to date.

    save: writes what is remembered of the library.
    """
    wanted, known = [photo for photo in library.photos if photo.wanted], list(bursts(library.photos))
    if not wanted:
        return Geotagged(library)
    if len(known) < _FEWEST:
        raise InputError(
            f"{library.root}: {counted(len(known), 'photo')} with a position; covis geotag learns places from at least "
            f"{_FEWEST}, so locate the photos in another map: covis locate MAP {library.root}"
        )
    regions = Regions(library.regions)
    lat, lon = np.array([photo.place for photo in known], np.float64).T
    regions.extend(lat, lon)
    library.regions = regions.centres
    save()
    images = _images(library, known, regions.to_plane(lat, lon), regions)
    opened = _current_map(library, known, images, path, options, save)
    located, is_place = _locate(library, opened, wanted, path.with_name(f"{path.name}.library") / "asked")
    index = {photo.name: i for i, photo in enumerate(library.photos)}
    clocks = Clocks(library.photos, [index[photo.name] for photo in known], images.poses.xy)
    clocks.compare(
        (index[photo.name], index[match.image])
        for photo, answer in zip(wanted, located, strict=True)
        for match in answer.matches
        if (match.probability or 0.0) >= _TOGETHER and match.image in index
    )
    guesses = [clocks.guess(index[photo.name]) for photo in wanted]
    albums = Counter(photo.album for photo in known)
    in_albums = [_FEWEST <= albums[photo.album] < len(known) for photo in wanted]
    among = is_place & np.array([g is not None or album for g, album in zip(guesses, in_albums, strict=True)], bool)
    judged, areas = likely(opened.calibration, located, among, options.precision), _areas(regions, options)
    suggestions = []
    for photo, guess, answer, place in zip(wanted, guesses, judged, is_place.tolist(), strict=True):
        combined, evidence = combine(answer, guess, is_place=place, precision=options.precision)
        combined = on_earth(replace(combined, matches=combined.matches[:_SHOWN_MATCHES]), regions)
        beside = () if guess is None else tuple((library.photos[i].name, s) for i, s in guess.neighbours)
        if areas is not None and not _is_inside(combined, regions, areas):
            note = "the likeliest place is outside the area asked for"
            combined, evidence = replace(combined, position=None, confident=False, note=note), ""
        suggestions.append(Suggestion(photo, combined, evidence, beside))
    return Geotagged(library, suggestions)


def _areas(regions: Regions, options: GeotagOptions) -> dict[int, Area] | None:
    """Region → the area asked for in its frame, where that reaches it; None: anywhere."""
    if options.area is None:
        return None
    found: dict[int, Area] = {}
    for i in range(len(regions)):
        try:
            found[i] = options.area(regions.frame(i))
        except InputError:  # too far away; in all regions, if it is wrong in itself
            if i == len(regions) - 1 and not found:
                raise
    return found


def _is_inside(answer: Answer, regions: Regions, areas: dict[int, Area]) -> bool:
    """Whether the answer has no position, or one in the area asked for."""
    if answer.position is None or answer.lat is None or answer.lon is None:
        return True
    area = areas.get(int(regions.of([answer.lat], [answer.lon])[0]))
    return area is not None and bool(area.contains([(answer.position.place.x, answer.position.place.y)])[0])


_Content = tuple[str, float, float]


def _current_map(
    library: Library,
    known: Sequence[LibraryPhoto],
    images: ImageSet,
    path: Path,
    options: GeotagOptions,
    save: Callable[[], None],
) -> Map:
    """The library's map with all known photos, which are `images`, and no others; updated, never made anew."""
    wanted = {_content(photo): i for i, photo in enumerate(known)}
    if not (path / CURRENT).is_file():
        if set(library.mapped.values()) != set(wanted):  # an unfinished map of other photos
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(path.with_name(f"{path.name}.model"), ignore_errors=True)
        library.mapped = {photo.name: _content(photo) for photo in known}
        save()
        opened = build_map(Map, images, path, BuildOptions(model=options.model, weights=options.weights)).map
        library.failed |= _forget_lost(library, opened)
        save()
        return opened
    opened = Map.open(path)
    _forget_lost(library, opened)  # of a run that was interrupted
    gone = [name for name in map(opened.images.name, range(len(opened))) if library.mapped.get(name) not in wanted]
    have = set(library.mapped.values()) & set(wanted)
    new = [i for content, i in wanted.items() if content not in have and content[0] not in library.failed]
    say(f"the map has {counted(len(opened), 'photo')}: {len(new)} to add, {len(gone)} to remove")
    if new:
        prefix = f"{opened.version}/"
        library.mapped |= {prefix + known[i].name: _content(known[i]) for i in new}
        save()
        opened = opened.add(images.subset(new), prefix=prefix)
    library.failed |= _forget_lost(library, opened)
    if gone:
        opened = opened.remove(gone)
        _forget_lost(library, opened)
    save()
    return opened


def _content(photo: LibraryPhoto) -> _Content:
    lat, lon = photo.place
    return photo.key, round(lat, 7), round(lon, 7)


def _forget_lost(library: Library, opened: Map) -> set[str]:
    """Forgets photos that the map does not have; returns their content."""
    names = set(map(opened.images.name, range(len(opened))))
    lost = {content[0] for name, content in library.mapped.items() if name not in names}
    library.mapped = {name: content for name, content in library.mapped.items() if name in names}
    return lost


def _images(library: Library, photos: Sequence[LibraryPhoto], xy: np.ndarray[Any, Any], regions: Regions) -> ImageSet:
    """Photos for the map; those of one day and region are one walk, which is held out together."""
    walks = [f"{r} {p.day or p.album}" for r, p in zip(regions.region_at(xy), photos, strict=True)]
    poses = Poses(xy, np.full(len(photos), np.nan))
    return ImageSet.of(library.root, [photo.name for photo in photos], poses, walks)


def _locate(library: Library, opened: Map, wanted: Sequence[LibraryPhoto], folder: Path) -> tuple[list[Answer], Bools]:
    """The map's answer to each photo, with the library's own names, and whether the photo looks like a place at all."""
    vectors, lost = describe(opened, wanted, folder)
    current = {_content(photo): photo for photo in library.photos if photo.lat is not None}
    current |= {_content(photo): photo for photo in bursts(library.photos)}
    looks_placed = _place_judge(opened)
    answers: list[Answer] = []
    is_place = np.array([photo.key not in lost for photo in wanted], bool)
    for start in track(range(0, len(wanted), _BATCH), "locating", unit="batches"):
        part = wanted[start : start + _BATCH]
        described = np.array([vectors[photo.key] for photo in part if photo.key not in lost], np.float32)
        described = described.reshape(-1, opened.dim)
        bad = {i: lost[photo.key] for i, photo in enumerate(part) if photo.key in lost}
        paths = [Path(photo.file) for photo in part]
        found = opened.judge_for(described, _MATCHES, LocateOptions()).answers(paths, described, bad, _MATCHES)
        answers += [
            unusable(paths[i], bad[i]) if i in bad else _renamed(answer, library, current)
            for i, answer in enumerate(found)
        ]
        some = is_place[start : start + _BATCH]
        some[some] = looks_placed(described)
    return answers, is_place


def _renamed(answer: Answer, library: Library, current: dict[_Content, LibraryPhoto]) -> Answer:
    """Matches by the names and files that photos have now."""
    photos = [current.get(library.mapped.get(match.image, ("", math.nan, math.nan))) for match in answer.matches]
    matches = (
        match if photo is None else replace(match, image=photo.name, file=Path(photo.file))
        for match, photo in zip(answer.matches, photos, strict=True)
    )
    return replace(answer, matches=tuple(matches), view=None)


def _place_judge(opened: Map) -> Callable[[Descriptors], Bools]:
    """Descriptors → whether each photo is of a place, also of one that the map does not have; no screenshot or page.

    Photos of places are nearer to the map than to drawn pictures of no place.
    """
    bank = opened.bank
    if bank is None:
        return lambda vectors: np.ones(len(vectors), bool)
    chosen = np.isin(bank.family, NO_PLACES)
    bank = Bank(bank.descriptors[chosen], bank.family[chosen])

    def lead(vectors: Descriptors, to_bank: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.asarray(to_bank - opened.search(vectors, 1).distances[:, 0])

    of_bank = lead(bank.descriptors, bank.distances_between_families())
    least = float(np.quantile(of_bank, 1 - _NO_PLACE_SHARE)) if len(of_bank) else -np.inf
    return lambda vectors: lead(vectors, bank.distances(vectors)) > least
