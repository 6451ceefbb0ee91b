"""What maps say of photos whose place they do not have: other countries, other continents, near-by places, no places.

A table is cut by its walks into three parts. Maps of two of them, as `covis index` makes them, are asked with the photos
of the third and with photos of every other table, none of which is in the bank that ships with covis. Choices were made
on the `train` tables (`--part train`); the figures of the page are of the others.

    python -m evidence.bench_elsewhere --keep FOLDER [--part train] [--share SHARE]

Finished tables are kept in FOLDER, and the same command goes on from there.

Photographs and weights are those of `../shared/data`; without them it does nothing.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evidence.own_map import SHARED, WEIGHTS, Photos, as_map, described, finished, folds, whiten
from evidence.reporting import report

if TYPE_CHECKING:
    from covis.core.arrays import Ids
    from covis.images import ImageSet
    from covis.maps.calibration import Calibration
    from covis.maps.elsewhere import Bank
    from covis.maps.locating import Judged

PLACES = ("campus", "cambridge", "racetrack")
PARTS = {"train": ("train", "train", "train"), "test": ("west", "val", "val")}
"""The table of each place that a map is made of; the other one of the same place is near-by."""
MOST = {"mobilenetv2": (1872, 600), "dinov2": (936, 150)}
"""Photos of a map's table, and of each set that it is asked with, by network."""
MAPPED = {"mobilenetv2": PLACES, "dinov2": ("campus",)}
"""Places that maps are made of, by network: DINOv2 takes six to ten times as long."""
FOLDS = 3


@dataclass(frozen=True)
class Asked:
    """Photos that a map is asked with, as the network of the map describes them."""

    kind: str
    walk: NDArray[np.int64]
    raw: NDArray[np.float32]


def thinned(table: Path, most: int, keep: Path) -> Path:
    """A table of at most `most` photos, evenly spread over its rows."""
    header, *rows = table.read_text(encoding="utf-8").splitlines()
    every = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))
    thin = keep / f"{table.parent.name}-{table.stem}-{len(every)}.csv"
    column = header.split(",").index("image")

    def moved(row: str) -> str:
        cells = row.split(",")
        cells[column] = str(table.parent / cells[column])
        return ",".join(cells)

    thin.write_text("\n".join([header, *(moved(rows[i]) for i in every)]) + "\n", encoding="utf-8")
    return thin


def sets_of(photos: Photos, place: str, part: str, most: int, keep: Path) -> Iterator[Asked]:
    """Photos from elsewhere, and pictures of no place, for a map of `place`."""
    from covis.reading.table import read_table

    for other, table in zip(PLACES, PARTS[part], strict=True):
        kind = other if other != place else "near-by"
        if other == place:
            table = next(p.stem for p in (SHARED / other).glob("*.csv") if p.stem not in (table, "all"))
        images = read_table(thinned(SHARED / other / f"{table}.csv", most, keep))
        yield Asked(kind, np.asarray(images.group), embedded(photos, images, keep))
    images = no_places(keep / "no-places")
    yield Asked("no place", np.arange(len(images)), embedded(photos, images, keep))


def no_places(folder: Path) -> ImageSet:
    """Noise, one colour, gradients, a page, a screen: not drawn by the code that draws the bank."""
    from PIL import Image, ImageDraw

    from covis.reading.sources import open_images

    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:480, :640] / (480, 640)[0]
    pictures: dict[str, Any] = {"black": np.zeros((480, 640, 3)), "white": np.full((480, 640, 3), 255.0)}
    for i in range(6):
        pictures[f"noise{i}"] = rng.normal(128, 20 + 20 * i, (480, 640, 3))
        pictures[f"plain{i}"] = np.broadcast_to(rng.uniform(0, 255, 3), (480, 640, 3))
        pictures[f"ramp{i}"] = 255 * (np.cos(i) * x + np.sin(i) * y)[..., None] * rng.uniform(0, 1, 3)
        pictures[f"rings{i}"] = 128 + 100 * np.sin((8 + 9 * i) * np.hypot(x - 0.5, y - 0.5))[..., None] * rng.uniform(
            0, 1, 3
        )
    for name, pixels in pictures.items():
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{name}.png")
    for i in range(6):
        page = Image.new("RGB", (600, 800), "white")
        pen = ImageDraw.Draw(page)
        pen.rectangle((40, 40, 200 + 40 * i, 70), fill=(30 * i, 60, 120))
        for line in range(30 - 3 * i):
            words = " ".join("x" * int(n) for n in rng.integers(2, 11, 9))
            pen.text((40, 100 + line * (22 + i)), f"{line + 1}. Invoice {words}", fill="black")
        page.save(folder / f"page{i}.png")
        screen = Image.new("RGB", (640, 480), (30, 34, 40) if i % 2 else (240, 242, 245))
        pen = ImageDraw.Draw(screen)
        pen.rectangle((0, 0, 640, 28), fill=(60, 100, 40 * i))
        pen.rectangle((0, 28, 120 + 10 * i, 480), fill=(200, 205, 210))
        for line in range(18):
            pen.text(
                (150, 40 + 24 * line), f"def function_{line}(value): return value * {i + line}", fill=(90, 160, 80)
            )
        screen.save(folder / f"screen{i}.png")
    return open_images(folder)


