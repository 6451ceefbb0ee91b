"""Miniatures of official dataset layouts, written from the published formats by someone who had not read covis' readers.

A few dozen pictures each, which vary with position and heading. They share no code with `layouts.builders`, which writes
what single tests need: a reader and a layout of one author can share one mistake.
"""

from __future__ import annotations

import csv
import json
import math
import string
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat
from scipy.spatial.transform import Rotation

from layouts.miniatures import miniature

SEED = 7
SUBTASKS = ("all", "s2w", "w2s", "o2n", "n2o", "d2n", "n2d")
THRESHOLDS = {"posDistThr": 25.0, "posDistSqThr": 625.0, "nonTrivPosDistSqThr": 100.0}
CONDITIONS = ("dawn", "dusk", "night", "night-rain", "overcast-summer", "overcast-winter", "rain", "snow", "sun")
CMU_WITH_QUERY_POSES = (7, 8, 9, 10, 11, 12, 22, 23, 24, 25)


class Painter:
    """Pictures that vary smoothly with position and heading, so that a network can learn something from them."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)

    def picture(self, path: Path, at: tuple[float, float, float], size=(96, 72), tint=0.0) -> None:
        """Writes the view from `at` = (east, north, heading in degrees clockwise from north)."""
        x, y, heading = at
        width, height = size
        u, v = np.linspace(-1, 1, width)[None, :], np.linspace(-1, 1, height)[:, None]
        ray = math.radians(heading) + u * math.pi / 4
        east, north = x + 30 * np.sin(ray), y + 30 * np.cos(ray)
        waves = [np.sin(east / 7 + 2 * v), np.sin(north / 5 - v * 3), np.sin((east + north) / 11 + 4 * v * u)]
        pixels = (np.stack(waves, -1) * 0.5 + 0.5) * 220 + tint * 30
        pixels += self.rng.normal(0, 6, pixels.shape)
        path.parent.mkdir(parents=True, exist_ok=True)
        options = {"compress_level": 1} if path.suffix == ".png" else {"quality": 90}
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, **options)


@miniature("msls")
def msls(root):
    """`train_val/<city>/{query,database}` and `test/<city>/…`, which has no positions; keys of 22 characters."""
    painter = Painter()
    cities = [("zurich", 40, 60, 3e5, 5e6), ("amman", 40, 60, 3e5, 5e6), ("goa", 40, 60, 3e5, 5e6)]
    cities += [("cph", 40, 70, 3e5, 6e6), ("sf", 30, 50, 5e5, 4e6)]
    for city, queries, database, east, north in cities:
        _msls_city(root / "train_val" / city, painter, (queries, database), (east, north))
    for city in ("miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala"):
        _msls_city(root / "test" / city, painter, (16, 24), (5e5, 3e6))
    return root


def _msls_city(folder, painter, counts, corner):
    """A street 220 m long with views in two directions; the last two queries are 900 m away, without a positive."""
    rng = painter.rng
    east, north = (c + rng.uniform(0, 1e5) for c in corner)
    for side, count in zip(("query", "database"), counts, strict=True):
        letters = list(string.ascii_letters + string.digits + "_-")
        keys = ["".join(rng.choice(letters, 22)) for _ in range(count)]
        x = np.linspace(0, 220, count) + rng.normal(0, 2, count)
        y = rng.normal(0, 3, count)
        heading = (np.where(rng.random(count) < 0.7, 90, 270) + rng.normal(0, 12, count)) % 360
        if side == "query":
            x[-2:] += 900
        for i, key in enumerate(keys):
            path = folder / side / "images" / f"{key}.jpg"
            painter.picture(path, (x[i], y[i], heading[i]), tint=float(side == "query"))
        _msls_tables(folder / side, folder.name, keys, rng)
        if folder.parent.name == "train_val":
            _msls_positions(folder / side, keys, np.column_stack([x, y, heading]), (east, north), rng)


def _msls_tables(folder, city, keys, rng):
    shares = (0.85, 0.3, 0.3, 0.3, 0.3, 0.2, 0.2)
    members = [rng.random(len(keys)) < share for share in shares]
    for member in members:
        member[0] = True  # no side of a subtask is empty
    frames = [(key, f"seq{i // 8}{city}", i % 8 + 3) for i, key in enumerate(keys)]
    _numbered_csv(folder / "seq_info.csv", ("key", "sequence_key", "frame_number"), frames)
    rows = [(key, *(bool(member[i]) for member in members)) for i, key in enumerate(keys)]
    _numbered_csv(folder / "subtask_index.csv", ("key", *SUBTASKS), rows)


def _msls_positions(folder, keys, views, corner, rng):
    night, panorama = rng.random(len(keys)) < 0.2, rng.random(len(keys)) < 0.06
    raw, processed = [], []
    for i, (key, (x, y, heading)) in enumerate(zip(keys, views, strict=True)):
        taken = f"201{5 + i % 4}-0{1 + i % 9}-1{i % 10}"
        raw.append((key, 12.5 + x * 1e-5, 55.6 + y * 1e-5, heading, taken, bool(panorama[i])))
        direction = rng.choice(["Forward", "Backward", "Sideways"])
        processed.append((key, corner[0] + x, corner[1] + y, i // 3, False, bool(night[i]), direction))
    _numbered_csv(folder / "raw.csv", ("key", "lon", "lat", "ca", "captured_at", "pano"), raw)
    header = ("key", "easting", "northing", "unique_cluster", "control_panel", "night", "view_direction")
    _numbered_csv(folder / "postprocessed.csv", header, processed)


def _numbered_csv(path, header, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["", *header])
        writer.writerows([i, *row] for i, row in enumerate(rows))


class Struct:
    """NetVLAD's `dbStruct` in a .mat file: images of the map and queries with their UTM positions."""

    def __init__(self) -> None:
        self.names = {"db": [], "q": []}
        self.utm = {"db": [], "q": []}

    def add(self, side, name, east, north):
        self.names[side].append(name)
        self.utm[side].append((east, north))

    def save(self, path, which, **more):
        fields = {"whichSet": which, "dbImageFns": _cells(self.names["db"]), "utmDb": np.array(self.utm["db"]).T}
        fields |= {"qImageFns": _cells(self.names["q"]), "utmQ": np.array(self.utm["q"]).T}
        fields |= {"numImages": float(len(self.names["db"])), "numQueries": float(len(self.names["q"]))}
        fields |= {**THRESHOLDS, **more}
        struct = np.empty((1, 1), dtype=[(name, "O") for name in fields])
        for name, value in fields.items():
            struct[0, 0][name] = value
        path.parent.mkdir(parents=True, exist_ok=True)
        savemat(path, {"dbStruct": struct})


