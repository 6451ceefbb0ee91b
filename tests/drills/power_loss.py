"""Power failures: what was not forced onto the disk is gone, at each step of a change, and the map is old or new.

The disk is simulated from outside: the content of a file is safe once it was synced, the names in a folder once the
folder was. At a chosen step the tree is rebuilt as a disk would show it after the failure, in two ways: with the names
that were synced, and with all names of that moment (a journal may write names early) but with unsynced content gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from covis.core import files


class PowerLoss(BaseException):
    """The lights go out."""


class Disk:
    """What is safe of the tree below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.content: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        for folder, inside, names in os.walk(root):
            for name in names:
                self.save(os.stat(f"{folder}/{name}"), f"{folder}/{name}")
            self.save(os.stat(folder), folder)
            del inside

    def save(self, status: os.stat_result, path: str) -> None:
        """Notes a synced file's content, or a synced folder's names."""
        if stat.S_ISDIR(status.st_mode):
            self.names[status.st_ino] = {n: os.lstat(f"{path}/{n}").st_ino for n in os.listdir(path)}
        else:
            self.content[status.st_ino] = Path(path).read_bytes()

    def rebuild(self, target: Path, early_names: bool) -> None:
        """The tree after the failure, at `target`."""
        kinds = {}
        for folder, inside, names in os.walk(self.root):
            for name in (*inside, *names):
                status = os.lstat(f"{folder}/{name}")
                kinds[status.st_ino] = stat.S_ISDIR(status.st_mode)
        self._folder(os.stat(self.root).st_ino, str(self.root), target, early_names, kinds)

    def _folder(self, inode: int, now: str, target: Path, early: bool, kinds: dict[int, bool]) -> None:
        target.mkdir()
        present = {n: os.lstat(f"{now}/{n}").st_ino for n in os.listdir(now)} if os.path.isdir(now) else {}
        names = present if early else self.names.get(inode, {})
        for name, child in names.items():
            if kinds.get(child, child in self.names):
                self._folder(child, f"{now}/{name}", target / name, early, kinds)
            else:
                (target / name).write_bytes(self.content.get(child, b""))


@contextlib.contextmanager
def failing(root: Path, at: int, spot: Path) -> Iterator[list[int]]:
    """Counts steps on disk; before step `at` it rebuilds what is safe below `spot`, and the lights go out."""
    disk, count = Disk(root), [0]
    real = {n: getattr(os, n) for n in ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")}
    exchange = files._exchange

    def step() -> None:
        count[0] += 1
        if count[0] == at:
            for early in (False, True):
                disk.rebuild(spot / f"early-{early}", early)
            raise PowerLoss

    def watched(call: Callable) -> Callable:
        def run(*args, **options):
            step()
            return call(*args, **options)

        return run

    def fsync(handle: int) -> None:
        step()
        path = os.readlink(f"/proc/self/fd/{handle}")
        if path.startswith(str(root)):
            disk.save(os.fstat(handle), path)

    for name, call in real.items():
        setattr(os, name, watched(call) if name != "fsync" else fsync)
    files._exchange = watched(exchange)
    try:
        yield count
    finally:
        files._exchange = exchange
        for name, call in real.items():
            setattr(os, name, call)


def run(count: int, seed: int, work: Path) -> dict[str, dict[str, int]]:
    """`count` failures spread over the steps of an add and of a remove; each leaves the old map or the new one."""
    from simulated import image_set, simulated_map, store

    from covis.maps.map import Map

    made, world = simulated_map(work / "world", 5, 8)
    rng = np.random.default_rng(seed)
    xy = rng.uniform(0, 50, (4, 2))
    images = image_set(work, xy, start=500)
    more = store(work / "more", images, world.describe(xy, rng), made.model_fingerprint)
    changes = {
        "add": lambda place: Map.open(place).add(images, descriptors=more),
        "remove": lambda place: Map.open(place).remove([made.images.name(0), made.images.name(1)]),
    }
    results = {}
    for name, change in changes.items():
        place = work / "live" / "map"
        for _ in range(2):  # the first change of a process takes steps of its own
            _fresh(made.path, place)
            with failing(place, 0, work) as steps:
                change(place)
        after = names_of(Map.open(place))
        before = names_of(made)
        found = {"old": 0, "new": 0}
        points = np.unique(np.linspace(1, steps[0], min(steps[0], max(1, count // 4))).astype(int))
        for at in points.tolist():
            _fresh(made.path, place)
            spot = work / "spot"
            shutil.rmtree(spot, ignore_errors=True)
            spot.mkdir()
            with contextlib.suppress(PowerLoss), failing(place, at, spot):
                change(place)
            for rebuilt in sorted(spot.iterdir()):
                now = names_of(Map.open(rebuilt, verify=True))
                assert now in (before, after), f"{name} step {at}, {rebuilt.name}: neither the old map nor the new one"
                found["new" if now == after else "old"] += 1
                if now == before:
                    assert names_of(change(rebuilt)) == after
                    assert names_of(Map.open(rebuilt, verify=True)) == after
        results[name] = {**found, "lost": 0, "mixed": 0}
    return results


def names_of(map_) -> frozenset[str]:
    return frozenset(map_.images.name(i) for i in range(len(map_)))


def _fresh(source: Path, target: Path) -> None:
    shutil.rmtree(target.parent, ignore_errors=True)
    shutil.copytree(source, target)
