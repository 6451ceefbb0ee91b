"""What every sampler and strategy owes its users; a new one is picked up automatically."""

import pickle
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import covis.sampling
from covis.core.artifacts import fingerprint
from covis.images import Split
from covis.losses import LOSSES
from covis.sampling import BATCHES, STRATEGIES, PairBatch, TupleBatch
from layouts.worlds import world

SAMPLERS = [name for name in covis.sampling.__all__ if name.endswith("Sampler") and name != "Sampler"]
KINDS = {
    "one set": {"one_set": True},
    "two sets": {"one_set": False},
    "groups": {"one_set": False, "groups": 3, "within_group": True, "n": 90, "m": 90},
    "one set, groups": {"one_set": True, "groups": 2, "within_group": True},
    "quantised": {"one_set": True, "quantised": True},
    "places unknown": {"one_set": False, "unknown": 5},
}
CASES = [(s, n, k) for s in SAMPLERS for n in sorted(STRATEGIES) for k in KINDS if "Tuple" not in s or n == "A"]
EVERY = pytest.mark.parametrize(("sampler", "strategy", "kind"), CASES, ids=str)


def make(sampler, strategy, kind, seed=1, **more):
    w = world(seed=3, **KINDS[kind])
    options = {"graph": w.graph, "batch_size": 12, "seed": seed, "queries": w.queries, "database": w.database, **more}
    if "Tuple" not in sampler:
        options["strategy"] = strategy
    return w, getattr(covis.sampling, sampler)(**options)


def batches(sampler, epochs=2):
    return [sampler.batch(e, k) for e in range(epochs) for k in range(len(sampler))]


def pairs(batch):
    """All (query, map image, ψ) of a batch."""
    if isinstance(batch, PairBatch):
        return batch.queries, batch.database, batch.psi
    partners = np.column_stack([batch.positives, batch.negatives])
    return np.repeat(batch.queries, partners.shape[1]), partners.ravel(), batch.psi.ravel()


def content(batch):
    return fingerprint(*(v for v in vars(batch).values() if isinstance(v, np.ndarray)))


@EVERY
def test_similarities_are_those_of_the_graph_and_no_image_meets_itself(sampler, strategy, kind):
    w, s = make(sampler, strategy, kind)
    for batch in batches(s):
        q, d, psi = pairs(batch)
        assert np.array_equal(psi, w.dense[q, d])
        assert w.queries.poses.known[q].all()
        assert w.database.poses.known[d].all()
        if w.one_set:
            assert (q != d).all()
        if w.graph.facts["within_group"]:
            names = [np.array(x.group_names)[x.group] for x in (w.queries, w.database)]
            assert (names[0][q] == names[1][d]).all()


@EVERY
def test_every_batch_holds_the_composition(sampler, strategy, kind):
    _, s = make(sampler, strategy, kind)
    for batch in batches(s):
        if isinstance(batch, TupleBatch):
            assert (batch.psi[:, 0] >= 0.5).all()
            assert (batch.psi[:, 1:] < 0.5).all()
            continue
        assert batch.weight.sum() == pytest.approx(len(batch), rel=1e-5)
        band = STRATEGIES[strategy].band_of(batch.psi)
        weight = np.bincount(band, batch.weight, minlength=len(STRATEGIES[strategy].bands))
        for have, wanted in zip(weight, STRATEGIES[strategy].bands, strict=True):
            exact = float(wanted.share) * len(batch)
            assert abs(have - exact) < (1 if (batch.weight == 1).all() else 1e-3 * exact)


@EVERY
def test_same_seed_same_batches_other_seed_other_batches(sampler, strategy, kind):
    _, one = make(sampler, strategy, kind)
    _, again = make(sampler, strategy, kind)
    _, other = make(sampler, strategy, kind, seed=2)
    first = [content(b) for b in batches(one)]
    assert first == [content(b) for b in batches(again)]
    assert first == [content(b) for b in batches(pickle.loads(pickle.dumps(one)))]
    assert len({*first, *(content(b) for b in batches(other))}) > 1.5 * len(first)
    assert [content(b) for b in reversed([one.batch(1, k) for k in reversed(range(len(one)))])] == first[len(one) :]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_another_process_draws_the_same(sampler):
    _, s = make(sampler, "A", "one set")
    code = (
        "import sys; sys.path[:0] = ['contracts', '.']; import test_samplers as t\n"
        f"print(t.content(t.make({sampler!r}, 'A', 'one set')[1].batch(5, 1)), end='')"
    )
    tests = Path(__file__).parents[1]
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=tests, capture_output=True, text=True, check=True, timeout=280
    )
    assert out.stdout == content(s.batch(5, 1))


@pytest.mark.parametrize("name", list(BATCHES))
def test_every_kind_of_batches_makes_a_sampler_that_the_seed_decides(name):
    """The contract of what is registered, whatever a batch is made of."""
    w = world(seed=3, n=120, extent_m=60.0)
    kind = BATCHES[name]()
    sizes = {"size": 8, "least": 2}.keys() & {f.name for f in fields(kind)}
    kind = replace(kind, **{field: {"size": 8, "least": 2}[field] for field in sizes})
    loss = next(LOSSES[loss]() for loss in LOSSES if LOSSES[loss].shape in kind.losses)
    split = Split(w.queries, w.database)
    one, again = (kind.sampler(w.graph, split, 1, loss=loss, graphs={}) for _ in range(2))
    assert len(one) > 0
    drawn = [content(one.batch(0, k)) for k in range(len(one))]
    assert drawn == [content(again.batch(0, k)) for k in range(len(again))]
    assert len(set(drawn)) > len(drawn) / 2
