"""`covis index`, `add`, `remove`: making maps and changing them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from covis.cli.options import (
    MODEL_HELP,
    FrameOption,
    IndexKind,
    Json,
    MapPath,
    PhotoDescriptors,
    TrackOption,
    UtcOffset,
    existing,
    existing_model,
    existing_weights,
    named,
)
from covis.cli.output import emit
from covis.cli.verbs import LOCALISE, verb
from covis.core.errors import InputError
from covis.core.tables import counted

if TYPE_CHECKING:
    from covis.maps.map import Map


@verb("index", section=LOCALISE, order=1)
def index(
    photos: Annotated[
        Path, Argument(callback=existing, help="A folder of photos with GPS, or a table (CSV, Parquet, GeoJSON).")
    ],
    output: Annotated[Path, Option("-o", "--out", help="The map to make; re-run to resume.")],
    model: Annotated[Path | None, Option(callback=existing_model, help=MODEL_HELP)] = None,
    recipe: Annotated[
        str,
        Option(
            callback=named("recipe"),
            help="What to fit: own_photos, own_photos_small or another. [default: the best whose weights are available]",
        ),
    ] = "",
    weights: Annotated[
        str,
        Option(
            callback=existing_weights,
            help="Backbone weights (.safetensors), if they cannot be downloaded; with --model NAME: its checkpoint.",
        ),
    ] = "",
    fine_tune: Annotated[
        bool, Option("--fine-tune", help="Also train the network on the photos, and keep it if it is better.")
    ] = False,
    track: TrackOption = None,
    utc_offset: UtcOffset = "",
    frame: FrameOption = "",
    kind: IndexKind = "auto",
    descriptors: PhotoDescriptors = None,
    engine: Annotated[str, Option(help="Store the map in an engine: milvus:URI or postgresql://USER@HOST/DB.")] = "",
    scene: Annotated[
        Path | None, Option(help="For locate --pose: a COLMAP model of the photos, or images with depth.")
    ] = None,
    inliers: Annotated[str, Option(help="For locate --inliers: local features to calibrate (sift, h5=FILE).")] = "",
    elsewhere: Annotated[
        Path | None,
        Option(callback=existing, help="Photos of other places, to tell photos that the map does not have."),
    ] = None,
    runtime: Annotated[
        Literal["auto", "torch"], Option(help="What locate uses: an ONNX file if onnx is installed, or torch.")
    ] = "auto",
    json: Json = False,
) -> None:
    """Make a map from photos whose positions are known. Imports, checks, embeds, indexes and calibrates.

    \b
    Examples:
      covis index photos/ -o town.map
      covis index photos/ -o town.map --weights mobilenetv2.safetensors
      covis index photos/ -o town.map --model runs/quick/model
      covis index photos/ -o town.map --model place.onnx
      covis index photos/ -o town.map --model megaloc
      covis index photos/ -o town.map --model photos.store
      covis index drives.csv -o city.map --model runs/r50/model --kind hnsw-sq8
      covis index drives.csv -o city.map --model runs/r50/model --engine postgresql://covis@db/maps
    """
    if output.is_file():
        raise InputError(f"{output} already exists and is not a folder; choose another output or remove it")
    if model is not None:
        model = _given_model(model, recipe, weights, fine_tune)
        weights = ""
    from covis.maps.building import BuildOptions, build_map
    from covis.maps.map import Map

    options = BuildOptions(
        model, recipe, weights, fine_tune, track=track, utc_offset=utc_offset, frame=frame, index=kind, descriptors=descriptors,
        engine=engine, scene=scene, inliers=inliers, elsewhere=elsewhere, runtime=runtime,
    )  # fmt: skip
    made, left_out, fitted = build_map(Map, photos, output, options)
    report_map(made, json, {"left_out": left_out}, fitted)


def _given_model(model: Path, recipe: str, weights: str, fine_tune: bool) -> Path:
    """The model of --model, checked before anything heavy is imported; a published one is fetched."""
    from covis.describing.describers import find_describer
    from covis.describing.named import named_model
    from covis.models.published import is_published

    if recipe or fine_tune or (weights and not is_published(model)):
        raise InputError("give --model to use a model unchanged, or --recipe, --weights and --fine-tune to fit one")
    found = named_model(model, weights)
    find_describer(found)
    return found


@verb("add", section=LOCALISE, order=4)
def add(
    map_path: MapPath,
    photos: Annotated[list[Path], Argument(callback=existing, help="Folders, tables or photos, with positions.")],
    prefix: Annotated[str, Option(help="Prefix for the names, if folders use the same ones.")] = "",
    track: TrackOption = None,
    utc_offset: UtcOffset = "",
    descriptors: PhotoDescriptors = None,
    json: Json = False,
) -> None:
    """Add photos to a map. Each folder, table or photo is added whole or not at all.

    \b
    Examples:
      covis add town.map photos/autumn/ --prefix autumn/
      covis add town.map IMG_2041.jpg
    """
    from covis.maps.building import given_descriptors
    from covis.maps.map import Map
    from covis.reading.decoding import Rejected
    from covis.reading.sources import open_images

    now = Map.open(map_path)
    before = len(now)
    for path in photos:
        rejects: list[Rejected] = []
        images = open_images(path, track, positions=True, rejects=rejects, utc_offset=utc_offset)
        store = given_descriptors(descriptors, images, now.model_fingerprint, now.dim, map_path)
        now = now.add(images, prefix=prefix, descriptors=store, rejects=rejects)
    report_map(now, json, {"added": len(now) - before})


@verb("remove", section=LOCALISE, order=5)
def remove(
    map_path: MapPath,
    names: Annotated[list[str], Argument(help="Names of photos, as covis locate prints them.")],
    json: Json = False,
) -> None:
    """Remove photos from a map. All of them, or none if a name is unknown.

    \b
    Examples:
      covis remove town.map walk-1/IMG_0007.jpg walk-1/IMG_0008.jpg
    """
    from covis.maps.map import Map

    now = Map.open(map_path).remove(names)
    report_map(now, json, {"removed": len(set(names))})


def report_map(made: Map, json: bool, facts: dict[str, Any], fitted: dict[str, Any] | None = None) -> None:
    """Prints what a verb did to a map, and what the map promises."""
    calibration = made.calibration
    data = {
        "map": str(made.path), "version": made.version, "photos": len(made), "model": made.model_fingerprint,
        "dim": made.dim, "index": made.index_kind, **facts,
        "promised_precision": calibration and calibration.promised(), "calibration": calibration and calibration.summary(),
        **({} if fitted is None else {"fitted": fitted}),
    }  # fmt: skip
    changed = "".join(f", {value} {key.replace('_', ' ')}" for key, value in facts.items())
    text = f"{made.path}: {counted(len(made), 'photo')}, version {made.version}{changed}\n{promise_of(made)}"
    path = shlex.quote(str(made.path))
    then = f"covis locate {path} PHOTO, or covis serve {path}"
    if not made.network.kind:
        then = f"covis locate {path} PHOTO --descriptors STORE, made by the same model"
    emit(data, json, text, then if len(made) else "")


def promise_of(made: Map) -> str:
    """What the map can promise of its answers, for people."""
    from covis.maps.settings import PROMISE

    if made.calibration is None:
        return "not calibrated: answers will have no probability"
    promised = made.calibration.promised()
    summary = made.calibration.summary()
    if summary["typical"]:
        return f"the map promises nothing: {summary['note']}; none is called confident"
    if not summary["calibrated"]:
        return f"not calibrated: {summary['note']}; answers will have no probability"
    if promised is None:
        why = summary["note"] or "it finds too few of its own photos"
        return f"the map promises nothing ({why}): answers have probabilities, but none is called confident"
    text = (
        f"the map promises that {100 * promised:g} % of confident answers are right: "
        f"{100 * summary['confident']:.0f} % of new photos of the mapped places get a confident answer"
    )
    wrong = round(summary["queries"] * (1 - summary["right"]))
    if wrong < PROMISE.few_wrong:
        text += f" (rests on only {counted(wrong, 'wrong answer')} of {summary['queries']} in its test of itself)"
    if summary["confident_elsewhere"] is None:
        return text
    return f"{text}, and {100 * summary['confident_elsewhere']:.1f} % of photos from elsewhere"
