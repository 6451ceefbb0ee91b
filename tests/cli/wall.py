"""A painted wall, pictures of it from known places, and their COLMAP model: real features with exact points."""

from pathlib import Path

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from covis.poses import Poses
from covis.search.local_features import sift
from layouts.builders import view_rotation

SIZE, FOCAL = (320, 240), 260.0
WALL_Y, WALL_M, PIXELS_A_M = 12.0, (30.0, 14.0), 40
FRAME = "+proj=tmerc +lat_0=52.5 +lon_0=13.4 +k=1 +x_0=0 +y_0=0 +datum=WGS84 +units=m"


def paint(seed=4):
    """Blobs of all sizes."""
    rng = np.random.default_rng(seed)
    width, height = (int(m * PIXELS_A_M) for m in WALL_M)
    total = np.zeros((height, width))
    for cell in (20, 50, 120):
        small = rng.normal(size=(height // cell + 2, width // cell + 2)).astype(np.float32)
        total += np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    return np.clip(127 + 45 * total, 0, 255).astype(np.uint8)


def rays(rotation, xy):
    """(N, 3) directions in the world of pixels."""
    local = np.column_stack([(xy - np.array(SIZE) / 2) / FOCAL, np.ones(len(xy))])
    return local @ rotation.T


def on_wall(rotation, centre, xy):
    """(N, 3) where pixels show the wall."""
    ahead = rays(rotation, xy)
    return centre + ahead * ((WALL_Y - centre[1]) / ahead[:, 1])[:, None]


def picture(wall, rotation, centre):
    u, v = np.meshgrid(np.arange(SIZE[0]) + 0.5, np.arange(SIZE[1]) + 0.5)
    place = on_wall(rotation, centre, np.column_stack([u.ravel(), v.ravel()]))
    column = np.clip((place[:, 0] + WALL_M[0] / 2) * PIXELS_A_M, 0, wall.shape[1] - 1).astype(int)
    row = np.clip((WALL_M[1] / 2 + 1.6 - place[:, 2]) * PIXELS_A_M, 0, wall.shape[0] - 1).astype(int)
    return wall[row, column].reshape(SIZE[1], SIZE[0])


def cameras(n):
    """Rotations and centres along the wall, each looking a little elsewhere."""
    x = np.linspace(-6, 6, n)
    rotation = np.stack([view_rotation(6 * np.sin(3 * k), 2 * np.cos(k)) for k in range(n)])
    return rotation, np.column_stack([x, 2.0 * np.sin(np.arange(n)), np.full(n, 1.6)])


def build(folder: Path, n: int = 6):
    """`images/`, `gps.csv`, `sparse/0/*.txt` in model units of 0.4 m, and one photo `query.jpg` that is not in the model."""
    wall = paint()
    rotation, centre = cameras(n)
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    (folder / "images").mkdir()
    turn = Rotation.from_euler("xyz", [-90, 0, 25], degrees=True).as_matrix()  # the model's world has another attitude
    lines, points, known = [], [], {}
    for k in range(n):
        path = folder / "images" / f"{k}.png"
        Image.fromarray(picture(wall, rotation[k], centre[k])).convert("RGB").save(path)
        xy = sift(path).xy
        places = on_wall(rotation[k], centre[k], xy)
        ids = []
        for place, cell in zip(places, np.rint(places[:, [0, 2]] / 0.05).astype(int).tolist(), strict=True):
            if tuple(cell) not in known:  # the same spot in another picture is the same point
                known[tuple(cell)] = len(points) + 1
                points.append(place @ turn.T / 0.4)
            ids.append(known[tuple(cell)])
        own = (turn @ rotation[k]).T
        x, y, z, w = Rotation.from_matrix(own).as_quat()
        numbers = (w, x, y, z, *(-own @ (turn @ centre[k] / 0.4)))
        lines.append(f"{k + 1} {' '.join(repr(float(v)) for v in numbers)} 1 {k}.png")
        lines.append(" ".join(f"{a} {b} {i}" for (a, b), i in zip(xy, ids, strict=True)))
    (model / "cameras.txt").write_text(f"1 SIMPLE_PINHOLE {SIZE[0]} {SIZE[1]} {FOCAL} {SIZE[0] / 2} {SIZE[1] / 2}\n")
    (model / "images.txt").write_text("\n".join(lines) + "\n")
    cells = [f"{i} {p[0]} {p[1]} {p[2]} 0 0 0 0" for i, p in enumerate(points, 1)]
    (model / "points3D.txt").write_text("\n".join(cells) + "\n")
    degrees = Poses(centre[:, :2], np.zeros(n), frame=FRAME).latlon()
    rows = [f"images/{k}.png,{float(degrees[k, 0])!r},{float(degrees[k, 1])!r},{centre[k, 2]}" for k in range(n)]
    (folder / "gps.csv").write_text("image,lat,lon,altitude\n" + "\n".join(rows) + "\n")
    seen = view_rotation(9.0, -3.0), np.array([0.7, 1.1, 1.9])
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA405] = round(FOCAL / float(np.hypot(*SIZE)) * 43.2666)  # mm on 35 mm film
    Image.fromarray(picture(wall, *seen)).convert("RGB").save(folder / "query.jpg", quality=95, exif=exif)
    return rotation, centre, seen
