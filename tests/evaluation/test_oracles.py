"""Figures on miniatures of the official layouts against loops that read the official files themselves.

The miniatures are written from the formats by someone who had not read the readers, and nothing below uses a reader of
covis: CSV files are read with `csv`, MATLAB structs with `scipy.io`, pose lists line by line. Descriptors are drawn from an
image's official name, so that both sides rank alike whatever order they keep images in.
"""

import csv
import hashlib
import shutil
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from scipy.io import loadmat
from scipy.spatial.transform import Rotation

from covis.evaluation import load_benchmark
from covis.evaluation.retrieval import evaluate_descriptors, rank_descriptors
from covis.evaluation.submissions import keys, write_submission

KS = (1, 5, 10, 20)
RADIUS_M = 25.0


def drawn(name, place=None):
    """A unit descriptor: chance from the name, and something of the place where one is given."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    vector = np.random.default_rng(seed).normal(size=8)
    if place is not None:
        x, y = place
        vector[:6] += 1.5 * np.array([f(v / s) for v in (x, y) for s, f in ((40, np.sin), (40, np.cos), (300, np.sin))])
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def nearest(query, database):
    """Positions in the map (M, dim), nearest first."""
    return np.argsort(((database - query) ** 2).sum(axis=1), kind="stable")


def percent(hits):
    return 100.0 * float(np.mean(hits))


# MSLS: the official evaluator, restated


def read_csv(file):
    with file.open(newline="") as handle:
        return list(csv.DictReader(handle))


def items(folder, subtask, with_positions=True):
    """(key, row number) of every image that the subtask counts; only raw.csv tells of panoramas."""
    lines, flags = read_csv(folder / "seq_info.csv"), read_csv(folder / "subtask_index.csv")
    panorama = (
        [line["pano"] == "True" for line in read_csv(folder / "raw.csv")] if with_positions else [False] * len(lines)
    )
    return [(line["key"], i) for i, line in enumerate(lines) if flags[i][subtask] == "True" and not panorama[i]]


def official_msls(root, cities, subtask, *, panoramas=False):
    """Recall@k and mAP@k in percent as the official evaluator makes them, and how many queries it counts.

    `root` holds the cities; the server's lists tell nothing of `panoramas`, so that in the test cities they count.
    """
    recall, precision = {k: [] for k in KS}, {k: [] for k in KS}
    size = 0
    for city in cities:
        sides = []
        for side in ("query", "database"):
            folder = root / city / side
            places = [(float(r["easting"]), float(r["northing"])) for r in read_csv(folder / "postprocessed.csv")]
            found = items(folder, subtask, with_positions=not panoramas)
            sides.append([(name, np.array(places[i])) for name, i in found])
        size += len(sides[1])
        database = np.stack([drawn(name, xy) for name, xy in sides[1]])
        for name, xy in sides[0]:
            positive = {j for j, (_, other) in enumerate(sides[1]) if np.linalg.norm(xy - other) <= RADIUS_M}
            if not positive:
                continue
            ranked = nearest(drawn(name, xy), database)
            for k in KS:
                hits = [j in positive for j in ranked[:k]]
                recall[k].append(any(hits))
                score = sum(sum(hits[: i + 1]) / (i + 1) for i, hit in enumerate(hits) if hit)
                precision[k].append(score / min(len(positive), k))
    counted = len(recall[1])
    return (
        {str(k): percent(v) for k, v in recall.items()},
        {str(k): percent(v) for k, v in precision.items()},
        counted,
        size,
    )


MSLS = {
    "msls_val": "all",
    **{f"msls_val_{task}": task for task in ("s2w", "w2s", "o2n", "n2o", "d2n", "n2d")},
}


def assert_equal_to_the_official_evaluator(name, root, folder, cities, *, panoramas=False):
    """Figures of benchmark `name` on the layout `root`, whose `cities` lie in `folder`."""
    subtask = MSLS[name.replace("msls_test", "msls_val")]
    recall, precision, counted, size = official_msls(folder, cities, subtask, panoramas=panoramas)
    benchmark = load_benchmark(name, root)
    places = {}
    for side in ("query", "database"):
        for city in cities:
            for row in read_csv(folder / city / side / "postprocessed.csv"):
                places[row["key"]] = (float(row["easting"]), float(row["northing"]))
    sides = [
        np.stack([drawn(key, places[key]) for key in keys(images)])
        for images in (benchmark.queries, benchmark.database)
    ]
    figures = evaluate_descriptors(*sides, benchmark).figures
    assert (figures["queries"], figures["database"]) == (counted, size)
    assert figures["recall"] == pytest.approx(recall)
    assert figures["map"] == pytest.approx(precision)
    assert 0 < figures["recall"]["1"] < figures["recall"]["20"], "the miniature would tell nothing"


@pytest.mark.parametrize("name", list(MSLS))
def test_msls_validation_equals_the_official_evaluator(official, name):
    assert_equal_to_the_official_evaluator(name, official["msls"], official["msls"] / "train_val", ("cph", "sf"))


TEST_CITIES = ("miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala")


@pytest.fixture(scope="module")
def released_truth(official, tmp_path_factory):
    """MSLS whose test cities have their positions: lists of cities that have them, under the test cities' names."""
    root = tmp_path_factory.mktemp("msls")
    known = sorted(path for path in (official["msls"] / "train_val").iterdir() if path.is_dir())
    for i, city in enumerate(TEST_CITIES):
        shutil.copytree(known[i % len(known)], root / "test" / city, ignore=shutil.ignore_patterns("*.jpg", "*.h5"))
    return root


