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

from covis.core.arrays import Bools, Floats
from covis.core.errors import InputError
from covis.core.progress import say, track
from covis.core.tables import counted
from covis.geotagging.clocks import Clocks
from covis.geotagging.describing import Described
from covis.geotagging.library import Library, LibraryPhoto, bursts
from covis.geotagging.likelihood import Likelihood
from covis.geotagging.regions import Regions
from covis.geotagging.suggestions import Suggestion, combine
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
    """What is suggested for the photos of a library, and what it rests on."""

    library: Library
    suggestions: list[Suggestion] = field(default_factory=list)
    map: Map | None = None

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
    wanted = [photo for photo in library.photos if photo.wanted]
    known = list(bursts(library.photos))
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
    xy = regions.to_plane(lat, lon)
    opened = _current_map(library, known, xy, path, options, save)
    answers = _locate(library, opened, wanted, path)
    index = {photo.name: i for i, photo in enumerate(library.photos)}
    clocks = Clocks(library.photos, [index[photo.name] for photo in known], xy)
    clocks.compare(
        (index[photo.name], index[match.image])
        for photo, (answer, _) in zip(wanted, answers, strict=True)
        for match in answer.matches
        if (match.probability or 0.0) >= _TOGETHER and match.image in index
    )
    guesses = [clocks.guess(index[photo.name]) for photo in wanted]
    albums = Counter(photo.album for photo in known)
    among = np.array([
        is_place and (guess is not None or _FEWEST <= albums[photo.album] < len(known))
        for photo, guess, (_, is_place) in zip(wanted, guesses, answers, strict=True)
    ], bool)  # fmt: skip
    likely = Likelihood.of(opened.calibration).answers([answer for answer, _ in answers], among, options.precision)
    made, areas = Geotagged(library, map=opened), _areas(regions, options)
    for photo, guess, answer, (_, is_place) in zip(wanted, guesses, likely, answers, strict=True):
        combined, evidence = combine(
            photo, answer, guess, is_place=is_place, precision=options.precision, regions=regions
        )
        combined = replace(combined, matches=combined.matches[:_SHOWN_MATCHES])
        beside = () if guess is None else tuple((library.photos[i].name, s) for i, s in guess.neighbours)
        made.suggestions.append(_inside(Suggestion(photo, combined, evidence, beside), regions, areas))
    return made


def _areas(regions: Regions, options: GeotagOptions) -> dict[int, Area] | None:
    """Region → the area asked for in its frame, where that reaches it; None: anywhere."""
    if options.area is None:
        return None
    found: dict[int, Area] = {}
    problem: InputError | None = None
    for i in range(len(regions)):
        try:
            found[i] = options.area(regions.frame(i))
        except InputError as error:  # too far away; in all regions, if it is wrong in itself
            problem = error
    if not found and problem is not None:
        raise problem
    return found


def _inside(suggestion: Suggestion, regions: Regions, areas: dict[int, Area] | None) -> Suggestion:
    """The suggestion, without its position where that lies outside the area asked for."""
    place = None if suggestion.answer.position is None else suggestion.answer.position.place
    if areas is None or place is None or place.lat is None or place.lon is None:
        return suggestion
    area = areas.get(int(regions.of([place.lat], [place.lon])[0]))
    if area is not None and area.contains([(place.x, place.y)])[0]:
        return suggestion
    note = "the likeliest place is outside the area asked for"
    return replace(
        suggestion, answer=replace(suggestion.answer, position=None, confident=False, note=note), evidence=""
    )


# The map


_Content = tuple[str, float, float]


