"""Files for evaluation servers, and the figures that servers answered."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.metrics import Ranked
from covis.evaluation.pose_errors import limit_name
from covis.images import ImageSet
from covis.poses import Poses

MSLS, LONG_TERM = "msls", "visuallocalization"


def write_submission(ranking: Ranked, benchmark: Benchmark, path: Path | str) -> Path:
    """The server's file for a ranking of the benchmark's map; every query must have a match."""
    path = Path(path)
    ids, _ = benchmark.settle(ranking)
    unmatched = np.flatnonzero(ids[:, 0] < 0)
    if len(unmatched):
        raise InputError(
            f"{path}: query {benchmark.queries.name(int(unmatched[0]))} has no match; the server wants every query"
        )
    with replacing(path) as partial:
        if benchmark.submission == MSLS:
            queries, database = keys(benchmark.queries), keys(benchmark.database)
            write_msls(partial, queries, [[database[i] for i in row if i >= 0] for row in ids])
        elif benchmark.submission == LONG_TERM:
            write_poses(partial, submission_names(benchmark.queries), benchmark.database.poses.subset(ids[:, 0]))
        else:
            raise InputError(f"benchmark {benchmark.name!r} has no server; its figures come from `evaluate`")
    return path


def server_figures(benchmark: Benchmark) -> list[str]:
    """The figures that the benchmark's server returns."""
    if benchmark.submission == MSLS:
        return [f"recall@{k}" for k in (1, 5, 10)]
    return [f"localised@{limit_name(limit)}" for limit in benchmark.thresholds]


SCORE_COLUMNS = ("submission", "figure", "value")


@dataclass
class Scores:
    """What servers answered, by submission and figure, in percent; None while an answer is awaited."""

    values: dict[tuple[str, str], float | None] = field(default_factory=dict)

    @classmethod
    def read(cls, *paths: Path | str) -> Scores:
        """From CSV files `submission,figure,value`; later files override earlier ones, an empty value is awaited."""
        scores = cls()
        for path in map(Path, paths):
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file)
                if not set(SCORE_COLUMNS) <= set(reader.fieldnames or ()):
                    raise InputError(f"{path} has the columns {reader.fieldnames}; expected {', '.join(SCORE_COLUMNS)}")
                for number, row in enumerate(reader, start=2):
                    scores._put(path, number, row)
        return scores

    def _put(self, path: Path, number: int, row: dict[str, str]) -> None:
        submission, figure, text = ((row[name] or "").strip() for name in SCORE_COLUMNS)
        if not text:
            self.values.setdefault((submission, figure), None)
            return
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not 0 <= value <= 100:
            raise InputError(f"{path}: row {number}: {text!r} is not a percentage; write 0 to 100, or leave it empty")
        self.values[submission, figure] = value

    def expect(self, submission: str, figures: Iterable[str]) -> dict[str, float]:
        """What is known of these figures of a submission; the others are awaited from now on."""
        known = {}
        for figure in figures:
            value = self.values.setdefault((submission, figure), None)
            if value is not None:
                known[figure] = value
        return known

    def write(self, path: Path) -> None:
        """Writes the scores as a file to fill in."""
        lines = [[s, f, "" if v is None else f"{v:g}"] for (s, f), v in sorted(self.values.items())]
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([SCORE_COLUMNS, *lines])


def keys(images: ImageSet) -> list[str]:
    """MSLS keys: file names without folder and suffix."""
    return [PurePosixPath(os.fsdecode(name)).stem for name in images.names]


def write_msls(path: Path, queries: Sequence[str], predictions: Sequence[Sequence[str]]) -> None:
    """A prediction file: lines `query db1 db2 …` of equal length; a `.zip` holds it as its only csv.

    Keys of a sequence are joined by commas. Rows are cut at the shortest.
    """
    width = min((len(row) for row in predictions), default=0)
    if width < 1:
        raise InputError(f"{path}: a query has no prediction at all; the server wants the same number for each")
    lines = [
        "# a query image, or the comma-joined frames of a query sequence, then its predictions, best first",
        *(" ".join([query, *row[:width]]) for query, row in zip(queries, predictions, strict=True)),
    ]
    text = "\n".join(lines) + "\n"
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("predictions.csv", text)
    else:
        path.write_text(text, encoding="utf-8")


def submission_names(images: ImageSet) -> list[str]:
    """Names as the long-term localisation server wants them: no folder, except RobotCar's camera (`rear/…`)."""
    names = [PurePosixPath(os.fsdecode(name)) for name in images.names]
    return [f"{n.parent.name}/{n.name}" if n.parent.name in _CAMERAS else n.name for n in names]


_CAMERAS = ("rear", "left", "right")


def write_poses(path: Path, names: Sequence[str], poses: Poses) -> None:
    """One line per image: `name qw qx qy qz tx ty tz`, the turn and shift from world into camera (t = −R·C)."""
    quaternion, translation = world_to_camera(poses)
    values = np.concatenate([quaternion, translation], axis=1)
    lines = [f"{name} {' '.join(f'{v:.9g}' for v in row)}\n" for name, row in zip(names, values.tolist(), strict=True)]
    path.write_text("".join(lines), encoding="utf-8")


def world_to_camera(poses: Poses) -> tuple[Floats, Floats]:
    """(N, 4) quaternions w x y z and (N, 3) translations of world → camera."""
    from scipy.spatial.transform import Rotation

    if poses.rotation is None or poses.z is None:
        raise InputError(
            "these poses have no rotation or height, so camera poses cannot be written; use a 6DOF dataset"
        )
    turn = poses.rotation.transpose(0, 2, 1)
    q = Rotation.from_matrix(turn).as_quat()[:, [3, 0, 1, 2]]
    q = q * np.where(q[:, :1] < 0, -1.0, 1.0)
    return q, -np.einsum("nij,nj->ni", turn, poses.centre)