def _cells(names):
    cells = np.empty((len(names), 1), dtype=object)
    cells[:, 0] = names
    return cells


@miniature("pitts30k")
def pitts30k(root):
    """Pittsburgh 30k."""
    return _pittsburgh(root, "pitts30k")


@miniature("pitts250k")
def pitts250k(root):
    """Pittsburgh 250k."""
    return _pittsburgh(root, "pitts250k")


def _pittsburgh(root, name):
    """Cut-outs of panoramas 14 m apart; the first query of each split has no positive."""
    painter = Painter()
    rng = painter.rng
    splits = {"train": (0, 8, 10), "val": (4000, 6, 8), "test": (8000, 10, 14)}
    for split, (offset, panoramas, queries) in splits.items():
        struct = Struct()
        for p in range(panoramas):
            x, y = offset + p * 14.0, rng.normal(0, 4)
            for pitch in (1, 2):
                for yaw in range(1, 25, 6):
                    file = f"{p // 5:03d}/{offset + p:06d}_pitch{pitch}_yaw{yaw}.jpg"
                    painter.picture(root / file, (x, y, yaw * 15), tint=pitch)
                    struct.add("db", file, 585_000 + x, 4_477_000 + y)
        for i in range(queries):
            x, y = offset + rng.uniform(0, panoramas * 14.0) + 5000 * (i == 0), rng.normal(0, 6)
            file = f"{i // 5:03d}/{offset + i:06d}_pitch1_yaw{rng.integers(1, 25)}.jpg"
            painter.picture(root / "queries_real" / file, (x, y, rng.uniform(0, 360)), tint=0.5)
            struct.add("q", file, 585_000 + x, 4_477_000 + y)
        struct.save(root / "datasets" / f"{name}_{split}.mat", split)
    return root


@miniature("tokyo247")
def tokyo247(root):
    """Twelve cut-outs of each panorama; the struct says .jpg, the files of the map are .png."""
    painter, struct = Painter(), Struct()
    rng = painter.rng
    for p in range(12):
        x, y = p * 11.0, rng.normal(0, 3)
        for yaw in range(0, 360, 30):
            stem = f"03814/381499.10_3946799.80/pano{p:04d}_012_{yaw:03d}"
            painter.picture(root / "images" / f"{stem}.png", (x, y, yaw))
            struct.add("db", f"{stem}.jpg", 381_500 + x, 3_946_800 + y)
    for i in range(15):
        x, y = rng.uniform(0, 130), rng.normal(0, 4)
        painter.picture(root / "247query_v3" / f"{i + 1:05d}.jpg", (x, y, rng.uniform(0, 360)), tint=-1)
        struct.add("q", f"{i + 1:05d}.jpg", 381_500 + x, 3_946_800 + y)
    struct.save(root / "datasets" / "tokyo247.mat", "test")
    return root