@pytest.mark.parametrize("name", [name.replace("val", "test") for name in MSLS])
def test_msls_test_with_its_released_truth_equals_the_official_evaluator(released_truth, name):
    folder = released_truth / "test"
    assert_equal_to_the_official_evaluator(name, released_truth, folder, TEST_CITIES, panoramas=True)


def test_the_file_for_the_msls_server_asks_what_the_official_lists_ask(official, tmp_path):
    """The test cities' lists tell nothing of panoramas, so none are left out; a query is searched in its own city."""
    benchmark = load_benchmark("msls_test", official["msls"])
    sides = [np.stack([drawn(key) for key in keys(images)]) for images in (benchmark.queries, benchmark.database)]
    file = write_submission(rank_descriptors(*sides, benchmark), benchmark, tmp_path / "predictions.csv")
    lines = [line.split(" ") for line in file.read_text().splitlines() if not line.startswith("#")]
    expected = []
    for city in TEST_CITIES:
        folders = [official["msls"] / "test" / city / side for side in ("query", "database")]
        queries, database = ([name for name, _ in items(folder, "all", False)] for folder in folders)
        vectors = np.stack([drawn(key) for key in database])
        expected += [[query, *(database[j] for j in nearest(drawn(query), vectors))] for query in queries]
    width = len(lines[0])
    assert width > 5
    assert sorted(lines) == sorted(row[:width] for row in expected)


# Pittsburgh and Tokyo: the struct, read by name


class Struct:
    """A dbStruct: names, positions and, in Time Machine, time stamps."""

    def __init__(self, file):
        fields = loadmat(file, squeeze_me=False)["dbStruct"][0, 0]
        self.queries, self.database = ([str(cell[0][0]) for cell in fields[k]] for k in ("qImageFns", "dbImageFns"))
        self.query_xy, self.database_xy = fields["utmQ"].T, fields["utmDb"].T
        self.limit = float(fields["posDistSqThr"].item())
        stamps = "qTimeStamp" in fields.dtype.names
        self.query_time, self.database_time = (
            (fields[k].ravel() if stamps else None) for k in ("qTimeStamp", "dbTimeStamp")
        )

    def positive(self, i):
        near = ((self.database_xy - self.query_xy[i]) ** 2).sum(axis=1) <= self.limit
        return near if self.query_time is None else near & (self.database_time != self.query_time[i])


def of_file(path):
    """The part of a name that says which image it is, whatever folder and suffix a release gives it."""
    return PurePosixPath(path).stem


def recalls_of(struct, kept):
    """Recall over all and over the answerable queries; `kept` says which of the ranked images count, by query."""
    database = np.stack([drawn(of_file(n), xy) for n, xy in zip(struct.database, struct.database_xy, strict=True)])
    hits, answerable = {k: [] for k in KS}, []
    for i, name in enumerate(struct.queries):
        positive = struct.positive(i)
        ranked = kept(i, nearest(drawn(of_file(name), struct.query_xy[i]), database))
        answerable.append(bool(positive.any()))
        for k in KS:
            hits[k].append(bool(positive[ranked[:k]].any()))
    mask = np.array(answerable)
    return [{str(k): percent(np.array(v)[over]) for k, v in hits.items()} for over in (np.ones_like(mask), mask)]


