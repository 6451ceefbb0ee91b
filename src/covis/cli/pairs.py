"""`covis pairs`: image pairs, features and positions for structure from motion; loop closures for SLAM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from covis.cli.options import Json, choice_of, existing
from covis.cli.output import emit
from covis.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from covis.core.arrays import Descriptors
    from covis.descriptors import Describer
    from covis.field.loops import LoopClosure, LoopFit
    from covis.field.pairs import ImagePairs
    from covis.graph import SimilarityGraph
    from covis.images import ImageSet

WAYS = ("retrieval", "overlap", "both")
STREAM = Path("-")
_BLOCK = 64
"""Images that are described at a time while loop closures are printed."""


class PairSide(NamedTuple):
    """Images and, if something describes them, their descriptors by ids."""

    images: ImageSet
    describe: Callable[[NDArray[np.int64]], Descriptors] | None
    path: Path
    model: str = ""
    """Fingerprint of what describes them."""


def pairs(
    source: Annotated[
        Path,
        typer.Argument(callback=existing, metavar="MAP_OR_IMAGES", help="A map, a folder, a table, a COLMAP model, …"),
    ],
    output: Annotated[Path, typer.Option("-o", "--out", help="pairs.txt: two names on each line; - for stdout.")],
    queries: Annotated[
        Path | None,
        typer.Option(
            callback=existing, help="Pair these images with the map's, as for localisation. [default: one set]"
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(callback=existing, help="Describes images that are not a map: a model or a store.")
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            callback=choice_of("--by", ("", *WAYS)),
            help=f"{' | '.join(WAYS)} (union). [default: retrieval with descriptors, else overlap]",
        ),
    ] = "",
    per_image: Annotated[int, typer.Option(min=1, help="Maximum number of pairs per image.")] = 20,
    least: Annotated[float, typer.Option(help="overlap: minimum share of the view in common, 0 to 1.")] = 0.1,
    exhaustive_below: Annotated[
        int | None, typer.Option(help="Use all possible pairs for sets of up to this many images. [default: 30]")
    ] = None,
    features: Annotated[Path | None, typer.Option(help="Also write the descriptors as hloc's global-feats.h5.")] = None,
    pose_priors: Annotated[Path | None, typer.Option(help="Also write positions into this COLMAP database.")] = None,
    loops: Annotated[bool, typer.Option("--loops", help="Loop closures of one recording instead of pairs.")] = False,
    time_gap: Annotated[float, typer.Option(help="loops: minimum time between two images, in seconds.")] = 30.0,
    least_probability: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="loops: leave out candidates less likely to be correct.")
    ] = 0.0,
    fit: Annotated[
        Path | None,
        typer.Option(
            help="loops: learn from this recording's positions how likely a candidate is correct; write it to this file."
        ),
    ] = None,
    probability: Annotated[
        Path | None, typer.Option(callback=existing, help="loops: use what --fit learned from another recording.")
    ] = None,
    json: Json = False,
) -> None:
    """Choose image pairs for hloc or COLMAP to match. Far fewer than all possible pairs.

    \b
    Examples:
      covis pairs town.map -o pairs.txt --per-image 20
      covis pairs town.map --queries new/ -o pairs-loc.txt
      covis pairs sparse/0 -o pairs.txt --by overlap --least 0.3
      covis pairs walk.csv --model runs/quick/model -o pairs.txt --by both --features global-feats.h5
      covis pairs drive.csv --model runs/quick/model --loops --time-gap 60 -o -
      covis pairs surveyed.csv --model runs/quick/model --loops --fit loops.json -o loops.txt
    """
    if not loops and (fit is not None or probability is not None):
        raise InputError("--fit and --probability belong to loop closures; give --loops too")
    database = _side(source, model)
    if loops:
        judged = None if probability is None else _loop_fit(probability, database)
        _write_loops(database, output, time_gap, least_probability, judged, fit, json)
        return
    other = database if queries is None else _queries(queries, source, model)
    chosen = by or ("retrieval" if database.describe is not None else "overlap")
    made, way = _pairs(other, database, chosen, per_image=per_image, least=least, exhaustive_below=exhaustive_below)
    _emit(made, way, other, database, output, features=features, pose_priors=pose_priors, json=json)


def _side(path: Path, model: Path | None) -> PairSide:
    """A map with its own descriptors, or images with those of a describer."""
    from covis.reading.sources import open_images

    if _is_map(path):
        from covis.maps.map import Map

        opened = Map.open(path)
        if model is not None:
            raise InputError(f"{path} is a map, which has its own descriptors; leave --model out")
        rows, descriptors = opened.state.rows, opened.descriptors
        return PairSide(opened.images, lambda ids: descriptors[rows[ids]], path, opened.model_fingerprint)
    return _described(open_images(path), model, path)


def _described(images: ImageSet, model: Path | None, path: Path) -> PairSide:
    if model is None:
        return PairSide(images, None, path)
    from covis.describing.describers import open_describer

    describer = open_describer(model)
    return PairSide(images, _describing(describer, images), path, str(describer.facts["fingerprint"]))


def _is_map(path: Path) -> bool:
    from covis.maps.storage.layout import RECORD

    return (path / RECORD).is_file()


def _describing(describer: Describer, images: ImageSet) -> Callable[[NDArray[np.int64]], Descriptors]:
    def describe(ids: NDArray[np.int64]) -> Descriptors:
        rows, lost = describer.describe(images.subset(ids))
        if lost.any():
            name = images.name(int(ids[int(lost.argmax())]))
            raise InputError(
                f"{int(lost.sum())} images cannot be described (first: {name}); take them out of {images.root}"
            )
        return rows

    return describe


def _queries(path: Path, source: Path, model: Path | None) -> PairSide:
    """Queries, described by the database's model."""
    from covis.reading.sources import open_images

    images = open_images(path)
    if _is_map(source):
        from covis.maps.storage.layout import MODEL

        return _described(images, source / MODEL, path)
    return _described(images, model, path)


