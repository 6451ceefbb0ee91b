"""Approximate indexes: measured, tuned, bounded in memory, and the same after a round trip to disk."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.descriptors import DescriptorStore
from covis.search import KINDS, Circle, Index, build_index, open_index, rank, tuning
from covis.search import index as indexes
from covis.search import kinds as index_kinds
from covis.search.kinds import EFFORTS, choose

DIM = 48


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def drive(count, seed=0, dim=DIM):
    """Descriptors in the order of a drive: each place looks like the one before."""
    rng = np.random.default_rng(seed)
    places = np.repeat(rng.standard_normal((-(-count // 10), dim)), 10, 0)[:count]
    return unit(places + 0.5 * rng.standard_normal((count, dim)))


@pytest.fixture(scope="module")
def descriptors():
    return drive(6000)


@pytest.fixture(autouse=True)
def structures(monkeypatch):
    monkeypatch.setattr(indexes, "_EXACT_ROWS", 8)


@pytest.mark.parametrize("kind", ["exact", *KINDS])
def test_the_loss_that_is_printed_is_the_loss(descriptors, kind, capsys):
    index, measured = build_index(descriptors, kind, queries=drive(300, 1))
    found, truth = index.search(drive(300, 1), 10), rank(drive(300, 1), descriptors, 10)
    hits = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.ids.tolist(), truth.ids.tolist(), strict=True)])
    assert measured.recall == pytest.approx(hits, abs=1e-3)
    assert f"misses {100 * measured.loss:.2f} %" in capsys.readouterr().err
    assert measured.loss == 0 or kind != "exact"


@pytest.mark.parametrize("kind", list(KINDS))
def test_effort_rises_until_the_target_is_met(descriptors, kind):
    low, _ = build_index(descriptors, kind, target_recall=0.0)
    high, measured = build_index(descriptors, kind, target_recall=0.98)
    assert low.effort == EFFORTS[0]
    assert high.effort > low.effort or measured.recall >= 0.98
    assert measured.recall >= 0.98 or high.effort == EFFORTS[-1]


def test_own_descriptors_as_queries_do_not_count_themselves(descriptors):
    """Without that, a structure that finds only the query itself would already look right at rank one."""
    index, measured = build_index(descriptors, "hnsw", target_recall=2.0)
    rows = np.sort(np.random.default_rng(0).choice(len(descriptors), tuning.SAMPLE, replace=False))
    truth = rank(descriptors[rows], descriptors, 10, exclude=rows)
    found = index.search(descriptors[rows], 11)
    assert (found.ids[:, 0] == rows).mean() > 0.99
    assert tuning.found_share(tuning._without(found, rows), truth) == pytest.approx(measured.recall)


@pytest.mark.parametrize("kind", list(KINDS))
def test_memory_is_as_estimated(descriptors, kind):
    faiss = pytest.importorskip("faiss")
    index, measured = build_index(descriptors, kind)
    arrays = sum(a.nbytes for a in (index.live, index.xy, index.order))
    real = len(faiss.serialize_index(index.structure)) + arrays
    assert measured.ram_bytes == pytest.approx(real, rel=0.12)


def test_graphs_are_filled_in_random_order(descriptors):
    graph = Index(DIM, "hnsw")
    graph.add(descriptors[:2000])
    assert (np.sort(graph.order) == np.arange(2000)).all()
    assert (np.abs(np.diff(graph.order)) > 10).mean() > 0.9


@pytest.mark.parametrize("kind", ["exact", *KINDS])
def test_round_trip(descriptors, kind, tmp_path):
    store = DescriptorStore.create(tmp_path / "store", "m", DIM)
    store = store.append(map(str, range(1500)), descriptors[:1500], model="m")
    index, _ = build_index(store, kind, xy=np.arange(3000.0).reshape(-1, 2))
    index.remove([0, 3, 300])
    index.save(tmp_path / "i")
    again = open_index(tmp_path / "i", store)
    assert (again.kind, again.model) == (kind, "m")
    for area in (None, Circle(500, 500, 400)):
        before, after = index.search(descriptors[:40], 7, area=area), again.search(descriptors[:40], 7, area=area)
        assert (before.ids == after.ids).all()
        assert (before.distances == after.distances).all()
    again.add(descriptors[1600:1601])
    assert again.search(descriptors[1600:1601], 1).ids[0, 0] == 1500
    with pytest.raises(InputError, match="give its store"):
        open_index(tmp_path / "i", descriptors[:10])


def test_an_empty_index_round_trips(tmp_path):
    Index(DIM).save(tmp_path / "i")
    assert len(open_index(tmp_path / "i", np.zeros((0, DIM), np.float32))) == 0


def test_the_count_decides_the_kind():
    assert [choose("auto", count) for count in (1000, 10**6)] == ["exact", "hnsw"]
    assert choose("hnsw-sq8", 10) == "hnsw-sq8"
    with pytest.raises(InputError, match="did you mean 'hnsw'"):
        choose("hnws", 10)


def test_structures_fit_any_dimension():
    for dim in (7, 30):
        data = drive(1100, dim=dim)
        for kind in KINDS:
            index, measured = build_index(data, kind)
            assert index.structure is not None
            assert measured.recall > 0.5


def test_short_rows_are_filled_by_looking_everywhere(descriptors):
    """An effort too small for what an area leaves must not cost results."""
    index, _ = build_index(descriptors, "hnsw", xy=np.column_stack([np.arange(6000.0), np.zeros(6000)]))
    index.effort = 1
    area = Circle(3000, 0, 600)
    ranking = index.search(drive(20, 9), 1000, area=area)
    assert (ranking.ids >= 0).all()
    assert (np.abs(ranking.ids - 3000) <= 600).all()


@pytest.mark.parametrize(("target", "kept"), [(0.5, "hnsw"), (1.1, "exact")])
def test_an_automatic_index_that_misses_too_much_is_not_kept(descriptors, monkeypatch, target, kept):
    monkeypatch.setattr(index_kinds, "EXACT_UP_TO", 1000)
    index, measured = build_index(descriptors, "auto", target_recall=target)
    assert (index.kind, measured.kind) == (kept, kept)