def embedded(photos: Photos, images: ImageSet, keep: Path) -> NDArray[np.float32]:
    """(N, D) descriptors before whitening, kept for the next run."""
    from covis.describing.embedding import embed

    store = keep / f"asked-{photos.model.fingerprint()[:12]}-{images.fingerprint()[:12]}.npy"
    if not store.is_file():
        np.save(store, embed(photos.model, images))
    return np.asarray(np.load(store), np.float32)


def banks(photos: Photos, keep: Path) -> Bank:
    """The bank that ships, before whitening."""
    from covis.maps.elsewhere import Bank, bank_images

    pictures, family = bank_images()
    return Bank(embedded(photos, pictures, keep), family)


def one_part(photos: Photos, asked: Sequence[Asked], bank: Bank, known: Ids, new: Ids) -> list[dict[str, Any]]:
    """Answers of a map of the photos `known` to the photos `new` and to each set, and what it says of itself."""
    from covis.evaluation.whitening_fits import affordable
    from covis.maps.calibration import calibrate
    from covis.maps.locating import Judge
    from covis.maps.whitening import choose_whitening, shared_dims
    from covis.poses import PLACE_M
    from covis.search import rank
    from covis.whitening import moments

    images, raw = as_map(photos.images, known), photos.raw[known]
    images = replace(images, columns={**images.columns, "file": images.names})
    dim = affordable(photos.recipe.whiten, len(images))
    with moments(raw, shared_dims(dim, raw), fewer=True) as fitted:
        choice = choose_whitening(images, fitted, dim, photos.recipe.labels, bank=bank)
    white, drawn = whiten(choice.whitening, raw), replace(bank, descriptors=whiten(choice.whitening, bank.descriptors))
    calibration = calibrate(images, white, held=choice.held_out(), bank=drawn)
    judge = Judge(images, lambda vectors, k: rank(vectors, white, k), calibration, bank=drawn, descriptors=white)
    here = Asked("here", np.asarray(photos.images.group)[new], photos.raw[new])
    at, xy = photos.images.poses.xy[new], images.poses.xy
    rows = []
    for part in (here, *asked):
        judged = judge(whiten(choice.whitening, part.raw), 5)
        answers = [judge.answer(Path(), judged, q, 1) for q in range(len(part.raw))]
        p = np.array([a.probability or 0.0 for a in answers])
        right = np.zeros(len(p), bool)
        if part is here:
            right = np.hypot(*(xy[judged.ranking.ids[:, 0]] - at).T) <= PLACE_M
        rows.append({
            "kind": part.kind, "walk": part.walk.tolist(), "p": p.tolist(), "right": right.tolist(),
            "confident": [a.confident for a in answers], "absent": [a.absent for a in answers],
            "alone": alone_of(calibration, judged, p).tolist(), "promised": calibration.promised(),
            "expected": calibration.confident_elsewhere(calibration.threshold(calibration.promised() or 0.8)),
        })  # fmt: skip
    return rows


