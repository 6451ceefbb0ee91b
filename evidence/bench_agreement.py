"""Which grades agree with what photos show: the share of pairs that look alike, by ψ, on three sets of training photos.

Pairs from different walks, panoramas or days surely look alike within 4 m and 10°, and surely do not beyond 150 m. The
distances of all other pairs are a mixture of the two; a label should promise the share of those that look alike
(`Agreement`). Fields of view are ranked by the likelihood of the distances if ψ^p were that share.

    python -m evidence.bench_agreement MODEL --data campus=CAMPUS --data cambridge=CAMBRIDGE --data racetrack=TRACK
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree

from covis import datasets
from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.evaluation.pairs import pair_distances
from covis.experiments.running import FrozenOnce
from covis.images import ImageSet
from covis.labels import fov_similarity
from covis.models import PlaceModel
from covis.poses import PLACE_M, PLACE_TURN_DEG, angle_between
from covis.report.style import COLOURS, PAGE_WIDTH, panels, save, styled
from covis.whitening import Whitening
from evidence.datasets import across_days
from evidence.reporting import report

NEAR_M, NEAR_DEG, FAR_M, REACH_M = 4.0, 10.0, 150.0, 120.0
PAIRS = 400_000
DIMS = 256
RADII_M, FOVS_DEG, EXPONENTS = (15.0, 25.0, 35.0, 50.0, 75.0, 100.0), (60.0, 90.0, 120.0), (1.0, 1.5, 2.0, 3.0)
BEST = 10
"""Fields of view that the result file keeps for each set, the best first."""
STEPS_M = (0, 4, 8, 12, 16, 20, 25, 35, 50, 75, 100)
BINS = np.linspace(0, 1, 11)
DRAWN = ((50.0, "method: 50 m"), (25.0, "25 m"))


@dataclass(frozen=True, eq=False)
class Agreement:
    """Descriptor distances of pairs that look alike and of pairs that do not, as two histograms.

    The distances of other pairs are treated as a mixture of the two. This gives the share of pairs that look alike
    without a decision on any single pair.
    """

    edges: Floats
    """(bins + 1,) of distances."""
    alike: Floats
    """(bins,) frequencies of pairs taken at one place, looking the same way."""
    unlike: Floats
    """(bins,) frequencies of pairs taken far apart."""

    @classmethod
    def fit(cls, near: ArrayLike, far: ArrayLike, bins: int = 40) -> Agreement:
        """From the distances of pairs that surely look alike and of pairs that surely do not."""
        near, far = (np.asarray(d, np.float64) for d in (near, far))
        if not len(near) or not len(far):
            raise InputError("agreement needs pairs at one place and pairs far apart; one of them is missing here")
        each = [np.quantile(d, np.linspace(0, 1, bins // 2 + 1)) for d in (near, far)]
        edges = np.unique(np.concatenate(each))
        edges[0], edges[-1] = -np.inf, np.inf
        counts = [np.histogram(d, edges)[0] + 1.0 for d in (near, far)]
        return cls(edges, *(count / count.sum() for count in counts))

    def frequencies(self, distance: ArrayLike) -> tuple[Floats, Floats]:
        """(N,) how frequent each distance is among pairs that look alike, and among those that do not."""
        at = np.clip(np.searchsorted(self.edges, np.asarray(distance), side="right") - 1, 0, len(self.alike) - 1)
        return self.alike[at], self.unlike[at]

    def share(self, distance: ArrayLike, rounds: int = 200) -> float:
        """The share of pairs that look alike among pairs of these distances (N,), by maximum likelihood."""
        alike, unlike = self.frequencies(distance)
        share = 0.5
        for _ in range(rounds):
            share = float(np.mean(share * alike / (share * alike + (1 - share) * unlike)))
        return share

    def log_likelihood(self, distance: ArrayLike, share: ArrayLike, least: float = 1e-4) -> float:
        """The mean log-likelihood of distances (N,) if each pair looks alike with probability `share` (N,) or ()."""
        alike, unlike = self.frequencies(distance)
        share = np.clip(np.asarray(share, np.float64), least, 1 - least)
        return float(np.mean(np.log(share * alike + (1 - share) * unlike)))


def photos(name: str, path: Path) -> ImageSet:
    """The training photos of a set whose heading is known; groups never match themselves."""
    split = datasets.load(name, path, "train")
    images = split.queries if split.queries is split.database else across_days(split)
    return images.subset(~np.isnan(images.poses.heading))


def sampled(images: ImageSet, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N, 2) pairs of different groups within `REACH_M`, and (M, 2) such pairs beyond `FAR_M`."""
    rng = np.random.default_rng(seed)
    near = KDTree(images.poses.xy).query_pairs(REACH_M, output_type="ndarray")
    near = near[images.group[near[:, 0]] != images.group[near[:, 1]]]
    near = near[rng.permutation(len(near))[:PAIRS]]
    far = rng.integers(0, len(images), (PAIRS, 2))
    apart = np.linalg.norm(images.poses.xy[far[:, 0]] - images.poses.xy[far[:, 1]], axis=1) > FAR_M
    return near, far[apart & (images.group[far[:, 0]] != images.group[far[:, 1]])]


