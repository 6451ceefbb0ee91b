"""What is the engine's own: bulk load that resumes, models that are remembered, errors that help."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.descriptors import DescriptorStore
from covis.search import rank

pytest.importorskip("pymilvus")

from covis.search.engines import milvus
from covis.search.engines.milvus import MilvusIndex

DIM = 16


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return tmp_path_factory.mktemp("milvus") / "engine.db"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    x = np.random.default_rng(0).standard_normal((500, DIM)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    made = DescriptorStore.create(tmp_path_factory.mktemp("store") / "s", "model-a", DIM)
    return made.append(map(str, range(300)), x[:300], model="model-a").append(
        map(str, range(300, 500)), x[300:], model="model-a"
    )


def test_a_load_that_was_interrupted_goes_on(engine, store, monkeypatch):
    monkeypatch.setattr(milvus, "_BATCH_BYTES", 4 * DIM * 60)
    index = MilvusIndex(engine, "load", DIM, "model-a")
    upsert, sent = index.client.upsert, []

    def failing(collection, rows):
        if len(sent) == 4:
            raise KeyboardInterrupt
        sent.append(len(rows))
        return upsert(collection, rows)

    monkeypatch.setattr(index.client, "upsert", failing)
    with pytest.raises(KeyboardInterrupt):
        index.load(store)
    assert len(index) == 240
    monkeypatch.setattr(index.client, "upsert", lambda c, rows: sent.append(len(rows)) or upsert(c, rows))
    index.load(store, np.column_stack([np.arange(500.0), np.zeros(500)]))
    assert sum(sent) == 500
    assert index.ids.tolist() == list(range(500))
    queries = np.asarray(store)[::50]
    assert (index.search(queries, 4).ids == rank(queries, store, 4).ids).all()
    index.close()


def test_the_collection_remembers_its_model_and_dimension(engine):
    MilvusIndex(engine, "kept", DIM, "model-a").close()
    again = MilvusIndex(engine, "kept", DIM)
    assert again.model == "model-a"
    again.close()
    with pytest.raises(InputError, match=r"model-a.*model-b"):
        MilvusIndex(engine, "kept", DIM, "model-b")
    with pytest.raises(InputError, match="not 8"):
        MilvusIndex(engine, "kept", 8)


def test_an_address_where_nobody_answers():
    with pytest.raises(InputError, match="cannot be reached"):
        MilvusIndex("http://127.0.0.1:9", "x", DIM)


def test_more_results_than_the_engine_gives(engine):
    index = MilvusIndex(engine, "limit", DIM)
    with pytest.raises(InputError, match="at most 16384"):
        index.search(np.eye(DIM, dtype=np.float32)[:1], 20_000)
    index.close()
