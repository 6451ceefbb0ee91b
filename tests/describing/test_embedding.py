"""Images to descriptors: the same rows whoever computes them, whenever it was interrupted."""

import csv
import json
import os
import signal
import time
import tracemalloc

import numpy as np
import pytest
from PIL import Image

import forked
from covis.core.errors import InputError
from covis.describing.embedding import embed
from covis.describing.torch_runtime import TorchRuntime
from covis.descriptors import DescriptorStore
from covis.models import ModelConfig, PlaceModel
from covis.reading.sources import list_images

SIZE = (32, 48)


@pytest.fixture(scope="module")
def model():
    return PlaceModel.build(ModelConfig(backbone="tiny", image_size=SIZE), seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i in range(45):
        (root / f"walk {i % 2}").mkdir(exist_ok=True)
        small = rng.integers(0, 256, (5, 7, 3), np.uint8)
        Image.fromarray(small).resize((60, 40)).save(root / f"walk {i % 2}" / f"{i:03d}.jpg")
    return root


def one_by_one(model, images):
    """The plainest way: preprocess and forward, a photo at a time."""
    import torch

    with torch.no_grad():
        return np.stack([model(model.preprocess(images.path(i))[None])[0].numpy() for i in range(len(images))])


def test_rows_are_those_of_the_model_itself(model, folder, tmp_path):
    images = list_images(folder)
    expected = one_by_one(model, images)
    in_memory = embed(model, images, batch_size=7)
    store = embed(model, images, tmp_path / "s", batch_size=7, shard_rows=10, workers=2)
    assert np.abs(in_memory - expected).max() < 1e-5
    assert np.abs(np.asarray(store) - expected).max() < 1e-5
    assert [len(s) for s in store.shards] == [10, 10, 10, 10, 5]
    assert store.names.tolist() == images.names.tolist()
    assert store.model == model.fingerprint()
    assert np.abs(embed(model, images.subset([5, 2])) - expected[[5, 2]]).max() < 1e-5


def test_half_the_disk(model, folder, tmp_path):
    store = embed(model, list_images(folder), tmp_path / "s", dtype="float16")
    assert store.dtype == np.float16
    assert np.abs(np.asarray(store, np.float32) - embed(model, list_images(folder))).max() < 1e-3


def test_same_call_again_is_done_and_another_is_refused(model, folder, tmp_path, capsys):
    images = list_images(folder)
    first = embed(model, images, tmp_path / "s")
    before = (tmp_path / "s" / "shard-00000.npy").stat().st_mtime_ns
    assert embed(model, images, tmp_path / "s").fingerprint() == first.fingerprint()
    assert (tmp_path / "s" / "shard-00000.npy").stat().st_mtime_ns == before
    assert "already embedded" in capsys.readouterr().err
    other = PlaceModel.build(ModelConfig(backbone="tiny", image_size=SIZE), seed=4)
    for change in ({"model": other}, {"images": images.subset(np.arange(44))}, {"dtype": "float16"}):
        with pytest.raises(InputError, match="another embedding"):
            embed(**{"model": model, "images": images, "path": tmp_path / "s", **change})


def test_resumes_at_the_shard(model, folder, tmp_path, monkeypatch):
    """Stopped inside the third shard: the first two are not computed again, and the end is bit for bit the same."""
    images = list_images(folder)
    whole = embed(model, images, tmp_path / "whole", shard_rows=10, batch_size=4)
    describe, seen = TorchRuntime.describe, []

    def stop_later(self, batch):
        seen.append(len(batch))
        if sum(seen) > 24:
            raise KeyboardInterrupt
        return describe(self, batch)

    monkeypatch.setattr(TorchRuntime, "describe", stop_later)
    with pytest.raises(KeyboardInterrupt):
        embed(model, images, tmp_path / "s", shard_rows=10, batch_size=4)
    with pytest.raises(InputError, match="unfinished; run the same"):
        DescriptorStore.open(tmp_path / "s")
    counted = []
    monkeypatch.setattr(TorchRuntime, "describe", lambda *a: counted.append(len(a[1])) or describe(*a))
    resumed = embed(model, images, tmp_path / "s", shard_rows=10, batch_size=4)
    assert sum(counted) == 25
    assert resumed.fingerprint() == whole.fingerprint()


@pytest.mark.parametrize("file", ["shard-00001.npy", "names-00001.npy", "part-00001.json"])
def test_a_damaged_shard_of_an_interrupted_run_is_embedded_again(model, folder, tmp_path, monkeypatch, capsys, file):
    images = list_images(folder)
    whole = embed(model, images, tmp_path / "whole", shard_rows=10, batch_size=4)
    describe, seen = TorchRuntime.describe, []

    def counting(self, batch):
        seen.append(len(batch))
        if sum(seen) == 34:  # inside the fourth shard
            raise KeyboardInterrupt
        return describe(self, batch)

    monkeypatch.setattr(TorchRuntime, "describe", counting)
    with pytest.raises(KeyboardInterrupt):
        embed(model, images, tmp_path / "s", shard_rows=10, batch_size=4)
    content = bytearray((tmp_path / "s" / file).read_bytes())
    content[-5 if file.endswith("json") else -40] ^= 1  # still an array of the same shape
    (tmp_path / "s" / file).write_bytes(content)
    seen[:] = [-1000]
    resumed = embed(model, images, tmp_path / "s", shard_rows=10, batch_size=4)
    assert sum(seen) == -1000 + 10 + 15
    assert resumed.fingerprint() == whole.fingerprint()
    assert np.array_equal(np.asarray(resumed), np.asarray(whole))
    assert "1 of 5 shards of the interrupted run are damaged" in capsys.readouterr().err
    assert not list((tmp_path / "s").glob("part-*"))


def test_bad_files_are_left_out_and_listed(model, folder, tmp_path):
    root = tmp_path / "photos"
    root.mkdir()
    for i, file in enumerate(sorted(folder.rglob("*.jpg"))):
        (root / f"{i:03d}.jpg").write_bytes(file.read_bytes())
    (root / "012.jpg").write_bytes(b"")
    whole = (root / "020.jpg").read_bytes()
    (root / "020.jpg").write_bytes(whole[: len(whole) // 2])
    store = embed(model, list_images(root), tmp_path / "s", shard_rows=10)
    names = [n.decode() for n in store.names]
    assert len(store) == 43
    assert not {"012.jpg", "020.jpg"} & set(names)
    rows = list(csv.DictReader((tmp_path / "s" / "rejects.csv").open()))
    assert [r["image"] for r in rows] == ["012.jpg", "020.jpg"]
    assert rows[0]["reason"] == "empty"
    assert rows[1]["reason"] in ("truncated", "corrupt")
    assert not list((tmp_path / "s").glob("part-*"))
    assert (
        np.abs(np.asarray(store)[names.index("013.jpg")] - one_by_one(model, list_images(root).subset([13]))).max()
        < 1e-5
    )
    with pytest.raises(InputError, match=r"012.jpg.*empty"):
        embed(model, list_images(root))


def test_too_many_bad_files_stop_the_work_at_its_start(model, folder, tmp_path):
    root = tmp_path / "photos"
    root.mkdir()
    for i in range(20):
        (root / f"{i}.jpg").write_bytes(b"" if i < 4 else next(folder.rglob("*.jpg")).read_bytes())
    with pytest.raises(InputError, match="4 of 20 images"):
        embed(model, list_images(root), tmp_path / "s")
    assert not list((tmp_path / "s").glob("shard*"))


def test_a_descriptor_without_direction_is_left_out(model, folder, tmp_path, monkeypatch):
    """A network can answer zero (a black image, a dead unit): such a row never enters a store."""
    describe = TorchRuntime.describe

    def dead(self, batch):
        rows = describe(self, batch).copy()
        rows[0] = 0
        return rows

    monkeypatch.setattr(TorchRuntime, "describe", dead)
    store = embed(model, list_images(folder), tmp_path / "s", batch_size=32)
    assert len(store) == 43
    assert "no-descriptor" in (tmp_path / "s" / "rejects.csv").read_text()


def test_memory_does_not_grow_with_the_images(model, folder, tmp_path, monkeypatch):
    """Python's and numpy's share; the list of images was there before. Torch's own objects wait for the garbage collector, so that
    the network stands still. The smaller peak of two runs counts: Python's table of interned strings doubles at times.
    """
    row = np.eye(1, model.dim, dtype=np.float32)
    monkeypatch.setattr(TorchRuntime, "describe", lambda self, batch: np.repeat(row, len(batch), 0))

    def peak(count, run):
        images = list_images(folder).subset(np.arange(count) % 45)
        tracemalloc.start()
        embed(model, images, tmp_path / f"{count} {run}", workers=1, shard_rows=100, batch_size=4)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(300, 0)  # fills caches
    few, many = (min(peak(count, run) for run in (1, 2)) for count in (300, 1500))
    assert many - few < 64 * 1200, (few, many)
    assert many < 16 << 20


def covis(*arguments, **environment):
    return forked.Command(arguments, environment={**os.environ, **environment, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_command_line_killed_resumed_and_on_two_ranks(model, folder, tmp_path):
    model.save(tmp_path / "m")
    line = ["embed", tmp_path / "m", folder, "--shard-rows", 6, "--batch-size", 3, "--json", "-o"]
    victim = covis(*line, tmp_path / "killed")
    while victim.poll() is None and not (tmp_path / "killed" / "part-00001.json").exists():
        time.sleep(0.002)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    again = covis(*line, tmp_path / "killed")
    out, err = again.communicate(timeout=280)
    assert again.returncode == 0, err
    expected = json.loads(out)
    assert (expected["rows"], expected["left_out"]) == (45, 0)

    ranks = [covis(*line, tmp_path / "ranks", RANK=str(r), WORLD_SIZE="2", LOCAL_RANK=str(r)) for r in range(2)]
    for process in ranks:
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
        assert json.loads(out)["fingerprint"] == expected["fingerprint"]


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="holds no images"):
        list_images(tmp_path)