def measured(name: str, path: Path, model: Path) -> dict[str, Any]:
    """Curves and likelihoods of one set."""
    images = photos(name, path)
    vectors, lost = FrozenOnce(PlaceModel.load(model), "frozen", folder=model.resolve()).describe(images)
    images = images.subset(~lost)
    white = Whitening.fit(vectors, DIMS)(vectors)
    pairs, far = sampled(images)
    xy, heading = images.poses.xy, images.poses.heading
    (a, b), distance = pairs.T, pair_distances(white, white, *pairs.T)
    metres, turn = np.linalg.norm(xy[a] - xy[b], axis=1), angle_between(heading[a], heading[b])
    agreement = Agreement.fit(distance[(metres <= NEAR_M) & (turn <= NEAR_DEG)], pair_distances(white, white, *far.T))
    start = agreement.log_likelihood(distance, agreement.share(distance))
    yes = (metres <= PLACE_M) & (turn <= PLACE_TURN_DEG)
    shares = np.where(yes, agreement.share(distance[yes]), agreement.share(distance[~yes]))
    grades, curves = [], {}
    for radius, fov, facing in itertools.product(RADII_M, FOVS_DEG, (False, True)):
        psi = fov_similarity(xy[a], heading[a], xy[b], heading[b], radius_m=radius, fov_deg=fov)
        psi *= np.minimum(1, 1 + np.cos(np.radians(turn))) if facing else 1.0
        for exponent in EXPONENTS:
            gain = agreement.log_likelihood(distance, psi**exponent) - start
            grades.append({"radius_m": radius, "fov_deg": fov, "facing": facing, "exponent": exponent, "gain": gain})
        if fov == 90.0 and facing and radius in dict(DRAWN):
            curves[f"{radius:g}"] = by_bin(agreement, psi, distance)
    return {
        "set": name,
        "pairs": len(pairs),
        "yes_no_gain": agreement.log_likelihood(distance, shares) - start,
        "share_of_yes": agreement.share(distance[yes]),
        "by_metres": [
            {"from_m": low, "to_m": high, "share": agreement.share(distance[mask])}
            for low, high in itertools.pairwise(STEPS_M)
            if (mask := (metres > low) & (metres <= high) & (turn <= PLACE_TURN_DEG)).sum() > 50
        ],
        "curves": curves,
        "grades": sorted(grades, key=lambda g: -g["gain"]),
    }


def by_bin(agreement: Agreement, psi: Floats, distance: NDArray[np.float32]) -> list[dict[str, float]]:
    """The share of pairs that look alike in each tenth of ψ."""
    at = np.digitize(psi, BINS[1:-1])
    some = [(k, (at == k) & (psi > 0)) for k in range(len(BINS) - 1)]
    return [
        {"psi": float(psi[mask].mean()), "share": agreement.share(distance[mask]), "pairs": int(mask.sum())}
        for _, mask in some
        if mask.sum() > 50
    ]


def summary(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """How well each label explains the distances: hundredths of a nat per pair more than their mean share does."""
    rows = [
        {"set": entry["set"], "label": f"yes/no, {PLACE_M:g} m and {PLACE_TURN_DEG:g}°", "gain": entry["yes_no_gain"]}
    ]
    for radius, exponent in ((50.0, 1.0), (50.0, 2.0), (25.0, 1.0), (25.0, 2.0)):
        wanted = {"radius_m": radius, "fov_deg": 90.0, "facing": True, "exponent": exponent}
        [gain] = [g["gain"] for g in entry["grades"] if wanted.items() <= g.items()]
        rows.append({"set": entry["set"], "label": f"{radius:g} m, 90°, ψ^{exponent:g}", "gain": gain})
    best = entry["grades"][0]
    label = f"best: {best['radius_m']:g} m, {best['fov_deg']:g}°, ψ^{best['exponent']:g}{', facing' * best['facing']}"
    rows.append({"set": entry["set"], "label": label, "gain": best["gain"]})
    return [{**row, "gain": 100 * row["gain"]} for row in rows]


@styled
def drawn(rows: list[dict[str, Any]]) -> Any:
    """ψ against the share of pairs that look alike, a panel for each set."""
    figure, grid = panels(PAGE_WIDTH * 0.8, 2.9, 1, len(rows), sharey=True)
    line = np.linspace(0, 1, 50)
    for axes, row in zip(grid[0], rows, strict=True):
        axes.plot(line, line, ":", color=COLOURS[0], lw=1, label="as ψ promises")
        axes.plot(line, line**2, "--", color=COLOURS[0], lw=1, label="ψ squared")
        for (radius, label), colour in zip(DRAWN, COLOURS[1:], strict=False):
            curve = row["curves"][f"{radius:g}"]
            axes.plot([c["psi"] for c in curve], [c["share"] for c in curve], "o-", color=colour, ms=4, label=label)
        axes.set(xlabel="ψ", title=row["set"], xlim=(0, 1), ylim=(0, 1.02))
    grid[0, 0].set_ylabel("share of pairs that look alike")
    grid[0, 0].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--data", action="append", default=[])
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    paths = {name: Path(path) for name, _, path in (entry.partition("=") for entry in given.data)}
    if given.model is None or not paths:
        print("not measured: give a model, and --data NAME=PATH for campus, cambridge and racetrack")
    else:
        entries = [measured(name, path, given.model) for name, path in paths.items()]
        rows = [row for entry in entries for row in summary(entry)]
        report("agreement", rows, {"sets": [{**entry, "grades": entry["grades"][:BEST]} for entry in entries]})
        if given.picture is not None:
            save(drawn(entries), given.picture)
