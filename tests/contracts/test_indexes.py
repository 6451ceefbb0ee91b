"""What every index must do: one suite over exact search, and each approximate kind.

Set COVIS_MILVUS_URI to run the engine's part against a cluster instead of the embedded one.
"""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.descriptors import DescriptorStore
from covis.search import KINDS, Circle, Index, Polygon, rank
from covis.search import index as indexes
from covis.search.kinds import EFFORTS

DIM = 32
COUNT = 3000


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def world():
    """Descriptors along a drive: neighbours in order are neighbours in space, and some are equal."""
    rng = np.random.default_rng(0)
    steps = np.repeat(rng.standard_normal((COUNT // 20, DIM)), 20, 0)
    descriptors = unit(steps + 0.4 * rng.standard_normal((COUNT, DIM)))
    descriptors[1001] = descriptors[7] = descriptors[500]
    xy = np.column_stack([np.arange(COUNT) * 2.0, 100 * np.sin(np.arange(COUNT) / 100)]) + np.array([5e5, 5e6])
    queries = unit(descriptors[::97] + 0.05 * rng.standard_normal((len(descriptors[::97]), DIM)))
    return descriptors, xy, queries


@pytest.fixture(params=["exact", *KINDS])
def make(request, monkeypatch):
    """() → an empty index of this kind; approximate ones really use their structure, however few the rows."""
    monkeypatch.setattr(indexes, "_EXACT_ROWS", 8)
    monkeypatch.setattr(indexes, "_EXACT_SHARE", 0.0)

    def one(dim=DIM, model=None):
        return Index(dim, request.param, model)

    return one


@pytest.fixture
def filled(make, world):
    index = make()
    index.add(world[0], world[1])
    assert (index.structure is None) == (index.kind == "exact")
    index.effort = EFFORTS[4]
    return index


def distances(queries, descriptors):
    return np.sqrt(((queries[:, None].astype(np.float64) - descriptors[None]) ** 2).sum(-1))


def assert_sound(ranking, queries, descriptors, ids):
    """Real ids, true distances, in order, nothing twice, padding only at the end."""
    row = {int(i): r for r, i in enumerate(ids)}
    for q in range(len(queries)):
        found, distance = ranking.row(q)
        assert len(set(found.tolist())) == len(found)
        true = distances(queries[q : q + 1], descriptors[[row[int(i)] for i in found]])[0]
        np.testing.assert_allclose(distance, true, rtol=1e-5, atol=1e-6)
        assert sorted(zip(distance.tolist(), found.tolist(), strict=True)) == list(
            zip(distance.tolist(), found.tolist(), strict=True)
        )
        assert (ranking.ids[q, len(found) :] == -1).all()
        assert np.isinf(ranking.distances[q, len(found) :]).all()


def test_finds_the_nearest_with_their_true_distances(filled, world):
    descriptors, _, queries = world
    ranking, truth = filled.search(queries, 10), rank(queries, descriptors, 10)
    assert ranking.ids.shape == (len(queries), 10)
    assert_sound(ranking, queries, descriptors, np.arange(COUNT))
    assert (ranking.distances <= truth.distances[:, -1:]).mean() > 0.95
    assert (ranking.ids[:, 0] == truth.ids[:, 0]).mean() > 0.95


def test_equal_descriptors_stand_in_the_order_of_ids(filled, world):
    ranking = filled.search(world[0][[500]], 4)
    assert ranking.ids[0, :3].tolist() == [7, 500, 1001]
    assert (ranking.distances[0, :3] == 0).all()
    assert filled.search(world[0][[500]], 2).ids[0].tolist() == [7, 500]


def test_removed_ids_are_never_found(filled, world):
    descriptors, _, queries = world
    gone = np.unique(filled.search(queries, 3).ids)
    assert filled.remove([*gone.tolist(), 10**6]) == len(gone)
    assert filled.remove(gone) == 0
    assert len(filled) == COUNT - len(gone)
    assert np.flatnonzero(filled.live).tolist() == sorted(set(range(COUNT)) - set(gone.tolist()))
    ranking = filled.search(queries, 10)
    assert not set(ranking.ids.ravel().tolist()) & set(gone.tolist())
    left = np.setdiff1d(np.arange(COUNT), gone)
    assert_sound(ranking, queries, descriptors[left], left)


@pytest.mark.parametrize(
    "area",
    [
        Circle(5e5 + 300, 5e6, 120),
        Circle(5e5 + 3000, 5e6, 5000),
        Polygon(((5e5, 5e6), (5e5 + 4000, 5e6), (5e5 + 4000, 5e6 + 90), (5e5 + 2000, 5e6 + 20), (5e5, 5e6 + 90))),
    ],
    ids=["small", "large", "concave"],
)
def test_an_area_is_kept_and_filled(filled, world, area):
    descriptors, xy, queries = world
    inside = np.flatnonzero(area.contains(xy))
    assert len(inside) > 10
    ranking, truth = filled.search(queries, 10, area=area), rank(queries, descriptors, 10, allowed=inside)
    assert area.contains(xy[ranking.ids.ravel()]).all()
    assert (ranking.ids >= 0).all()
    assert (ranking.distances <= truth.distances[:, -1:]).mean() > 0.95


def test_an_area_without_images_and_images_without_place(make, world):
    index = make()
    index.add(world[0][:50])
    assert (index.search(world[2], 3, area=Circle(0, 0, 1e9)).ids == -1).all()
    index.add(world[0][[50]], [[10.0, 20.0]])
    found = index.search(world[2], 3, area=Circle(10, 20, 1))
    assert [found.row(q)[0].tolist() for q in range(len(found))] == [[50]] * len(found)


def test_more_results_than_images(make, world):
    index = make()
    assert len(index) == 0
    assert (index.search(world[2], 5).ids == -1).all()
    index.add(world[0][:2])
    ranking = index.search(world[2], 5)
    for q in range(len(ranking)):
        assert sorted(ranking.row(q)[0].tolist()) == [0, 1]


def test_grows_from_nothing_in_small_steps(make, world):
    """Fewer rows than a structure needs, then enough, then more."""
    descriptors, xy, queries = world
    index = make()
    index.effort = EFFORTS[4]
    for start in range(0, 1400, 175):
        part = slice(start, start + 175)
        index.add(descriptors[part], xy[part])
        seen = queries[: part.stop // 97]
        truth = rank(seen, descriptors[: part.stop], 5)
        assert (index.search(seen, 5).distances <= truth.distances[:, -1:]).mean() > 0.9
    assert len(index) == 1400


def test_reads_a_store_and_keeps_to_its_model(make, world, tmp_path):
    store = DescriptorStore.create(tmp_path / "s", "model-a", DIM, "float16")
    store = store.append([f"{i}" for i in range(1200)], world[0][:1200], model="model-a")
    other = DescriptorStore.create(tmp_path / "o", "model-b", DIM).append(["x"], world[0][:1], model="model-b")
    index = make(model="model-a")
    index.add(store)
    assert (index.search(world[0][:50], 1).ids[:, 0] == rank(world[0][:50], store, 1).ids[:, 0]).mean() > 0.95
    for act in (lambda: index.add(other), lambda: index.search(other, 1)):
        with pytest.raises(InputError, match=r"model-a.*model-b"):
            act()
    assert len(index) == 1200


@pytest.mark.parametrize(
    "act",
    [
        lambda index: index.add(np.ones((1, DIM + 1), np.float32)),
        lambda index: index.add(np.zeros((1, DIM), np.float32)),
        lambda index: index.add(np.full((1, DIM), np.nan, np.float32)),
        lambda index: index.add(unit(np.ones((1, DIM))), [[1.0, 2.0, 3.0]]),
        lambda index: index.search(np.ones((1, DIM - 1), np.float32), 1),
        lambda index: index.search(np.full((1, DIM), np.nan, np.float32), 1),
        lambda index: index.search(unit(np.ones((1, DIM))), 0),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(make, world, act):
    index = make()
    index.add(world[0][:1])
    with pytest.raises(InputError):
        act(index)
    assert len(index) == 1
