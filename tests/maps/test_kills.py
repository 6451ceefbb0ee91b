"""SIGKILL at any moment: every change that was acknowledged is there, none is there by half, and work continues."""

import multiprocessing
import shutil
import time

import numpy as np
import pytest
from kill_worker import after, photo, work
from PIL import Image
from simulated import tiny

from covis.core import artifacts
from covis.describing.embedding import embed
from covis.maps.map import Map
from covis.reading.table import read_table


def photos_and_map(tmp_path):
    """A table of 24 photos, and a map of the first eight."""
    rng = np.random.default_rng(0)
    lines = ["image,easting,northing"]
    for i in range(24):
        Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).resize((32, 32)).save(tmp_path / photo(i))
        lines.append(f"{photo(i)},{10 * i},0")
    (tmp_path / "photos.csv").write_text("\n".join(lines))
    images = read_table(tmp_path / "photos.csv")
    Map.create(tmp_path / "map", images.subset(np.arange(8)), tiny())
    return tmp_path


@pytest.fixture
def place(tmp_path):
    return photos_and_map(tmp_path)


def names_of(map_):
    return frozenset(map_.images.name(i) for i in range(len(map_)))


def drill(place, kills, timed, seed=1):
    """Kills a worker again and again; `timed` is the share killed by the clock instead of at a step on disk."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "covis.maps", "covis.reading.table", "kill_worker"])
    rng = np.random.default_rng(seed)
    images = read_table(place / "photos.csv")
    vectors = dict(zip(images.names.tolist(), embed(tiny(), images), strict=True))
    acknowledged = place / "acknowledged"
    acknowledged.touch()
    expected = [frozenset(photo(i) for i in range(8))]
    between = 0
    for _ in range(kills):
        by_clock = rng.random() < timed
        die_at = 0 if by_clock else int(rng.integers(1, 80))
        worker = context.Process(target=work, args=(place / "map", place / "photos.csv", acknowledged, die_at))
        worker.start()
        deadline = time.monotonic() + (rng.uniform(0.05, 2.0) if by_clock else 120)
        while worker.is_alive() and time.monotonic() < deadline:
            check(Map.open(place / "map"), expected)  # a reader, while the worker writes
            time.sleep(0.05)
        worker.kill()
        worker.join()
        assert worker.exitcode == -9, "the worker failed by itself"
        now = Map.open(place / "map", verify=True)
        told = [int(line) for line in acknowledged.read_text().split()]
        done = now.version - 1
        assert done in (max(told, default=0), max(told, default=0) + 1), "an acknowledged change is lost"
        between += done == max(told, default=0) + 1
        check(now, expected)
        own = np.stack([vectors[n] for n in now.images.names.tolist()])
        assert (now.search(own, 1).distances[:, 0] < 1e-5).all(), "a descriptor is not its photo's"
        with acknowledged.open("a") as handle:
            handle.write(f"{done}\n")
    assert now.version > kills // 4, "the worker hardly did anything"
    assert now.remove(sorted(names_of(now))[:1]).version == now.version + 1
    assert not leftovers(place / "map")
    return now.version, between


def leftovers(folder):
    """What a map has no use for: temporary files, replaced folders, and segments that no state names."""
    passing = [p for p in folder.rglob("*") if ".partial" in p.name or p.name.endswith((".old", "-gone"))]
    manifests = [artifacts.read_json(p) for p in (folder / "versions").glob("*/manifest.json")]
    named = {key for manifest in manifests for key in manifest["segments"]}
    return passing + [p for p in (folder / "segments").iterdir() if p.name not in named]


def check(map_, expected):
    """The photos of a state are those that its number says."""
    while len(expected) < map_.version:
        expected.append(after(len(expected) - 1, expected[-1]))
    assert names_of(map_) == expected[map_.version - 1]


@pytest.mark.slow
def test_fifteen_kills(place):
    drill(place, 15, 0.0)


@pytest.mark.drill
def test_a_kill_at_each_step_of_a_removal_and_an_addition_leaves_nothing_behind(place, tmp_path_factory):
    """The same changes on copies of one map, killed at their first step on disk, their second, and so on to their end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "covis.maps", "covis.reading.table", "kill_worker"])
    states = [names_of(Map.open(place / "map"))]
    states += [after(0, states[0])]
    states += [after(1, states[1])]
    assert len(states[1]) < len(states[0]) < len(states[2])
    steps, acknowledged = 0, ""
    while acknowledged.split() != ["1", "2"]:
        steps += 1
        copy = tmp_path_factory.mktemp("copy")
        shutil.copytree(place / "map", copy / "map")
        (copy / "acknowledged").touch()
        worker = context.Process(target=work, args=(copy / "map", place / "photos.csv", copy / "acknowledged", steps))
        worker.start()
        worker.join(120)
        assert worker.exitcode == -9, "the worker failed by itself"
        now = Map.open(copy / "map", verify=True)
        assert names_of(now) in states
        assert not leftovers(now.remove(sorted(names_of(now))[:1]).path), f"killed at step {steps}"
        acknowledged = (copy / "acknowledged").read_text()
    assert steps > 40, "hardly a step was seen"
