"""`covis pairs`: image pairs and features for structure from motion; loop closures for SLAM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from covis.cli.options import MODEL_HELP, Checkpoint, Json, existing, existing_model
from covis.cli.output import emit
from covis.cli.verbs import LOCALISE, verb
from covis.core.errors import InputError

if TYPE_CHECKING:
    from covis.field.pairs import ImagePairs
    from covis.maps.pair_selection import DescribedImages

STREAM = Path("-")
_BLOCK = 64
"""Images that are described at a time while loop closures are printed."""


def _check_outputs(given: list[Path]) -> list[Path]:
    if sum(path.suffix != ".h5" for path in given) > 1:
        raise InputError("give one list of pairs; a further -o is .h5 (descriptors)")
    return given


@verb("pairs", section=LOCALISE, order=8)
def pairs(
    source: Annotated[
        Path, Argument(callback=existing, metavar="MAP_OR_IMAGES", help="A map, a folder, a table, a COLMAP model, …")
    ],
    outputs: Annotated[
        list[Path],
        Option(
            "-o",
            "--out",
            callback=_check_outputs,
            metavar="FILE",
            help="pairs.txt: two names a line (- for stdout); also .h5: the descriptors as hloc's global features.",
        ),
    ],
    queries: Annotated[
        Path | None, Option(callback=existing, help="Pair these with the map's images, as for localisation.")
    ] = None,
    model: Annotated[
        Path | None, Option(callback=existing_model, help=f"Describes images that are not a map. {MODEL_HELP}")
    ] = None,
    weights: Checkpoint = None,
    by: Annotated[
        Literal["retrieval", "overlap", "both"] | None,
        Option(help="[default: retrieval with descriptors, else overlap]"),
    ] = None,
    per_image: Annotated[int, Option(min=1, help="Maximum number of pairs per image.")] = 20,
    least: Annotated[
        float | None,
        Option(min=0.0, max=1.0, help="Minimum share of the view in common. [default: 0.1; loops: probability, 0]"),
    ] = None,
    loops: Annotated[bool, Option("--loops", help="Loop closures of one recording instead of pairs.")] = False,
    time_gap: Annotated[float, Option(help="loops: minimum time between two images, in seconds.")] = 30.0,
    json: Json = False,
) -> None:
    """Choose image pairs for hloc or COLMAP to match. Far fewer than all possible pairs.

    \b
    Examples:
      covis pairs town.map -o pairs.txt --per-image 20
      covis pairs town.map --queries new/ -o pairs-loc.txt
      covis pairs sparse/0 -o pairs.txt --by overlap --least 0.3
      covis pairs walk.csv --model runs/quick/model -o pairs.txt --by both -o global-feats.h5
      covis pairs drive.csv --model runs/quick/model --loops --time-gap 60 -o -
    """
    if weights is not None and model is None:
        raise InputError("--weights is the checkpoint of --model NAME; give --model too")
    from covis.describing.named import named_model
    from covis.maps.pair_selection import choose_pairs, open_described, open_queries

    model = None if model is None else named_model(model, weights)
    database = open_described(source, model)
    if loops:
        _write_loops(database, outputs[0], time_gap, least or 0.0, json)
        return
    other = database if queries is None else open_queries(queries, source, model)
    made, way = choose_pairs(other, database, by or "", per_image=per_image, least=0.1 if least is None else least)
    facts: dict[str, Any] = {"pairs": len(made), "by": way, "images": len(database.images)}
    facts |= {} if other is database else {"queries": len(other.images)}
    for output in outputs:
        facts |= _write_output(output, made, other, database)
    if STREAM in outputs:
        return
    listed = facts.get("output", outputs[0])
    text = f"{listed}: {len(made)} pairs{', all possible pairs' if way == 'exhaustive' else f' by {way}'}"
    then = f"colmap matches_importer --database_path database.db --match_list_path {listed} --match_type pairs"
    emit(facts, json, text, then)


def _write_output(
    output: Path, made: ImagePairs, queries: DescribedImages, database: DescribedImages
) -> dict[str, Any]:
    """Writes pairs or descriptors, by the ending; returns what the result says of it."""
    from covis.field.pairs import pairs_text, write_pairs

    if output == STREAM:
        sys.stdout.write(pairs_text(made, queries.images, database.images))
        return {}
    if output.suffix != ".h5":
        write_pairs(output, made, queries.images, database.images)
        return {"output": str(output)}
    import numpy as np

    from covis.field.global_features import write_global_features

    sides = [database] if queries is database else [queries, database]
    names = [side.images.name(i) for side in sides for i in range(len(side.images))]
    write_global_features(output, names, np.concatenate([side.descriptors() for side in sides]))
    return {"features": str(output)}


def _write_loops(side: DescribedImages, output: Path, gap_s: float, least: float, json: bool) -> None:
    """Candidates in order of time; on standard output each as soon as it is known."""
    from covis.core.files import write_text
    from covis.field.loops import HEADER

    if side.describe is None:
        raise InputError(f"{side.path}: loop closures need descriptors; give --model")
    lines = _loop_lines(side, gap_s, least)
    if output == STREAM:
        print(HEADER, flush=True)
        for row in lines:
            print(row, flush=True)
        return
    kept = list(lines)
    write_text(output, "".join(f"{row}\n" for row in (HEADER, *kept)))
    facts = {"loops": len(kept), "images": len(side.images), "output": str(output)}
    emit(facts, json, f"{output}: {len(kept)} loop closures of {len(side.images)} images")


def _loop_lines(side: DescribedImages, gap_s: float, least: float) -> Iterator[str]:
    import numpy as np

    from covis.field.loops import image_times, line, loop_closures, probability

    describe = side.describe
    assert describe is not None
    times = image_times(side.images, side.path)
    order = np.argsort(times, kind="stable")
    blocks = (describe(order[start : start + _BLOCK]) for start in range(0, len(order), _BLOCK))
    for loop in loop_closures((row for block in blocks for row in block), times[order], gap_s=gap_s):
        if (chance := probability(loop)) >= least:
            first, second = int(order[loop.query]), int(order[loop.match])
            names = side.images.name(first), side.images.name(second)
            yield line(loop, names, (float(times[first]), float(times[second])), chance)