def alone_of(calibration: Calibration, judged: Judged, p: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(Q,) which answers would be confident if nothing were known of elsewhere."""
    from covis.maps.evidence import threshold_for
    from covis.maps.settings import PROMISE

    given = p if judged.elsewhere is None else p / np.maximum(1 - judged.elsewhere, 1e-9)
    if calibration.held_out is None:
        return np.zeros(len(p), bool)
    own, right, _, walk, _ = calibration.held_out.T
    found = (threshold_for(precision, own, right, walk.astype(np.int64)) for precision in PROMISE.precisions)
    least = next((threshold for threshold in found if threshold is not None), 2.0)
    return np.asarray(given >= least)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each set, in percent, with 95 % intervals over walks; `here` has what the map's own places get."""
    from covis.evaluation.statistics import bootstrap_interval
    from covis.logistic import expected_calibration_error, reliability

    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    p, right, kind, walk, confident, absent, alone = (
        np.concatenate([[row["kind"]] * len(row["p"]) if name == "kind" else row[name] for row in rows])
        for name in ("p", "right", "kind", "walk", "confident", "absent", "alone")
    )
    out: list[dict[str, Any]] = []
    for one in kinds:
        at = kind == one
        low, high = 100 * bootstrap_interval(confident[at] * 1.0, walk[at])[0]
        row = {"asked": one, "photos": int(at.sum()), "confident": 100 * confident[at].mean(), "confident low": low,
               "confident high": high, "not in this map": 100 * absent[at].mean(), "before": 100 * alone[at].mean()}  # fmt: skip
        if one == "here":
            sure = at & confident
            kept = at & alone & (right > 0)
            low, high = 100 * bootstrap_interval(right[sure] * 1.0, walk[sure])[0] if sure.any() else (0.0, 0.0)
            row |= {"right": 100 * right[sure].mean() if sure.any() else 0.0, "right low": low, "right high": high,
                    "kept": 100 * (confident & kept).sum() / max(1, kept.sum()),
                    "promised": " ".join(str(r["promised"]) for r in rows if r["kind"] == "here")}  # fmt: skip
        elif one != "no place":
            both = at | (kind == "here")
            weight = np.where(at, 0.5 / at.sum(), 0.5 / (kind == "here").sum())
            row |= {"ECE": 100 * expected_calibration_error(p[both], right[both], weight=weight[both])}
        out.append(row)
    outside = ~np.isin(kind, ["here", "no place"])
    weight = np.where(outside, 0.5 / outside.sum(), 0.5 / (kind == "here").sum())[kind != "no place"]
    every = kind != "no place"
    ece = 100 * expected_calibration_error(p[every], right[every], weight=weight)
    out[0] |= {"ECE": ece, "reliability": reliability(p[every], right[every], weight=weight)}
    return out


def network(weights: Path) -> str:
    """The key of a weights file in `MOST`."""
    return next(name for name in MOST if weights.stem.startswith(name))


def measure(weights: Path, place: str, part: str, keep: Path, share: float) -> dict[str, Any]:
    """The rows of three maps of one table, `share` of the photos of `MOST`."""
    own, other = (max(60, int(share * most)) for most in MOST[network(weights)])
    photos = described(thinned(SHARED / place / f"{PARTS[part][PLACES.index(place)]}.csv", own, keep), weights, keep)
    asked, bank = list(sets_of(photos, place, part, other, keep)), banks(photos, keep)
    rows: list[dict[str, Any]] = []
    for known, new in folds(photos.images, FOLDS, 0):
        rows += one_part(photos, asked, bank, known, new)
    table = PARTS[part][PLACES.index(place)]
    facts = {"map of": f"{place} {table}", "photos of map": len(photos.images), "backbone": photos.backbone}
    return {"rows": [facts | row for row in summary(rows)]}


def written(rows: Sequence[dict[str, Any]], part: str) -> None:
    """Prints the rows and keeps them, the reliability of each map as a list of its own."""
    curves = [
        {"map of": row["map of"], "backbone": row["backbone"]} | point
        for row in rows
        for point in row.get("reliability", ())
    ]
    plain = [{key: value for key, value in row.items() if key != "reliability"} for row in rows]
    report("elsewhere" if part == "test" else "elsewhere_train", plain, {"reliability": curves})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder that keeps descriptors for another run")
    parser.add_argument("--part", choices=list(PARTS), default="test", help="the tables that maps are made of")
    parser.add_argument("--place", nargs="*", choices=PLACES, help="maps to make (default: all that suit a network)")
    parser.add_argument("--weights", type=Path, nargs="*", default=WEIGHTS[::-1], help="backbones (.safetensors)")
    parser.add_argument("--share", type=float, default=1.0, help="of the photos, for a quicker run")
    given = parser.parse_args()
    if not SHARED.is_dir():
        print("no photos here")
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        keep = given.keep or Path(folder)
        keep.mkdir(exist_ok=True)
        for weights in given.weights:
            for place in given.place or MAPPED[network(weights)]:
                make = partial(measure, weights, place, given.part, keep, given.share)
                rows += finished(keep, f"elsewhere-{place}-{given.part}-{weights.stem}-{given.share}", make)["rows"]
                written(rows, given.part)


if __name__ == "__main__":
    main()