def first_cutouts(ranked):
    """Of the 12 cut-outs of a panorama, which lie together in the struct, the best."""
    seen, kept = set(), []
    for j in ranked:
        if j // 12 not in seen:
            seen.add(j // 12)
            kept.append(j)
    return np.array(kept)


STREETS = {
    "pitts30k_val": ("pitts30k", "pitts30k_val"),
    "pitts30k_test": ("pitts30k", "pitts30k_test"),
    "pitts250k_test": ("pitts250k", "pitts250k_test"),
    "tokyo247": ("tokyo247", "tokyo247"),
    "tokyo247_cutouts": ("tokyo247", "tokyo247"),
    "tokyotm_val": ("tokyotm", "tokyoTM_val"),
}


@pytest.mark.parametrize("name", list(STREETS))
def test_street_positions_and_recalls_equal_a_loop_over_the_struct(official, name):
    dataset, stem = STREETS[name]
    struct = Struct(official[dataset] / "datasets" / f"{stem}.mat")
    keep = {
        "tokyo247": lambda i, ranked: first_cutouts(ranked[: 12 * max(KS)]),
        "tokyotm_val": lambda i, ranked: [
            j for j in ranked[: 10 * max(KS)] if struct.database_time[j] != struct.query_time[i]
        ],
    }.get(name, lambda i, ranked: ranked)
    over_all, over_answerable = recalls_of(struct, keep)
    benchmark = load_benchmark(name, official[dataset])
    for images, names, xy in (
        (benchmark.queries, struct.queries, struct.query_xy),
        (benchmark.database, struct.database, struct.database_xy),
    ):
        assert [of_file(images.name(i)) for i in range(len(images))] == [of_file(n) for n in names]
        assert np.array_equal(images.poses.xy, xy)
    sides = [
        np.stack([drawn(of_file(images.name(i)), images.poses.xy[i]) for i in range(len(images))])
        for images in (benchmark.queries, benchmark.database)
    ]
    figures = evaluate_descriptors(*sides, benchmark).figures
    assert figures["queries"] == len(struct.queries)
    assert figures["recall"] == figures["recall_over_all"] == pytest.approx(over_all)
    assert figures["recall_over_answerable"] == pytest.approx(over_answerable)


# RobotCar and CMU: cameras of the map, and what is written for a query


def camera(quaternion, centre):
    """(R, t) of world → camera from w x y z and the camera's centre."""
    w, x, y, z = quaternion
    turn = Rotation.from_quat([x, y, z, w]).as_matrix()
    return turn, -turn @ np.asarray(centre)


def nvm_cameras(file):
    """`condition/camera/stamp` → (R, t) of an N-View Match file."""
    lines = [line.split() for line in file.read_text().splitlines() if line.strip()]
    assert lines[0] == ["NVM_V3"]
    count = int(lines[1][0])
    return {
        str(PurePosixPath(row[0]).with_suffix("")): camera([float(v) for v in row[2:6]], [float(v) for v in row[6:9]])
        for row in lines[2 : 2 + count]
    }


def listed_cameras(file):
    """Image name → (R, t) of a list `name qw qx qy qz cx cy cz`."""
    rows = [line.split() for line in file.read_text().splitlines()]
    return {row[0]: camera([float(v) for v in row[1:5]], [float(v) for v in row[5:8]]) for row in rows}


def written(benchmark, describe, path):
    """Query name → (R, t), as the file for the server has them."""
    sides = [
        np.stack([describe(Path(images.name(i))) for i in range(len(images))])
        for images in (benchmark.queries, benchmark.database)
    ]
    file = write_submission(rank_descriptors(*sides, benchmark), benchmark, path)
    out = {}
    for line in file.read_text().splitlines():
        name, *values = line.split(" ")
        w, x, y, z, *t = map(float, values)
        out[name] = (Rotation.from_quat([x, y, z, w]).as_matrix(), np.array(t))
    return out


def assert_same_camera(found, expected):
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4)


