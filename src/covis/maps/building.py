"""Building a map from photos: read, fit or open a model, describe, index, calibrate."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from covis.core import artifacts, files
from covis.core.errors import InputError
from covis.core.progress import duration, say
from covis.core.tables import counted
from covis.describing.describers import StoreDescriber, find_describer, known_descriptors, open_descriptors, open_model
from covis.descriptors import DescriptorStore
from covis.images import ImageSet
from covis.maps.elsewhere import describe_bank
from covis.maps.inliers import learn_inliers
from covis.maps.settings import EVIDENCE
from covis.maps.storage.layout import FITTED, INLIERS, MODEL, SCENE
from covis.poses import parse_frame
from covis.reading.decoding import Rejected
from covis.reading.sources import open_images
from covis.search.local import LocalReranker

if TYPE_CHECKING:
    from covis.maps.fitting import Fitted
    from covis.maps.map import Map
    from covis.models import Embedder
    from covis.training.recipe import Recipe


@dataclass(frozen=True)
class BuildOptions:
    """How a map is built; the defaults fit a model to the photos."""

    model: Path | str | None = None
    """A model to use unchanged, or descriptors of the photos; None: fit one."""
    recipe: str = ""
    """What to fit; empty: the best recipe whose weights are available."""
    weights: str = ""
    """Weights of the recipe's backbone."""
    fine_tune: bool = False
    track: Path | str | None = None
    utc_offset: str = ""
    """Of the camera's clock, such as +02:00, where the photos do not state it."""
    frame: str = ""
    index: str = "auto"
    descriptors: Path | str | None = None
    """Descriptors of the photos by the model."""
    engine: str = ""
    scene: Path | str | None = None
    """A COLMAP model of the photos, or images with depth, for full poses."""
    inliers: str = ""
    """Local features whose matches are calibrated."""
    elsewhere: Path | None = None
    """Photos of other places, which tell photos that the map does not have, beside pictures that covis draws."""
    runtime: str = "auto"
    """`auto` puts an ONNX file of the model into the map, `torch` does not."""


class BuiltMap(NamedTuple):
    """A map, how many photos it leaves out, and what was fitted to its photos."""

    map: Map
    left_out: int
    fitted: dict[str, Any] | None


class _Described(NamedTuple):
    """The photos of a map, by what and how they are described."""

    images: ImageSet
    network: Embedder | None
    store: DescriptorStore | None
    fitted: Fitted | None


def build_map(kind: type[Map], photos: Path | ImageSet, output: Path, options: BuildOptions) -> BuiltMap:
    """Builds a map of this `kind` from photos (a folder, a table or a set) with positions; the same call resumes."""
    given = None if options.model is None else find_describer(options.model)
    if given is not None and given.kind in ("store", "matrix") and options.descriptors is not None:
        raise InputError(f"--model {options.model} holds descriptors already; leave out --descriptors")
    if options.inliers:
        LocalReranker.parse(options.inliers).facts()  # missing weights are an error before the work starts
        if options.engine:
            raise InputError("--inliers needs a map in a folder; leave out --engine")
    rejects: list[Rejected] = []
    frame = parse_frame(options.frame)
    network = open_model(given.path) if given is not None and given.kind in ("model", "onnx") else None
    images = photos if isinstance(photos, ImageSet) else open_images(
        photos, options.track, positions=True, rejects=rejects, frame=frame, utc_offset=options.utc_offset
    )  # fmt: skip
    count = len(images) + len(rejects)
    say(f"{counted(len(images), 'photo')} of {counted(len(images.group_names), 'walk')}")
    fit = None if options.model is not None else _choose_fit(images, output, options)
    if fit is not None and (finished := _finished(output, fit, options)) is not None:
        say(f"{output}: the map already exists")
        shutil.rmtree(fit.folder, ignore_errors=True)
        made = kind.open(output)
        return BuiltMap(made, count - len(made), finished)
    described = _describe(images, network, fit, output, options, rejects)
    steps = 4 if given is None else 2 if given.kind == "model" else 1
    step = min(steps, 3 if given is None else 1)
    say(f"step {step} of {steps}: describe and index {counted(len(described.images), 'photo')}, calibrate the map")
    held = None if described.fitted is None else described.fitted.questions()
    bank = None if described.fitted is None else described.fitted.bank()
    if options.elsewhere is not None and described.fitted is None:
        if described.network is None:
            raise InputError(
                "--elsewhere needs a model that describes its photos; the map is made of descriptors alone"
            )
        bank = describe_bank(described.network, options.elsewhere)
    made = kind.create(
        output, described.images, described.network, index=options.index,
        descriptors=described.store,
        rejects=rejects, engine=options.engine, held=held, bank=bank,
    )  # fmt: skip
    if options.runtime == "auto" and step < steps:
        say(f"step {steps} of {steps}: put an ONNX file of the model into the map, so that covis locate starts quickly")
        made.network.carry_runtime()
    if options.inliers:
        say(f"calibrating {options.inliers} feature matches on up to {EVIDENCE.inlier_photos} photos")
        learn_inliers(made, options.inliers, held)
    scene = options.scene or (photos if isinstance(photos, Path) and _has_depth(described.images) else None)
    if scene is not None:
        made.keep_scene(scene)
    if fit is None or described.fitted is None:
        return BuiltMap(made, count - len(made), None)
    told = described.fitted.to_dict() | {"model": str(output / MODEL)}
    artifacts.write_json(output / FITTED, {"config": fit.config, "fitted": told})
    shutil.rmtree(fit.folder, ignore_errors=True)  # the map has all that is needed of it
    return BuiltMap(made, count - len(made), told)