def _pairs(
    queries: PairSide, database: PairSide, by: str, *, per_image: int, least: float, exhaustive_below: int | None
) -> tuple[ImagePairs, str]:
    from covis.field import pairs

    one_set = queries is database
    small = pairs.EXHAUSTIVE if exhaustive_below is None else exhaustive_below
    if max(len(queries.images), len(database.images)) <= small:
        return pairs.exhaustive(len(queries.images), None if one_set else len(database.images)), "exhaustive"
    parts = []
    if by in ("retrieval", "both"):
        parts.append(_by_retrieval(queries, database, per_image))
    if by in ("overlap", "both"):
        graph = _overlap(queries, database)
        parts.append(pairs.by_overlap(graph, per_image, least, one_set=one_set))
    return pairs.joined_pairs(*parts, one_set=one_set), by


def _by_retrieval(queries: PairSide, database: PairSide, per_image: int) -> ImagePairs:
    import numpy as np

    from covis.field import pairs
    from covis.search import rank

    if queries.describe is None or database.describe is None:
        raise InputError(f"{queries.path}: retrieval needs descriptors; give --model, or --by overlap")
    rows = database.describe(np.arange(len(database.images)))
    own = rows if queries is database else queries.describe(np.arange(len(queries.images)))
    ranking = rank(own, rows, min(len(rows), per_image + (queries is database)))
    return pairs.by_ranking(ranking.ids, per_image, one_set=queries is database)


def _overlap(queries: PairSide, database: PairSide) -> SimilarityGraph:
    """ψ by the tracks of a COLMAP model if the images are its own, else by fields of view."""
    from covis.labels import FovOverlap, TrackOverlap
    from covis.labels.tracks import read_tracks
    from covis.reading.formats.colmap import find_model

    if queries is database and database.path.is_dir() and find_model(database.path) is not None:
        return TrackOverlap(read_tracks(database.path))(database.images, database.images)
    if queries is database:
        return FovOverlap()(database.images, database.images)
    from dataclasses import replace

    from covis.maps.photos import reframed

    poses = reframed(queries.images.poses, database.images.poses.frame, str(queries.path))
    return FovOverlap()(replace(queries.images, poses=poses), database.images)


def _emit(
    made: ImagePairs,
    way: str,
    queries: PairSide,
    database: PairSide,
    output: Path,
    *,
    features: Path | None,
    pose_priors: Path | None,
    json: bool,
) -> None:
    import numpy as np

    from covis.field.global_features import write_global_features
    from covis.field.pairs import pairs_text, write_pairs
    from covis.field.pose_priors import write_pose_priors

    if output == STREAM:
        sys.stdout.write(pairs_text(made, queries.images, database.images))
    else:
        write_pairs(output, made, queries.images, database.images)
    facts: dict[str, Any] = {"pairs": len(made), "by": way, "images": len(database.images), "output": str(output)}
    if queries is not database:
        facts["queries"] = len(queries.images)
    if features is not None:
        sides = [database] if queries is database else [queries, database]
        if any(side.describe is None for side in sides):
            raise InputError("--features writes descriptors; give --model, or a map")
        names = [side.images.name(i) for side in sides for i in range(len(side.images))]
        rows = np.concatenate([side.describe(np.arange(len(side.images))) for side in sides if side.describe])
        write_global_features(features, names, rows)
        facts["features"] = str(features)
    if pose_priors is not None:
        facts["pose_priors"] = write_pose_priors(pose_priors, database.images)
    text = f"{output}: {len(made)} pairs{', all possible pairs' if way == 'exhaustive' else f' by {way}'}" + (
        f", features in {features}" if features else ""
    )
    then = f"colmap matches_importer --database_path database.db --match_list_path {output} --match_type pairs"
    emit(facts, json and output != STREAM, *(() if output == STREAM else (text, then)))


