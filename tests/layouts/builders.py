"""Small copies of dataset layouts with the oddities that single tests ask for. `from layouts import builders`.

Every builder writes below `root`, returns `root`, and is the same for the same arguments.
"""

import json
from pathlib import Path

import h5py
import numpy as np
import simplejpeg
from PIL import Image
from pyproj import Transformer
from scipy.io import savemat
from scipy.spatial.transform import Rotation

from layouts.miniatures import miniature

MSLS_PLACES = {
    "cph": (55.67, 12.57),
    "sf": (37.77, -122.42),
    "amman": (31.95, 35.93),
    "london": (51.5, 0.0),
    "zurich": (47.37, 8.54),
    "miami": (25.77, -80.2),
    "athens": (37.98, 23.73),
    "buenosaires": (-34.6, -58.4),
    "stockholm": (59.33, 18.06),
    "bengaluru": (12.97, 77.59),
    "kampala": (0.32, 32.58),
}
"""City → (lat, lon) of its middle; London lies across the border of two UTM zones, Buenos Aires in the south."""
MSLS_TEST = ("miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala")
SUBTASKS = ("all", "s2w", "w2s", "o2n", "n2o", "d2n", "n2d")


def image(path, size=(32, 48), seed=0):
    """Writes a small picture in the format its ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(abs(seed)).integers(0, 256, (4, 4, 3), np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC))
    if path.suffix == ".jpg":
        path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=85))
    else:
        Image.fromarray(pixels).save(path)
    return path


def lane(root, photos=6, apart_m=8, turned_deg=3):
    """`lane.csv`: photos of two walks along a lane, a metre and some degrees of heading apart."""
    rows = ["image,easting,northing,heading,group"]
    for walk in range(2):
        for i in range(photos):
            image(root / f"{walk}-{i}.jpg", (16, 16), seed=i)
            rows.append(f"{walk}-{i}.jpg,{apart_m * i},{walk},{90 + turned_deg * walk},walk{walk}")
    (root / "lane.csv").write_text("\n".join(rows) + "\n")
    return root


def msls(root, cities=("amman", "london", "cph", "sf", *MSLS_TEST), queries=8, database=12, images=True, seed=0):
    """`train_val/<city>` and `test/<city>`; in each the last query has no positive and one map image is a panorama.

    Query i stands 3 m from map image i. Amman's seq_info says sequence_id; its files have CRLF.
    """
    for at, city in enumerate(cities):
        rng = np.random.default_rng([seed, at])
        base = root / ("test" if city in MSLS_TEST else "train_val") / city
        street = _street(city, database)
        apart = street[:queries] + np.array([3.0, 0.0])
        apart[-1] += [0.0, 5000.0]
        for side, metres in (("query", apart), ("database", street)):
            _msls_side(base / side, city, side, metres, rng, images)
    return root


def _street(city, n):
    """Positions 30 m apart, eastwards, around the city's middle, in metres east and north of it."""
    return np.column_stack([30.0 * (np.arange(n) - n / 2 + 0.25), np.zeros(n)])


