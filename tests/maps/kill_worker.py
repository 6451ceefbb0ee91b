"""A process that changes a map, told when to die: before its n-th step on disk, or whenever someone kills it."""

from pathlib import Path

import numpy as np

from stepped import die_before


def photo(i: int) -> str:
    return f"{i:03d}.png"


def change(i: int, names: frozenset[str]) -> tuple[str, list[str]]:
    """The i-th change to a map of `names`: what to do, and to which photos."""
    rng = np.random.default_rng((11, i))
    outside = sorted({photo(j) for j in range(24)} - names)
    if len(names) > 6 and (rng.random() < 0.5 or not outside):
        return "remove", sorted(rng.choice(sorted(names), 2, replace=False).tolist())
    return "add", sorted(rng.choice(outside, min(3, len(outside)), replace=False).tolist())


def after(i: int, names: frozenset[str]) -> frozenset[str]:
    """The map's photos after the i-th change."""
    what, chosen = change(i, names)
    return names | set(chosen) if what == "add" else names - set(chosen)


def work(map_path: Path, table: Path, acknowledged: Path, die_at: int) -> None:
    """Makes change after change, and writes down each one that came back; dies before step `die_at` (0: never)."""
    import torch

    from covis.maps.map import Map
    from covis.reading.table import read_table

    torch.set_num_threads(1)
    images = read_table(table)
    place = {images.name(i): i for i in range(len(images))}
    if die_at:
        die_before(die_at)
    while True:
        now = Map.open(map_path)
        names = frozenset(now.images.name(i) for i in range(len(now)))
        done = now.version - 1
        what, chosen = change(done, names)
        if what == "add":
            now.add(images.subset([place[n] for n in chosen]))
        else:
            now.remove(chosen)
        with acknowledged.open("a") as handle:
            handle.write(f"{done + 1}\n")