def _current_map(
    library: Library,
    known: Sequence[LibraryPhoto],
    xy: Floats,
    path: Path,
    options: GeotagOptions,
    save: Callable[[], None],
) -> Map:
    """The library's map with all known photos and no others; added to and taken from, never made anew."""
    wanted = {_content(photo): i for i, photo in enumerate(known)}
    if not (path / CURRENT).is_file():
        if set(library.mapped.values()) != set(wanted):  # an unfinished map of other photos
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(path.with_name(f"{path.name}.model"), ignore_errors=True)
        library.mapped = {photo.name: _content(photo) for photo in known}
        save()
        built = BuildOptions(model=options.model, weights=options.weights)
        opened = build_map(Map, _images(library, known, xy), path, built).map
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
        opened = opened.add(_images(library, [known[i] for i in new], xy[new]), prefix=prefix)
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


def _images(library: Library, photos: Sequence[LibraryPhoto], xy: Floats) -> ImageSet:
    """Photos for the map; those of one day and region are one walk, which is held out together."""
    region = Regions(library.regions).region_at(xy)
    walks = [f"{r} {p.day or p.name.rpartition('/')[0]}" for r, p in zip(region, photos, strict=True)]
    poses = Poses(xy, np.full(len(photos), np.nan))
    return ImageSet.of(library.root, [photo.name for photo in photos], poses, walks)


# The photos asked about


def _locate(library: Library, opened: Map, wanted: Sequence[LibraryPhoto], path: Path) -> list[tuple[Answer, bool]]:
    """The map's answer to each photo, with the library's own names, and whether the photo looks like a place at all."""
    described = Described(path.with_name(f"{path.name}.library") / "asked", opened)
    lost = described.add(wanted)
    current = {(_content(photo)): photo for photo in library.photos if photo.lat is not None}
    current |= {_content(photo): photo for photo in bursts(library.photos)}
    places = _PlaceJudge.of(opened)
    answers: list[tuple[Answer, bool]] = []
    for start in track(range(0, len(wanted), _BATCH), "locating", unit="batches"):
        part = wanted[start : start + _BATCH]
        vectors = described.of([photo for photo in part if photo.key not in lost])
        bad = {i: lost[photo.key] for i, photo in enumerate(part) if photo.key in lost}
        files = [Path(photo.file) for photo in part]
        found = opened.judge_for(vectors, _MATCHES, LocateOptions()).answers(files, vectors, bad, _MATCHES)
        alike = iter(places(opened, vectors).tolist())
        for i, answer in enumerate(found):
            if i in bad:
                answers.append((unusable(files[i], bad[i]), False))
                continue
            answers.append((_renamed(answer, library, current), bool(next(alike))))
    return answers


def _renamed(answer: Answer, library: Library, current: dict[_Content, LibraryPhoto]) -> Answer:
    """Matches by the names and files that photos have now."""
    photos = [current.get(library.mapped.get(match.image, ("", math.nan, math.nan))) for match in answer.matches]
    matches = (
        match if photo is None else replace(match, image=photo.name, file=Path(photo.file))
        for match, photo in zip(answer.matches, photos, strict=True)
    )  # fmt: skip
    return replace(answer, matches=tuple(matches), view=None)


@dataclass(frozen=True, eq=False)
class _PlaceJudge:
    """Tells photos of places from screenshots, pages, noise and the like, also in places that the map does not have."""

    bank: Bank
    """Pictures of no place."""
    least: float
    """How much nearer to the map than to these a photo of a place is."""

    @classmethod
    def of(cls, opened: Map) -> _PlaceJudge:
        bank = opened.bank
        if bank is None:
            return cls(Bank.empty(opened.dim), -np.inf)
        chosen = np.isin(bank.family, NO_PLACES)
        bank = Bank(bank.descriptors[chosen], bank.family[chosen])
        lead = bank.distances_between_families() - opened.search(bank.descriptors, 1).distances[:, 0]
        return cls(bank, float(np.quantile(lead, 1 - _NO_PLACE_SHARE)) if len(lead) else -np.inf)

    def __call__(self, opened: Map, vectors: np.ndarray[Any, Any]) -> Bools:
        """(Q,) whether each photo looks like a place."""
        lead: Floats = self.bank.distances(vectors) - opened.search(vectors, 1).distances[:, 0]
        return np.asarray(lead > self.least)
