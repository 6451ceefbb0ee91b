"""Files for evaluation servers, and validators that say what is wrong with one before it is uploaded."""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.core.foreign import read_foreign_text
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.metrics import Ranked
from covis.evaluation.pose_errors import limit_name
from covis.images import WINDOW, ImageSet
from covis.poses import Poses

MSLS, LONG_TERM = "msls", "visuallocalization"
_SHOWN = 5
"""Examples of one kind of problem that a validator lists."""


def write_submission(ranking: Ranked, benchmark: Benchmark, path: Path | str) -> Path:
    """The server's file for a ranking of the benchmark's map, checked before it is put in place."""
    path = Path(path)
    ids, _ = benchmark.settle(ranking)
    with replacing(path) as partial:
        if benchmark.submission == MSLS:
            queries, database = keys(benchmark.queries), keys(benchmark.database)
            write_msls(partial, queries, [[database[i] for i in row if i >= 0] for row in ids])
        elif benchmark.submission == LONG_TERM:
            names, matched = submission_names(benchmark.queries), ids[:, 0] >= 0
            poses = benchmark.database.poses.subset(ids[matched, 0])
            write_poses(partial, [n for n, ok in zip(names, matched, strict=True) if ok], poses)
        problems = check_submission(partial, benchmark)
        if problems:
            raise InputError(f"{path}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if problems[1:] else ""))
    return path


def check_submission(path: Path | str, benchmark: Benchmark) -> list[str]:
    """What is wrong with a file for the benchmark's server, one line per problem; empty if nothing is."""
    if benchmark.submission == MSLS:
        return check_msls(path, keys(benchmark.queries), keys(benchmark.database))
    if benchmark.submission == LONG_TERM:
        return check_poses(path, submission_names(benchmark.queries), benchmark.database.poses.centre)
    raise InputError(f"benchmark {benchmark.name!r} has no server; its figures come from `evaluate`")


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
        if not _is_finite(text) or not 0 <= float(text) <= 100:
            raise InputError(f"{path}: row {number}: {text!r} is not a percentage; write 0 to 100, or leave it empty")
        self.values[submission, figure] = float(text)

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
    """MSLS keys: file names without folder and suffix; those of all frames joined by commas for sequences."""
    items = images.columns.get(WINDOW, images.names[:, None])
    return [",".join(PurePosixPath(os.fsdecode(name)).stem for name in frames) for frames in items]


def write_msls(path: Path, queries: Sequence[str], predictions: Sequence[Sequence[str]], k: int | None = None) -> None:
    """A prediction file: lines `query db1 db2 …` of equal length; a `.zip` holds it as its only csv.

    Keys of a sequence are joined by commas. Rows are cut at `k`, or at the shortest row.
    """
    width = min((len(row) for row in predictions), default=0) if k is None else k
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


def check_msls(path: Path | str, queries: Iterable[str], database: Iterable[str]) -> list[str]:
    """What is wrong with an MSLS prediction file, one line per problem; empty if nothing is."""
    path = Path(path)
    text, problems = _msls_text(path)
    rows = [(n, line.split(" ")) for n, line in enumerate(text.split("\n"), 1) if line and not line.startswith("#")]
    if problems or not rows:
        return problems or [f"{path.name} holds no predictions"]
    wanted, known = list(queries), set(database)
    return [*_shape_problems(rows), *_query_problems(rows, wanted), *_image_problems(rows, known)]


def _msls_text(path: Path) -> tuple[str, list[str]]:
    if path.suffix != ".zip":
        return read_foreign_text(path), []
    try:
        with zipfile.ZipFile(path) as archive:
            files = archive.namelist()
            if len(files) != 1 or not files[0].endswith(".csv"):
                return "", [f"{path.name} holds {', '.join(files) or 'nothing'}; the server wants exactly one .csv"]
            return io.TextIOWrapper(archive.open(files[0]), encoding="utf-8").read(), []
    except zipfile.BadZipFile:
        return "", [f"{path.name} is not a zip file"]


def _shape_problems(rows: Sequence[tuple[int, list[str]]]) -> list[str]:
    problems = []
    if rows:
        width = len(rows[0][1])
        uneven = [n for n, row in rows if len(row) != width]
        problems += _listed(uneven, f"line {{}} has another number of columns than line {rows[0][0]} ({width})")
        problems += _listed([n for n, row in rows if len(row) < 2], "line {} has no prediction")
        problems += _listed([n for n, row in rows if "" in row], "line {} has two spaces together or one at its end")
        problems += _listed([n for n, row in rows if any("\t" in v for v in row)], "line {} has a tab; use spaces")
        problems += _listed([n for n, row in rows if len(set(row[1:])) < len(row[1:])], "line {} repeats a prediction")
    return problems


def _query_problems(rows: Sequence[tuple[int, list[str]]], wanted: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    twice = []
    for n, row in rows:
        if row[0] in seen:
            twice.append(f"query {row[0]} stands in line {seen[row[0]]} and again in line {n}")
        seen.setdefault(row[0], n)
    expected = set(wanted)
    missing = [query for query in wanted if query not in seen]
    strange = [query for query in seen if query not in expected]
    return [
        *_listed(twice, "{}"),
        *_listed(missing, "query {} has no line"),
        *_listed(strange, "query {} is none of this task's"),
    ]


def _image_problems(rows: Sequence[tuple[int, list[str]]], known: set[str]) -> list[str]:
    strange = [f"line {n} predicts {v}, which" for n, row in rows for v in row[1:] if v and v not in known]
    return _listed(strange, "{} is not in the map")


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


def check_poses(path: Path | str, queries: Iterable[str], centres: NDArray[np.float64] | None = None) -> list[str]:
    """What is wrong with a long-term localisation file, one line per problem; empty if nothing is.

    With `centres` (M, 3) of the map, poses far outside it are reported: mostly a camera centre written as translation.
    """
    wanted = list(queries)
    rows = [(n, line.split()) for n, line in enumerate(read_foreign_text(path).split("\n"), 1) if line]
    problems = _listed([n for n, row in rows if len(row) != 8], "line {} has not 8 columns (name qw qx qy qz tx ty tz)")
    if problems:
        return problems
    problems = _query_problems(rows, wanted)
    wrong = [n for n, row in rows if not all(map(_is_finite, row[1:]))]
    if wrong:
        return [*problems, *_listed(wrong, "line {} holds something that is not a finite number")]
    lines = np.array([n for n, _ in rows])
    values = np.array([row[1:] for _, row in rows], np.float64).reshape(-1, 7)
    unit = np.abs(np.linalg.norm(values[:, :4], axis=1) - 1.0) < 1e-3
    problems += _listed(lines[~unit].tolist(), "line {} has a quaternion that is not of length 1")
    if centres is not None and unit.all() and len(values):
        problems += _far(lines, values, centres)
    return problems


def _far(lines: NDArray[np.int64], values: Floats, centres: Floats) -> list[str]:
    matrices = Poses.from_quaternions(values[:, :4], values[:, 4:], order="wxyz", world_to_camera=True)
    low, high = centres.min(axis=0), centres.max(axis=0)
    margin = max(1.0, float(np.linalg.norm(high - low)))
    outside = ((matrices.centre < low - margin) | (matrices.centre > high + margin)).any(axis=1)
    return _listed(lines[outside].tolist(), "line {} places the camera far outside the map; t must be −R·C, not C")


def _is_finite(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _listed(values: Sequence[object], template: str) -> list[str]:
    """The first few problems of one kind, and how many more there are."""
    more = [f"… and {len(values) - _SHOWN} more like the line before"] if len(values) > _SHOWN else []
    return [*(template.format(v) for v in values[:_SHOWN]), *more]