class _Fit(NamedTuple):
    """What is fitted to the photos of a map, and the folder where that goes on until the map is finished."""

    recipe: Recipe
    config: dict[str, Any]
    folder: Path


def _choose_fit(images: ImageSet, output: Path, options: BuildOptions) -> _Fit:
    from covis.maps.fitting import choose_recipe, fit_config  # needs torch; a given model does not

    say("step 1 of 4: choose a recipe and its weights")
    chosen = choose_recipe(options.recipe, options.weights)
    config = fit_config(images, chosen, options.fine_tune, options.elsewhere)
    return _Fit(chosen, json.loads(json.dumps(config)), output.with_name(f"{output.name}.model"))


def _finished(output: Path, fit: _Fit, options: BuildOptions) -> dict[str, Any] | None:
    """What was fitted, where this map is there with everything that is asked for; a map of another fit is an error."""
    if not (output / FITTED).is_file() or (options.inliers and not (output / INLIERS).is_file()):
        return None
    if options.scene is not None and not (output / SCENE).is_file():
        return None
    record = files.read_record(output / FITTED, {"config": dict, "fitted": dict}, f"remove {output / FITTED}")
    if record["config"] != fit.config:
        changes = artifacts.difference(record["config"], fit.config)
        raise InputError(f"{output} is a map of other photos or of another fit ({changes}); choose another output")
    return dict(record["fitted"])


def _describe(
    images: ImageSet,
    network: Embedder | None,
    fit: _Fit | None,
    output: Path,
    options: BuildOptions,
    rejects: list[Rejected],
) -> _Described:
    """Fits a model to the photos, or takes the given model or descriptors; adds to `rejects` what cannot be described."""
    if fit is not None:
        fitted = _fit(images, fit, options)
        network = open_model(fitted.model)
        images, store, lost = fitted.described(images)
        rejects += lost
        return _Described(images, network, store, fitted)
    if network is None:
        assert options.model is not None
        images, store, lost = known_descriptors(options.model, images)
        rejects += lost
        return _Described(images, None, store, None)
    given = given_descriptors(options.descriptors, images, network.fingerprint(), network.dim, output)
    return _Described(images, network, given, None)


def _fit(images: ImageSet, fit: _Fit, options: BuildOptions) -> Fitted:
    """A model fitted to the photos, in a folder beside the map."""
    from covis.maps.fitting import estimate_s, fit_model

    more = ", and more to fine-tune" if options.fine_tune else ""
    say(f"all steps take about {duration(estimate_s(fit.recipe, len(images)))}{more}")
    say(f"step 2 of 4: fit {fit.recipe.model.backbone} to {counted(len(images), 'photo')} and describe them")
    return fit_model(images, fit.recipe, fit.folder, fine_tune=options.fine_tune, elsewhere=options.elsewhere)


def _has_depth(images: ImageSet) -> bool:
    return "depth" in images.columns and images.intrinsics is not None and images.poses.rotation is not None


def given_descriptors(
    path: Path | str | None, images: ImageSet, model: str, dim: int, map_path: Path
) -> DescriptorStore | None:
    """The descriptors at `path` of photos for a map of this model; None without a path."""
    if path is None:
        return None
    computed = open_descriptors(path)
    computed.require(model, dim, map_path)
    if isinstance(computed, StoreDescriber):
        return computed.store
    return DescriptorStore.in_memory(images.names, computed.describe(images)[0], model)