def test_robotcar_poses_written_are_those_of_the_best_reference_camera(official, tmp_path):
    root = official["robotcar_v2"]
    rear = {n: c for n, c in nvm_cameras(root / "3D-models/all-merged/all.nvm").items() if "/rear/" in n}
    database = np.stack([drawn(n) for n in rear])
    asked = [line.split()[0] for line in (root / "robotcar_v2_test.txt").read_text().splitlines()]

    def describe(path):
        return drawn(str(PurePosixPath(*path.parts[1:]).with_suffix("")))

    poses = written(load_benchmark("robotcar_v2", root), describe, tmp_path / "poses.txt")
    assert sorted(poses) == sorted("/".join(n.split("/")[1:]) for n in asked)
    for name in asked:
        best = list(rear)[nearest(drawn(name.removesuffix(".jpg")), database)[0]]
        assert_same_camera(poses["/".join(name.split("/")[1:])], rear[best])


def test_robotcar_training_queries_are_scored_by_their_published_matrices(official):
    root = official["robotcar_v2"]
    rear = {n: c for n, c in nvm_cameras(root / "3D-models/all-merged/all.nvm").items() if "/rear/" in n}
    rows = [line.split() for line in (root / "robotcar_v2_train.txt").read_text().splitlines()]
    truth = {row[0].removesuffix(".png"): np.array([float(v) for v in row[1:]]).reshape(4, 4) for row in rows}
    database = np.stack([drawn(n, -(c[0].T @ c[1])[:2]) for n, c in rear.items()])
    errors = []
    for name, matrix in truth.items():
        turn, shift = list(rear.values())[nearest(drawn(name, matrix[:2, 3]), database)[0]]
        cosine = (np.trace(turn @ matrix[:3, :3]) - 1) / 2
        errors.append((np.linalg.norm(-turn.T @ shift - matrix[:3, 3]), np.degrees(np.arccos(np.clip(cosine, -1, 1)))))
    metres, degrees = np.array(errors).T
    limits = ((0.25, 2.0), (0.5, 5.0), (5.0, 10.0))
    expected = {f"{m:g}m_{d:g}deg": percent((metres <= m) & (degrees <= d)) for m, d in limits}
    benchmark = load_benchmark("robotcar_v2_train", root)
    places = {**{n: m[:2, 3] for n, m in truth.items()}, **{n: -(c[0].T @ c[1])[:2] for n, c in rear.items()}}
    sides = []
    for images in (benchmark.queries, benchmark.database):
        names = [str(PurePosixPath(*PurePosixPath(n.decode()).parts[1:]).with_suffix("")) for n in images.names]
        sides.append(np.stack([drawn(n, places[n]) for n in names]))
    figures = evaluate_descriptors(*sides, benchmark).figures
    assert figures["localised"] == pytest.approx(expected)
    assert expected["5m_10deg"] > 0


@pytest.mark.parametrize("one_map", [True, False])
def test_cmu_poses_written_are_those_of_the_best_map_camera(official, one_map, tmp_path):
    """The authors' protocol searches the maps of all test slices as one; the other a query's own slice."""
    root, slices = official["cmu_extended"], (2, 3, 4, 5, 6, 13, 14, 15, 16, 17, 18, 19, 20, 21)
    cameras = {n: listed_cameras(root / f"slice{n}/ground-truth-database-images-slice{n}.txt") for n in slices}
    asked = {n: (root / f"slice{n}/test-images-slice{n}.txt").read_text().split() for n in slices}
    name = "cmu_extended_one_map" if one_map else "cmu_extended"
    poses = written(load_benchmark(name, root), lambda path: drawn(path.name), tmp_path / "poses.txt")
    assert sorted(poses) == sorted(query for queries in asked.values() for query in queries)
    elsewhere = 0
    for n, queries in asked.items():
        known = {k: c for m in (slices if one_map else (n,)) for k, c in cameras[m].items()}
        vectors = np.stack([drawn(k) for k in known])
        for query in queries:
            best = list(known)[nearest(drawn(query), vectors)[0]]
            elsewhere += best not in cameras[n]
            assert_same_camera(poses[query], known[best])
    assert (elsewhere > 0) == one_map