def _msls_side(folder, city, side, metres, rng, images):
    n, test = len(metres), city in MSLS_TEST
    keys = [f"{city[:4]}{side[0]}{i:04d}_-aB" for i in range(n)]
    lat0, lon0 = MSLS_PLACES[city]
    lat = lat0 + metres[:, 1] / 111_320
    lon = lon0 + metres[:, 0] / (111_320 * np.cos(np.radians(lat0)))
    xy = utm(lat, lon)
    compass = np.where(np.arange(n) == 1, -1.0, 90.0 + rng.normal(0, 5, n).round(3))
    pano = [side == "database" and i == n - 1 for i in range(n)]
    eol = "\r\n" if city == "amman" else "\n"
    sequence = "sequence_id" if city == "amman" else "sequence_key"
    _csv(folder / "seq_info.csv", ["key", sequence, "frame_number"],
         [(k, f"seq{i // 4}_{side}", i % 4) for i, k in enumerate(keys)], eol)  # fmt: skip
    night = [i % 3 == 0 for i in range(n)]
    flags = [[True, i % 2 == 0, i % 2 == 1, i < n // 2, i >= n // 2, not night[i], night[i]] for i in range(n)]
    _csv(folder / "subtask_index.csv", ["key", *SUBTASKS], [(k, *f) for k, f in zip(keys, flags, strict=True)], eol)
    if not test:
        rows = zip(keys, lon, lat, compass, pano, strict=True)
        _csv(folder / "raw.csv", ["key", "lon", "lat", "ca", "captured_at", "pano"],
             [(k, repr(float(o)), repr(float(a)), c, f"201{5 + i % 4}-0{1 + i % 9}-1{i % 10}", p) for i, (k, o, a, c, p) in enumerate(rows)], eol)  # fmt: skip
        direction = ["Forward", "Backward", "Sideways"]
        head = ["key", "easting", "northing", "unique_cluster", "control_panel", "night", "view_direction"]
        _csv(folder / "postprocessed.csv", head,
             [(k, *map(repr, map(float, xy[i])), i // 2, False, night[i], direction[i % 3]) for i, k in enumerate(keys)], eol)  # fmt: skip
    if images:
        for i, key in enumerate(keys):
            image(folder / "images" / f"{key}.jpg", seed=i % 12)


def msls_positions(folder):
    """raw.csv and postprocessed.csv for a side that has none, 30 m apart; the last image is a panorama."""
    keys = [line.split(",")[1] for line in (folder / "seq_info.csv").read_text().splitlines()[1:]]
    head = ["key", "lon", "lat", "ca", "captured_at", "pano"]
    last = len(keys) - 1
    _csv(folder / "raw.csv", head, [(k, 0.0, 10.0, 90.0, "2017-05-01", i == last) for i, k in enumerate(keys)])
    head = ["key", "easting", "northing", "unique_cluster", "control_panel", "night", "view_direction"]
    rows = [(k, 166021.4 + 30 * i, 1e6, i, False, False, "Forward") for i, k in enumerate(keys)]
    _csv(folder / "postprocessed.csv", head, rows)


def utm(lat, lon):
    """(N, 2) UTM metres, each point in its own zone."""
    zone = (np.floor((lon + 180) / 6) % 60 + 1).astype(int)
    out = np.empty((len(lat), 2))
    for z in np.unique(zone):
        code = (32600 if lat.mean() >= 0 else 32700) + int(z)
        to = Transformer.from_crs(4326, code, always_xy=True)
        out[zone == z] = np.column_stack(to.transform(lon[zone == z], lat[zone == z]))
    return out


def _csv(path, header, rows, eol="\n"):
    """A CSV with an unnamed index as its first column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["," + ",".join(header), *(",".join(map(str, (i, *row))) for i, row in enumerate(rows))]
    path.write_bytes((eol.join(lines) + eol).encode())


def msls_labels(root, city, key="fov", seed=0):
    """`train_val/<city>_gt.h5` over all CSV rows, panoramas included; returns the dense matrix."""
    shape = [
        len((root / "train_val" / city / s / "seq_info.csv").read_text().split()) - 1 for s in ("query", "database")
    ]
    psi = np.random.default_rng(seed).random(shape).astype(np.float32)
    psi[psi < 0.7] = 0
    with h5py.File(root / "train_val" / f"{city}_gt.h5", "w") as handle:
        handle[key] = psi
        handle["sim"] = psi >= 0.5 if key != "sim" else psi
    return psi


def _struct(path, map_names, map_xy, query_names, query_xy, times=None):
    """A dbStruct; with `times`, its extra fields shift all others, as in Time Machine."""
    fields = {"whichSet": path.stem.split("_")[-1]}
    fields["dbImageFns"] = np.array([[n] for n in map_names], dtype=object)
    fields["utmDb"] = np.asarray(map_xy, float).T
    if times is not None:
        fields["dbTimeStamp"] = np.asarray(times[0])[None]
    fields["qImageFns"] = np.array([[n] for n in query_names], dtype=object)
    fields["utmQ"] = np.asarray(query_xy, float).T
    if times is not None:
        fields["qTimeStamp"] = np.asarray(times[1])[None]
    fields |= {
        "numImages": len(map_names),
        "numQueries": len(query_names),
        "posDistThr": 25,
        "posDistSqThr": 625,
        "nonTrivPosDistSqThr": 100,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"dbStruct": fields})


def pitts(root, name="pitts30k", splits=("train", "val", "test"), places=5, images=True, missing=()):
    """`datasets/<name>_<split>.mat`, folders 000… of cut-outs and `queries_real`; the last query has no positive.

    Folders in `missing` have no images, as when a volume was not downloaded.
    """
    for at, split in enumerate(splits):
        first = at * places
        cuts = [
            f"{p // 4:03d}/{p:06d}_pitch{1 + k % 2}_yaw{k + 1}.jpg"
            for p in range(first, first + places)
            for k in range(3)
        ]
        xy = np.repeat([[584800.0 + 40.0 * p, 4476900.0] for p in range(first, first + places)], 3, axis=0)
        queries = [f"{p // 4:03d}/{p:06d}_pitch1_yaw1.jpg" for p in range(first, first + places)]
        query_xy = xy[::3] + np.array([0.0, 6.0])
        query_xy[-1] += [0.0, 900.0]
        _struct(root / "datasets" / f"{name}_{split}.mat", cuts, xy, queries, query_xy)
        if images:
            for i, cut in enumerate(cuts):
                if cut.split("/")[0] not in missing:
                    image(root / cut, seed=i)
            for i, query in enumerate(queries):
                image(root / "queries_real" / query, seed=3 * i)
    return root


def tokyo247(root, panoramas=3, queries=3, images=True):
    """`tokyo247.mat` says .jpg, the 12 cut-outs a panorama are .png; queries in `247query_subset_v2`."""
    cuts, xy = [], []
    for p in range(panoramas):
        east, north = 381418.231 + 100 * p, 3946450.428
        cuts += [f"03814/{east:.3f}_{north:.3f}/Pano{p:018d}_012_{30 * k:03d}.jpg" for k in range(12)]
        xy += [[east, north]] * 12
    names = [f"{i:05d}.jpg" for i in range(queries)]
    query_xy = np.array([[381418.231 + 100 * i, 3946455.0] for i in range(queries)])
    query_xy[-1] += [0.0, 3000.0]
    _struct(root / "tokyo247.mat", cuts, xy, names, query_xy)
    if images:
        for i, cut in enumerate(cuts):
            image((root / cut).with_suffix(".png"), seed=i // 12)
        for i, name in enumerate(names):
            image(root / "247query_subset_v2" / name, seed=i)
    return root


def tokyotm(root, splits=("train", "val"), places=4, images=True):
    """`tokyoTM_<split>.mat` with time stamps between the usual fields; every place at two times."""
    for at, split in enumerate(splits):
        cuts, xy, times = [], [], []
        for p in range(places):
            for when in (200901, 201304):
                east = 384000.0 + 1000 * at + 50 * p
                cuts += [f"{at:05d}/{p:05d}_{when}_012_{30 * k:03d}.jpg" for k in range(4)]
                xy += [[east, 3946000.0]] * 4
                times += [when] * 4
        pick = np.arange(0, len(cuts), 5)
        _struct(root / f"tokyoTM_{split}.mat", cuts, xy, [cuts[i] for i in pick], np.array(xy)[pick],
                (times, np.array(times)[pick]))  # fmt: skip
        if images:
            for i, cut in enumerate(cuts):
                image((root / cut).with_suffix(".png"), seed=i // 4)
    return root


def _camera(east, north, heading_deg, up=1.5):
    """(3, 4) camera-to-world of a level camera: x right, y down, z ahead; world x east, y north, z up."""
    a = np.radians(heading_deg)
    ahead = np.array([np.sin(a), np.cos(a), 0.0])
    right = np.array([np.cos(a), -np.sin(a), 0.0])
    rotation = np.column_stack([right, [0.0, 0.0, -1.0], ahead])
    return np.column_stack([rotation, [east, north, up]])


def _wxyz_centre(matrix):
    """World-to-camera quaternion, w first, and camera centre."""
    x, y, z, w = Rotation.from_matrix(matrix[:, :3].T).as_quat()
    return [w, x, y, z, *matrix[:, 3]]


def robotcar(root, places=6, images=True, named_conditions=True):
    """Reference map by NVM, two conditions with poses, two without; lists say .png, files are .jpg.

    With `named_conditions` false, the test list leaves the condition out, as some copies do.
    """
    conditions, first = ("dawn", "night-rain"), 1418132400000000
    cameras = {"left": -90.0, "rear": 180.0, "right": 90.0}
    nvm, names = [], []
    for p in range(places):
        for k, (camera, turn) in enumerate(cameras.items()):
            name = f"overcast-reference/{camera}/{first + 10 * p + k}"
            pose = _wxyz_centre(_camera(10.0 * p, 0.0, turn))
            nvm.append(f"./{name}.png\t400 {' '.join(map(repr, map(float, pose)))} 0 0")
            names.append(name)
    model = root / "3D-models" / "all-merged" / "all.nvm"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_text(f"NVM_V3 \n\n{len(nvm)}\n" + "\n".join(nvm) + "\n\n0\n")
    train, test = [], []
    for c, condition in enumerate(conditions):
        for p in range(places // 2):
            name = f"{condition}/rear/{first + 1000 * (c + 1) + p}"
            matrix = np.vstack([_camera(10.0 * p + 0.2, 0.1, 181.0), [0, 0, 0, 1]])
            train.append(f"{name}.png {' '.join(map(repr, map(float, matrix.ravel())))}")
            names.append(name)
            hidden = f"{condition}/rear/{first + 1000 * (c + 1) + 500 + p}"
            test.append(f"{hidden if named_conditions else hidden.split('/', 1)[1]}.png")
            names.append(hidden)
    (root / "robotcar_v2_train.txt").write_bytes(("\r\n".join(train) + "\r\n").encode())
    (root / "robotcar_v2_test.txt").write_text("\n".join(test) + "\n")
    for camera in cameras:
        (root / "intrinsics").mkdir(exist_ok=True)
        (root / "extrinsics").mkdir(exist_ok=True)
        (root / "intrinsics" / f"{camera}_intrinsics.txt").write_text("fx 400.0\nfy 400.0\ncx 500.1\ncy 511.5\n")
        rows = np.eye(4)
        (root / "extrinsics" / f"{camera}_extrinsics.txt").write_text("\n".join(",".join(map(str, r)) for r in rows))
    if images:
        for i, name in enumerate(names):
            image(root / "images" / f"{name}.jpg", seed=i)
    return root


def cmu(root, slices=(2, 3, 4, 5, 6, 13, 14, 15, 16, 17, 18, 19, 20, 21), queries=4, database=6, images=True):
    """`sliceN` folders; half of the queries have poses in `camera-poses/`, in CRLF and beside an empty file."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "intrinsics.txt").write_text(
        "# camera model width height fx fy cx cy k1 k2 p1 p2\n"
        "c0 OPENCV 1024 768 868.99 866.06 525.94 420.04 -0.39 0.18 0.0 0.0\n"
        "c1 OPENCV 1024 768 873.38 876.48 529.32 397.27 -0.39 0.18 0.0 0.0\n"
    )
    for n in slices:
        folder = root / f"slice{n}"
        (folder / "camera-poses").mkdir(parents=True, exist_ok=True)
        lines, names = [], []
        for i in range(database):
            name = f"img_{i:05d}_c{i % 2}_{1303398475046031 + i}us.jpg"
            pose = _wxyz_centre(_camera(5.0 * i, 100.0 * n, 45.0 if i % 2 else -45.0))
            lines.append(f"{name} {' '.join(map(repr, map(float, pose)))}")
            names.append(("database", name))
        (folder / f"ground-truth-database-images-slice{n}.txt").write_text("\n".join(lines) + "\n")
        posed = []
        stamps = (1283347879534213, 1292959379534213)  # 1 Sep 2010, sunny with foliage; 21 Dec 2010, snow
        for i in range(queries):
            name = f"img_{i:05d}_c{i % 2}_{stamps[i % 2] + 1000 * n + i}us.jpg"  # the server tells slices apart by it
            names.append(("query", name))
            pose = _wxyz_centre(_camera(5.0 * i + 0.1, 100.0 * n, 46.0 if i % 2 else -44.0))
            if i < queries // 2:
                posed.append(f"{name} {' '.join(map(repr, map(float, pose)))}")
        listed = [name for side, name in names if side == "query"]
        (folder / f"test-images-slice{n}.txt").write_text("\n".join(listed) + "\n")
        (folder / "camera-poses" / "session_1.txt").write_bytes(("\r\n".join(posed) + "\r\n").encode())
        (folder / "camera-poses" / "session_2.txt").write_text("")
        if images:
            for i, (side, name) in enumerate(names):
                image(folder / side / name, seed=i)
    return root


def tb_places(root, sizes=(("W17", 6), ("W18", 7)), halves=(4, 3), images=True):
    """`W17.json`, `W18/W18.json` with its query and map lists, condensed `sim` and `fov` labels."""
    for at, (name, n) in enumerate(sizes):
        folder = root if at == 0 else root / name
        folder.mkdir(parents=True, exist_ok=True)
        paths = [f"{name}/cam0/{i:06d}.png" for i in range(n)]
        poses = [_body(0.5 * i, 1.0 + 0.1 * at, 90.0 - 3.0 * i) for i in range(n)]
        _index(folder / f"{name}.json", paths, poses)
        pairs = n * (n - 1) // 2
        fov = np.random.default_rng(at).random(pairs).astype(np.float32).round(2)
        fov[fov < 0.4] = 0
        with h5py.File(folder / f"{name}_similarity.h5", "w") as handle:
            handle["fov"] = fov[None]
            handle["sim"] = (fov >= 0.5)[None]
        if name == "W18":
            _index(folder / "W18_query.json", paths[: halves[0]], poses[: halves[0]])
            _index(folder / "W18_map.json", paths[halves[0] :], poses[halves[0] :])
        if images:
            for i, path in enumerate(paths):
                image(root / path, seed=i)
    with h5py.File(root / "W18_W17_gt.h5", "w") as handle:
        handle["sim"] = np.arange(sizes[1][1] * sizes[0][1]).reshape(sizes[1][1], sizes[0][1]) % 4 == 0
    return root


def _body(x, y, heading_deg):
    """tx ty tz qx qy qz qw of a robot (x ahead, z up) that looks `heading_deg` clockwise from north."""
    return [x, y, 0.3, *Rotation.from_euler("z", 90.0 - heading_deg, degrees=True).as_quat().tolist()]


def _index(path, names, poses):
    path.write_text(json.dumps({"im_prefix": "/data/TB_Places/", "im_paths": names, "poses": poses}))


def seven_scenes(root, scenes=("stairs",), frames=4, ending="png", images=True):
    """`<scene>/{Train,Test}Split.txt`, two sequences of colour, depth and pose; CRLF and `e-001` exponents."""
    for scene in scenes:
        folder = root / scene
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "TrainSplit.txt").write_bytes(b"sequence1\r\n")
        (folder / "TestSplit.txt").write_bytes(b"sequence2\r\n")
        for sequence in (1, 2):
            for i in range(frames):
                stem = folder / f"seq-{sequence:02d}" / f"frame-{i:06d}"
                stem.parent.mkdir(exist_ok=True)
                matrix = np.eye(4)
                matrix[:3, :3] = Rotation.from_euler("y", 4.0 * i + sequence, degrees=True).as_matrix()
                matrix[:3, 3] = [0.05 * i, 0.0, 0.02 * sequence]
                text = "\r\n".join("\t ".join(_exponent(v) for v in row) + "\t " for row in matrix) + "\r\n"
                Path(f"{stem}.pose.txt").write_bytes(text.encode())
                if images:
                    image(Path(f"{stem}.color.{ending}"), (48, 64), seed=i)
                    depth = np.full((48, 64), 2000 + 10 * i, np.uint16)
                    depth[:2], depth[2:4] = 65535, 0
                    Image.fromarray(depth).save(f"{stem}.depth.png")
    return root


def _exponent(value):
    """`9.3817085e-001`: three digits of exponent, as the official files have."""
    mantissa, exponent = f"{value:.7e}".split("e")
    return f"{mantissa}e{exponent[0]}{int(exponent[1:]):03d}"


@miniature("utm_folders")
def utm_folders(root, splits=("train", "val", "test"), places=4, images=True):
    """`images/<split>/{database,queries}` with `@utm@…` names; queries carry no heading."""
    for split in splits:
        for p in range(places):
            lat, lon = np.array([37.79 + 0.0005 * p]), np.array([-122.4])
            east, north = utm(lat, lon)[0]
            place = f"@{east:010.2f}@{north:010.2f}@10@S@{lat[0]:09.5f}@{lon[0]:010.5f}"
            names = [("database", f"{place}@pano{p}@{k:02d}@{90 * k:03d}@@@@201909@@.jpg") for k in range(2)]
            names.append(("queries", f"{place}@@@@@@@@note with space@.jpg"))
            for side, name in names:
                target = root / "images" / split / side / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if images:
                    image(target, seed=p)
                else:
                    target.touch()
    return root


@miniature("gsv")
def gsv(root, cities=("Bangkok", "PRS"), places=3, views=4, images=True):
    """`Dataframes/<City>.csv` and `Images/<City>/…`."""
    middles = {"Bangkok": (13.75, 100.5), "PRS": (48.85, 2.35)}
    for city in cities:
        lat0, lon0 = middles[city]
        rows = ["place_id,year,month,northdeg,city_id,lat,lon,panoid"]
        for p in range(places):
            for v in range(views):
                lat, lon = round(lat0 + 0.001 * p, 6), round(lon0 + 1e-5 * v, 6)
                pano = f"{city}pano_-{p}{v}"
                rows.append(f"{p},{2010 + v},{v + 1},{40 + v},{city},{lat},{lon},{pano}")
                name = f"{city}_{p:07d}_{2010 + v}_{v + 1:02d}_{40 + v:03d}_{lat}_{lon}_{pano}.jpg"
                if images:
                    image(root / "Images" / city / name, seed=p)
        (root / "Dataframes").mkdir(parents=True, exist_ok=True)
        (root / "Dataframes" / f"{city}.csv").write_text("\n".join(rows) + "\n")
    return root


def walk_tables(root, walks=3, photos=5, images=True):
    """`train.csv` and `west.csv` with walks as groups; `train.csv` has as many again further north, in region 8."""
    for split, east in (("train", 0.0), ("west", -500.0)):
        rows = ["image,easting,northing,heading,group,minute_of_day,region"]
        for w in range(2 * walks if split == "train" else walks):
            north, region = (0.5 * w, w) if w < walks else (400 + 0.5 * w, 8)
            for i in range(photos):
                name = f"images/{split}_{w}_{i}.jpg"
                minute = 600 + i if w else -1
                rows.append(f"{name},{east + 8 * i},{north},{(10 * i) % 360},run{w:03d},{minute},{region}")
                if images:
                    image(root / name, seed=i)
        root.mkdir(parents=True, exist_ok=True)
        (root / f"{split}.csv").write_text("\n".join(rows) + "\n")
    return root


ALL = {
    "msls": msls,
    "pitts30k": pitts,
    "tokyo247": tokyo247,
    "tokyotm": tokyotm,
    "robotcar_v2": robotcar,
    "cmu_extended": cmu,
    "tb_places": tb_places,
    "7scenes": seven_scenes,
    "utm_folders": utm_folders,
    "gsv": gsv,
}
"""Dataset name → its builder."""


@miniature("photos")
@miniature("table")
def own_photos(root, walks=4, photos=16):
    """`photos.csv`: walks along one street, 8 m from photo to photo."""
    rows = ["image,easting,northing,heading,group"]
    for w in range(walks):
        for i in range(photos):
            image(root / f"w{w}_{i}.jpg", (16, 16), seed=i)
            rows.append(f"w{w}_{i}.jpg,{8 * i},{w},{90 + 3 * w},walk{w}")
    (root / "photos.csv").write_text("\n".join(rows) + "\n")
    return root / "photos.csv"


@miniature("town")
def hamlet(root):
    """A rendered town of the smallest size, with all its splits."""
    from covis.town.config import TownConfig
    from covis.town.dataset import load

    for split in ("train", "val", "test"):
        load(root, split, TownConfig.small())
    return root


def view_rotation(heading, pitch=0.0):
    """(3, 3) camera (x right, y down, z forward) to east, north, up of a camera without roll, tilted up by `pitch`."""
    h, p = np.radians([heading, pitch])
    ahead = np.array([np.sin(h) * np.cos(p), np.cos(h) * np.cos(p), np.sin(p)])
    right = np.array([np.cos(h), -np.sin(h), 0.0])
    return np.column_stack([right, np.cross(ahead, right), ahead])
