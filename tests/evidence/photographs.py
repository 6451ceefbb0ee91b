"""Miniatures of the photographs that are not public."""

from layouts import builders


def campus(root, walks=3, photos=5, images=True):
    """Walks over two parts of a campus."""
    return builders.walk_tables(root, walks, photos, images)


def cambridge(root, panoramas=12, images=True):
    """`train.csv` and `val.csv`: panoramas 6 m apart on a street, four views each; the last third of `train` is held out."""
    for split, (east, north) in (("train", (0.0, 0.0)), ("val", (0.0, -500.0))):
        rows = ["image,easting,northing,heading,group"]
        for p in range(panoramas + panoramas // 2 if split == "train" else panoramas):
            x = east + 6 * p + (0 if p < panoramas else 200)
            for v in range(4):
                name = f"images/{split}_{p}_{v}.jpg"
                rows.append(f"{name},{x - 60:.2f},{north:.2f},{90 * v},pano_{split}_{p}")
                if images:
                    builders.image(root / name, seed=4 * p + v)
        root.mkdir(parents=True, exist_ok=True)
        (root / f"{split}.csv").write_text("\n".join(rows) + "\n")
    return root


def racetrack(root, laps=2, photos=12, images=True):
    """`train.csv` and `val.csv`: laps of two days northwards, 4 m a photo; `train` has a part further north, held out."""
    for split, east in (("train", 0.0), ("val", 900.0)):
        rows = ["image,easting,northing,heading,group,day"]
        for day in (1, 2):
            for lap in range(laps):
                for i in range(2 * photos if split == "train" else photos):
                    north = -400 + 4 * i + 0.3 * lap + 0.1 * day + (300 if i >= photos else 0)
                    name = f"images/{split}_{day}_{lap}_{i}.jpg"
                    rows.append(f"{name},{east + lap},{north:.2f},{(i % 5):.2f},day{day}_lap{lap:02d},{day}")
                    if images:
                        builders.image(root / name, seed=i)
        root.mkdir(parents=True, exist_ok=True)
        (root / f"{split}.csv").write_text("\n".join(rows) + "\n")
    return root


def photo_sets(root, images=True):
    """The campus, street views and the race track side by side."""
    for build in (campus, cambridge, racetrack):
        build(root / build.__name__, images=images)
    return root