@miniature("tokyotm")
def tokyotm(root):
    """Places photographed in three years; time stamps as the numbers YYYYMM."""
    painter = Painter()
    for split in ("train", "val"):
        struct, years = Struct(), {"db": [], "q": []}
        for i in range(60):
            x, y, year = (i // 3) * 9.0, painter.rng.normal(0, 2), (200906.0, 201108.0, 201312.0)[i % 3]
            file = f"{split}/{i // 10:03d}/s{int(year)}/p{i:05d}_{i % 12 * 30}.jpg"
            painter.picture(root / "images" / file, (x, y, i % 12 * 30))
            side = "db" if i % 4 else "q"
            struct.add(side, file, 381_000 + x, 3_946_000 + y)
            years[side].append(year)
        times = {"dbTimeStamp": np.array(years["db"])[None], "qTimeStamp": np.array(years["q"])[None]}
        struct.save(root / "datasets" / f"tokyoTM_{split}.mat", split, **times)
    return root


def camera_to_world(x, y, heading):
    """(4, 4) of a level camera at 1.5 m: its z looks forward, its y down; the world's z points up, its y north."""
    angle = math.radians(heading)
    forward, down = np.array([math.sin(angle), math.cos(angle), 0]), np.array([0, 0, -1.0])
    pose = np.eye(4)
    pose[:3, :3] = np.column_stack([np.cross(down, forward), down, forward])
    pose[:3, 3] = x, y, 1.5
    return pose


def _world_to_camera_text(pose):
    """Quaternion (w first) of world → camera, then the camera's centre, as in NVM files."""
    x, y, z, w = Rotation.from_matrix(pose[:3, :3].T).as_quat()
    return " ".join([*(f"{v:.9f}" for v in (w, x, y, z)), *(f"{v:.6f}" for v in pose[:3, 3])])


@miniature("robotcar_v2")
def robotcar(root):
    """RobotCar Seasons v2: three cameras; the reference's poses in the NVM model, 18 training poses of the rear camera."""
    painter = Painter()
    rng, time_us = painter.rng, 1_417_176_458_999_821
    train, test, nvm = [], [], []
    for condition in ("overcast-reference", *CONDITIONS):
        reference = condition == "overcast-reference"
        for i in range(14 if reference else 5):
            x, y, heading = i * 4.0 if reference else rng.uniform(0, 52), rng.normal(0, 0.2), 90 + rng.normal(0, 2)
            time_us += 300_000
            for camera, turn in (("rear", 180), ("left", -90), ("right", 90)):
                name = f"{condition}/{camera}/{time_us}"
                painter.picture(root / "images" / f"{name}.jpg", (x, y, heading + turn), size=(64, 64))
                pose = camera_to_world(x, y, heading + turn)
                if reference:
                    nvm.append(f"./{name}.png 400.0 {_world_to_camera_text(pose)} 0 0")
                elif camera == "rear" and i < 2:
                    train.append(f"{name}.png " + " ".join(f"{v:.9f}" for v in pose.ravel()))
                elif camera == "rear":
                    test.append(f"{name}.jpg")
    _robotcar_texts(root, train, test, nvm)
    return root


def _robotcar_texts(root, train, test, nvm):
    (root / "robotcar_v2_train.txt").write_text("\n".join(train) + "\n")
    (root / "robotcar_v2_test.txt").write_text("\n".join(test) + "\n")
    model = root / "3D-models" / "all-merged" / "all.nvm"
    for folder in (model.parent, root / "intrinsics", root / "extrinsics"):
        folder.mkdir(parents=True)
    model.write_text(f"NVM_V3 \n\n{len(nvm)}\n" + "\n".join(nvm) + "\n\n0\n")
    still = "\n".join(",".join(f"{v:.6f}" for v in row) for row in np.eye(4)) + "\n"
    for camera in ("left", "rear", "right"):
        (root / "intrinsics" / f"{camera}_intrinsics.txt").write_text("fx 400.0\nfy 400.0\ncx 508.2\ncy 498.2\n")
        (root / "extrinsics" / f"{camera}_extrinsics.txt").write_text(still)


@miniature("cmu_extended")
def cmu(root):
    """Extended CMU Seasons: slices 2 to 25, ten of them with published poses of their queries."""
    painter, time_us = Painter(), 1_303_398_475_046_031
    rng = painter.rng
    root.mkdir(parents=True, exist_ok=True)
    (root / "intrinsics.txt").write_text(
        "c0 OPENCV 1024 768 868.99 866.06 525.94 420.04 -0.399431 0.188924 0.000153 0.000571\n"
        "c1 OPENCV 1024 768 873.38 876.49 529.32 397.27 -0.397066 0.181925 0.000176 -0.000579\n"
    )
    for number in range(2, 26):
        folder = root / f"slice{number}"
        for empty in ("sparse", "camera-poses"):
            (folder / empty).mkdir(parents=True)
        poses = {"database": [], "query": []}
        for side, count in (("database", 8), ("query", 3)):
            for i in range(count):
                along = i * 3.0 if side == "database" else rng.uniform(0, 33)
                view = (number * 500 + along, rng.normal(0, 0.1), 45 + rng.normal(0, 3))
                time_us += 70_000
                name = f"img_{i:05d}_c{i % 2}_{time_us}us.jpg"
                painter.picture(folder / side / name, view, tint=float(side == "query"))
                poses[side].append(f"{name} {_world_to_camera_text(camera_to_world(*view))}")
        truth = folder / f"ground-truth-database-images-slice{number}.txt"
        truth.write_text("\n".join(poses["database"]) + "\n")
        names = [line.split()[0] for line in poses["query"]]
        (folder / f"test-images-slice{number}.txt").write_text("\n".join(names) + "\n")
        if number in CMU_WITH_QUERY_POSES:
            published = folder / "camera-poses" / f"slice-{number}-gt-query-images.txt"
            published.write_text("\n".join(poses["query"]) + "\n")
    return root


@miniature("tb_places", without=("w16_train",))
def tb_places(root):
    """TB-Places: W17, W18 and the published halves of W18; its largest set, W16, is left out."""
    painter = Painter()
    rng, sets = painter.rng, {}
    for name, count in (("W17", 40), ("W18", 30)):
        paths, poses = [], []
        for i in range(count):
            x, y, heading = rng.uniform(0, 6), rng.uniform(0, 5), rng.uniform(0, 360)
            paths.append(f"{name}/cam{i % 5}/img_{i:06d}.png")
            painter.picture(root / paths[-1], (x * 8, y * 8, heading), size=(80, 48))
            poses.append([x, y, 0.4, *Rotation.from_euler("z", 90 - heading, degrees=True).as_quat()])
        sets[name] = (paths, poses)
    for name, part in (("W18_map", slice(0, 30, 3)), ("W18_query", slice(1, 30, 2))):
        sets[name] = tuple(values[part] for values in sets["W18"])
    for name, (paths, poses) in sets.items():
        content = {"im_prefix": "/data/tb/", "im_paths": paths, "poses": poses}
        (root / f"{name}.json").write_text(json.dumps(content))
    return root


@miniature("7scenes")
def seven_scenes(root):
    """7-Scenes: lists and poses with CRLF, exponents of three digits, invalid depth as 65535 and 0."""
    painter = Painter()
    depth = np.full((480, 640), 2500, np.uint16)
    depth[:5], depth[-3:] = 65535, 0
    for scene in ("chess", "fire", "heads", "office", "pumpkin", "redkitchen", "stairs"):
        (root / scene).mkdir(parents=True)
        (root / scene / "TrainSplit.txt").write_bytes(b"sequence2\r\n")
        (root / scene / "TestSplit.txt").write_bytes(b"sequence1\r\n")
        for sequence, frames, step_m in ((1, 6, 0.24), (2, 12, 0.12)):
            for i in range(frames):
                x, yaw = i * step_m, painter.rng.normal(0, 4)
                stem = root / scene / f"seq-{sequence:02d}" / f"frame-{i:06d}"
                painter.picture(stem.with_suffix(".color.png"), (x * 40, sequence, yaw), size=(640, 480))
                Image.fromarray(depth).save(stem.with_suffix(".depth.png"), compress_level=1)
                pose = np.eye(4)
                pose[:3, :3] = Rotation.from_euler("y", yaw, degrees=True).as_matrix()
                pose[0, 3] = x
                rows = ["\t ".join(f"{v:.7e}" for v in row) for row in pose]
                text = "".join(f"{row}\t\r\n" for row in rows).replace("e-0", "e-00").replace("e+0", "e+00")
                stem.with_suffix(".pose.txt").write_bytes(text.encode())
    return root