def _loop_fit(path: Path, side: PairSide) -> LoopFit:
    """What was learned from another recording, whose descriptors must be of the same model."""
    from covis.field.loops import LoopFit

    fit = LoopFit.open(path)
    if fit.model and side.model and fit.model != side.model:
        raise InputError(
            f"{path} was fitted on descriptors of model {fit.model}, these are of model {side.model}; fit again with it"
        )
    return fit


def _write_loops(
    side: PairSide, output: Path, gap_s: float, least: float, given: LoopFit | None, fit: Path | None, json: bool
) -> None:
    """Candidates in order of time; on standard output each as soon as it is known."""
    import numpy as np

    from covis.field.loops import (
        HEADER,
        LEAST_AGREEMENT,
        LoopJudge,
        fit_loops,
        fitted_probability,
        line,
        loop_closures,
        usual_probability,
    )

    if side.describe is None:
        raise InputError(f"{side.path}: loop closures need descriptors; give --model")
    times = _times(side)
    order = np.argsort(times, kind="stable")
    xy = side.images.poses.xy[order]
    agreeing = 0.0 if fit is not None else LEAST_AGREEMENT
    closures = loop_closures(_times_rows(side, order), times[order], gap_s=gap_s, least_agreement=agreeing)

    def text(loop: LoopClosure, chance: float) -> str:
        both = int(order[loop.query]), int(order[loop.match])
        names = side.images.name(both[0]), side.images.name(both[1])
        return line(loop, names, (float(times[both[0]]), float(times[both[1]])), chance)

    if output == STREAM and fit is None:
        judge = given or LoopJudge(xy)
        print(HEADER, flush=True)
        for loop in closures:
            chance = judge(loop)
            if chance >= least:
                print(text(loop, chance), flush=True)
        return
    loops = list(closures)
    learned = None
    if fit is not None:
        learned = fit_loops(loops, xy, model=side.model)
        learned.save(fit)
        loops = [loop for loop in loops if loop.agreement >= LEAST_AGREEMENT]
    own = given or learned or fitted_probability(loops, xy)
    judged = [(loop, (own or usual_probability)(loop)) for loop in loops]
    kept = [text(loop, chance) for loop, chance in judged if chance >= least]
    _tell_loops(
        [HEADER, *kept], output, side, "given" if given else "usual" if own is None else "fitted", learned, json
    )


def _tell_loops(lines: list[str], output: Path, side: PairSide, by: str, learned: LoopFit | None, json: bool) -> None:
    """Writes candidates, and says what was learned."""
    whole = "".join(f"{line}\n" for line in lines)
    if output == STREAM:
        sys.stdout.write(whole)
    else:
        from covis.core.files import write_text

        write_text(output, whole)
    facts: dict[str, Any] = {
        "loops": len(lines) - 1,
        "images": len(side.images),
        "probability": by,
        "output": str(output),
    }
    text = f"{output}: {len(lines) - 1} loop closures of {len(side.images)} images"
    if learned is not None:
        facts["fit"] = {"candidates": learned.candidates, "right": learned.right, "held_out": learned.held_out}
        text += f"\nfitted on {learned.candidates} candidates of any agreement, {learned.right} of them right"
        halves = learned.held_out
        if halves and halves["right_of_them"] is not None:
            share = f"{100 * halves['right_of_them']:.1f} % of {halves['called_90']}"
            text += f"; judged by the other half of the recording, right were {share} called 90 % likely"
    emit(facts, json and output != STREAM, "" if output == STREAM else text)


def _times_rows(side: PairSide, order: NDArray[np.int64]) -> Iterator[Descriptors]:
    assert side.describe is not None
    for start in range(0, len(order), _BLOCK):
        yield from side.describe(order[start : start + _BLOCK])


def _times(side: PairSide) -> NDArray[np.float64]:
    """Seconds of each image, from the column `time`: a number, or a time in ISO 8601."""
    from datetime import UTC, datetime

    import numpy as np

    values = side.images.columns.get("time")
    if values is None:
        raise InputError(f"{side.path} has no column time; loop closures need the time of each image")
    if values.dtype.kind in "iuf":
        return values.astype(np.float64)
    try:
        parsed = [datetime.fromisoformat(str(v)) for v in values]
    except ValueError as error:
        raise InputError(f"{side.path}: column time: {error}; expected seconds or 2024-05-01T12:00:00Z") from None
    return np.array([(t if t.tzinfo else t.replace(tzinfo=UTC)).timestamp() for t in parsed])
