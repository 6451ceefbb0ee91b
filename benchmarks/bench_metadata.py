"""Metadata of an MSLS-sized training split: 520,000 queries and 900,000 map rows in 22 cities.

covis is compared with pandas' reader, which the official loader uses (without that loader's loop over rows), and with
the plain way, Python's csv reader into lists. Each runs in a process of its own, for its peak memory. One thread each
(`ARROW_NUM_THREADS` and `OMP_NUM_THREADS` are set).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from _common import peak_mb, report

QUERIES, DATABASE = 520_000, 900_000


def build(root: Path) -> None:
    """Writes the CSV files, with keys of 22 characters like the real ones."""
    from covis.datasets.msls import CITIES

    rng = np.random.default_rng(0)
    cities = CITIES["train"]
    for at, city in enumerate(cities):
        for side, total in (("query", QUERIES), ("database", DATABASE)):
            n = total // len(cities) + (at < total % len(cities))
            _side(root / "train_val" / city / side, n, rng, f"{at:02d}{side[0]}")


def _side(folder: Path, n: int, rng: np.random.Generator, tag: str) -> None:
    folder.mkdir(parents=True)
    keys = [f"{tag}{i:015d}_-Xy" for i in range(n)]
    lat, lon = 52 + rng.random(n) * 0.1, 13 + rng.random(n) * 0.1
    east, north, compass = rng.random(n) * 9e3 + 4e5, rng.random(n) * 9e3 + 5.8e6, rng.random(n) * 360
    flag = ["False", "True"]

    def write(name: str, head: str, rows: Iterable[str]) -> None:
        with (folder / name).open("w") as handle:
            handle.write(f",key,{head}\n")
            handle.writelines(f"{i},{keys[i]},{row}\n" for i, row in enumerate(rows))

    write("seq_info.csv", "sequence_key,frame_number", (f"{tag}sequence{i // 40:012d},{i % 40}" for i in range(n)))
    write(
        "subtask_index.csv",
        "all,s2w,w2s,o2n,n2o,d2n,n2d",
        (",".join(flag[(i >> k) & 1] for k in range(7)) for i in range(n)),
    )
    write(
        "raw.csv",
        "lon,lat,ca,captured_at,pano",
        (f"{lon[i]},{lat[i]},{compass[i]:.4f},{1500000000000 + i},{flag[i % 50 == 0]}" for i in range(n)),
    )
    write(
        "postprocessed.csv",
        "easting,northing,unique_cluster,control_panel,night,view_direction",
        (f"{east[i]},{north[i]},{i // 3},False,{flag[i % 9 == 0]},Forward" for i in range(n)),
    )


def ours(root: Path) -> int:
    """covis' reader."""
    from covis.datasets import load

    split = load("msls", root, "train")
    return len(split.queries) + len(split.database)


def pandas(root: Path) -> int:
    """pandas.read_csv of the same files, joined into one frame a side."""
    import pandas as pd

    rows = 0
    kept = []
    for side in ("query", "database"):
        frames = []
        for folder in sorted((root / "train_val").glob(f"*/{side}")):
            names = ("seq_info", "raw", "postprocessed", "subtask_index")
            tables = [pd.read_csv(folder / f"{n}.csv", index_col=0) for n in names]
            frame = pd.concat([tables[0], *(t.drop(columns="key") for t in tables[1:])], axis=1)
            frame["name"] = f"{folder.relative_to(root)}/images/" + frame["key"] + ".jpg"
            frames.append(frame)
        kept.append(pd.concat(frames, ignore_index=True))
        rows += len(kept[-1])
    return rows


def plain(root: Path) -> int:
    """csv.DictReader into lists of names, positions and flags."""
    import csv

    names, east, north, compass, pano, night = [], [], [], [], [], []
    for side in ("query", "database"):
        for folder in sorted((root / "train_val").glob(f"*/{side}")):
            files = [
                (folder / f"{n}.csv").open(newline="") for n in ("seq_info", "raw", "postprocessed", "subtask_index")
            ]
            for info, raw, post, _ in zip(*map(csv.DictReader, files), strict=True):
                names.append(str(folder / "images" / f"{info['key']}.jpg"))
                east.append(float(post["easting"]))
                north.append(float(post["northing"]))
                compass.append(float(raw["ca"]))
                pano.append(raw["pano"] == "True")
                night.append(post["night"] == "True")
            for file in files:
                file.close()
    return len(names)


def child(way: str, root: Path) -> None:
    """Runs one way and prints its cost."""
    start, cpu = time.monotonic(), time.process_time()
    rows = {"covis": ours, "pandas": pandas, "plain csv": plain}[way](root)
    peak = peak_mb()
    print(
        json.dumps(
            {
                "way": way,
                "images": rows,
                "seconds": time.monotonic() - start,
                "cpu_s": time.process_time() - cpu,
                "peak_MB": peak,
            }
        )
    )


def main() -> None:
    """All ways on the same files."""
    root = Path(tempfile.mkdtemp(prefix="covis-metadata-"))
    try:
        build(root)
        size = sum(f.stat().st_size for f in root.rglob("*.csv")) / 1e6
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
        rows = []
        for way in ("covis", *(["pandas"] if find_spec("pandas") else []), "plain csv"):
            done = subprocess.run(
                [sys.executable, __file__, way, str(root)], env=environment, capture_output=True, text=True, check=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        for row in rows:
            row["times_plain"] = rows[-1]["cpu_s"] / row["cpu_s"]
        report("metadata", rows, {"queries": QUERIES, "database": DATABASE, "csv_MB": round(size)})
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    child(sys.argv[1], Path(sys.argv[2])) if len(sys.argv) > 2 else main()
