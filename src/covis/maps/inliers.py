"""Local features that a photo and its matches have in common, as evidence for `LocateOptions(inliers=True)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from covis.core import artifacts, files
from covis.core.errors import InputError
from covis.core.progress import warn
from covis.maps.calibration import Calibration, calibrate, gcl_margin
from covis.maps.calibration_record import read_calibration
from covis.maps.held_out import HeldOut, hold_out
from covis.maps.locating import Judge
from covis.maps.settings import EVIDENCE
from covis.maps.storage.layout import INLIERS, MODEL
from covis.search.local import LocalReranker

if TYPE_CHECKING:
    from covis.maps.map import Map


def learn_inliers(map_: Map, features: str, held: HeldOut | None = None) -> Calibration:
    """Learns P with inliers of local features counted, from some of the photos, for `LocateOptions(inliers=True)`.

    features: as `covis evaluate --rerank local:…` has them, such as `sift`. held: as in `Map.create`.
    """
    map_.folder  # noqa: B018 - an engine keeps no descriptors at hand
    chosen, files_ = LocalReranker.parse(features), [map_.file(i) for i in range(len(map_))]
    if held is None and (map_.storage.calibration or {}).get("seen"):
        raise InputError(f"the model of {map_.path} learned from its photos; give --inliers to covis index")
    held = (hold_out(map_.images, map_.descriptors, bank=map_.bank) if held is None else held).some(
        EVIDENCE.inlier_photos
    )
    calibration = calibrate(
        map_.images, map_.descriptors, gcl_margin(map_.path / MODEL), held=held,
        inliers=lambda asked, ids: chosen.count([files_[q] for q in asked], files_, ids),
    )  # fmt: skip
    if calibration.probability is None:
        warn(f"{map_.path} could not calibrate inliers: {calibration.note}")
        return calibration
    with artifacts.lock(map_.path):
        artifacts.write_json(map_.path / INLIERS, {"features": features, "calibration": calibration.to_dict()})
    return calibration


def with_inliers(map_: Map, judge: Judge, photos: Sequence[Path]) -> Judge:
    """A judge that also counts local features which `photos` have in common with their matches."""
    file = map_.path / INLIERS
    if not file.is_file():
        raise InputError(
            f"{map_.path} is not calibrated for inliers; make one with: covis index PHOTOS --inliers sift -o MAP"
        )
    record = files.read_record(file, {"features": str, "calibration": dict}, f"remove {file} and index again")
    chosen, database = LocalReranker.parse(record["features"]), [map_.file(i) for i in range(len(map_))]
    calibration = read_calibration(record["calibration"], file)
    return replace(judge, calibration=calibration, inliers=lambda ids: chosen.count(photos, database, ids))
