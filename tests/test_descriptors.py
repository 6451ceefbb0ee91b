"""The store on disk: rows and names come back, one model only, nothing half written."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.descriptors import DescriptorStore
from covis.search import rank


def unit(seed, n, dim=16):
    x = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def filled(path, sizes=(5, 1, 7), dtype="float32"):
    store = DescriptorStore.create(path, "model-a", 16, dtype, {"size": [480, 640]})
    for i, n in enumerate(sizes):
        store = store.append([f"{i}/{j}.jpg" for j in range(n)], unit(i, n), model="model-a")
    return store


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_and_names_come_back(tmp_path, dtype):
    store = filled(tmp_path / "s", dtype=dtype)
    everything = np.concatenate([unit(i, n) for i, n in enumerate((5, 1, 7))]).astype(dtype)
    reopened = DescriptorStore.open(tmp_path / "s")
    assert reopened.shape == (13, 16)
    assert reopened.dtype == dtype
    assert (np.asarray(reopened) == everything).all()
    assert reopened.names[5] == b"1/0.jpg"
    assert reopened.facts["size"] == [480, 640]
    assert reopened.fingerprint() == store.fingerprint()


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_indexing_equals_an_array(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("store") / "s"
    store = filled(path, data.draw(st.lists(st.integers(1, 4), max_size=4)))
    array = np.asarray(store)
    cut = data.draw(st.slices(len(store)))
    np.testing.assert_array_equal(store[cut], array[cut])
    if len(store):
        rows = np.array(data.draw(st.lists(st.integers(0, len(store) - 1), max_size=8)), np.int64)
        np.testing.assert_array_equal(store[rows], array[rows])


def test_slices_inside_a_shard_are_views(tmp_path):
    assert isinstance(filled(tmp_path / "s")[6:9].base, np.memmap | np.ndarray)
    assert np.shares_memory(*(lambda s: (s[6:9], s.shards[2]))(filled(tmp_path / "t")))


def test_names_find_their_rows(tmp_path):
    store = filled(tmp_path / "s")
    assert store.rows(["2/6.jpg", "absent", "0/0.jpg", "zzz"]).tolist() == [12, -1, 0, -1]
    assert filled(tmp_path / "t", ()).rows(["x"]).tolist() == [-1]


def test_search_reads_a_store_like_an_array(tmp_path):
    store = filled(tmp_path / "s", (40, 3, 50), "float16")
    found, expected = rank(unit(9, 6), store, 7), rank(unit(9, 6), np.asarray(store), 7)
    assert (found.ids == expected.ids).all()
    assert (found.distances == expected.distances).all()


def test_models_do_not_mix(tmp_path):
    store = filled(tmp_path / "s")
    with pytest.raises(InputError, match=r"model-a.*model-b"):
        store.append(["x"], unit(0, 1), model="model-b")
    other = DescriptorStore.create(tmp_path / "o", "model-b", 16).append(["x"], unit(1, 1), model="model-b")
    with pytest.raises(InputError, match=r"model-a.*model-b"):
        rank(other, store, 1)


@pytest.mark.parametrize(
    ("descriptors", "message"),
    [
        (np.zeros((1, 16), np.float32), "x.jpg has norm 0"),
        (np.full((1, 16), np.nan, np.float32), "norm nan"),
        (np.ones((1, 8), np.float32), "of 16 numbers"),
        (np.ones((2, 16), np.float32), "expected 1 descriptors"),
    ],
)
def test_bad_descriptors_are_refused_and_nothing_changes(tmp_path, descriptors, message):
    store = filled(tmp_path / "s")
    with pytest.raises(InputError, match=message):
        store.append(["x.jpg"], descriptors, model="model-a")
    assert DescriptorStore.open(tmp_path / "s").fingerprint() == store.fingerprint()


def test_readers_keep_what_they_opened(tmp_path):
    before = filled(tmp_path / "s")
    before.append(["new"], unit(7, 1), model="model-a")
    assert len(before) == 13
    assert len(DescriptorStore.open(tmp_path / "s")) == 14


def test_damage_is_seen(tmp_path):
    filled(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00001.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match="SHA-256"):
        DescriptorStore.open(tmp_path / "s")
    shard.write_bytes(content[:-3])
    with pytest.raises(InputError, match="cut short"):
        DescriptorStore.open(tmp_path / "s", verify=False)


_APPENDER = """
import sys, numpy as np
from covis.descriptors import DescriptorStore
store = DescriptorStore.open(sys.argv[1], verify=False)
while True:
    n = len(store)
    store = store.append([f"{n + i}" for i in range(3)], np.eye(16, dtype=np.float32)[:3], model="m")
    print(len(store), flush=True)
"""


def test_killed_appends_lose_nothing_acknowledged_and_leave_nothing_half(tmp_path):
    DescriptorStore.create(tmp_path / "s", "m", 16)
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", _APPENDER, tmp_path / "s"], stdout=subprocess.PIPE, text=True)
        acknowledged = [int(process.stdout.readline()) for _ in range(5)][-1]
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        process.wait()
        store = DescriptorStore.open(tmp_path / "s")
        assert len(store) >= acknowledged
        assert len(store) % 3 == 0
        assert store.names.tolist() == [str(i).encode() for i in range(len(store))]
