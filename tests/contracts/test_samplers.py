"""What every kind of batches owes its users; a new one is picked up automatically."""

import pickle
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from covis.core.artifacts import fingerprint
from covis.images import Split
from covis.losses import LOSSES
from covis.sampling import BATCHES, STRATEGIES
from layouts.worlds import world

KINDS = {
    "one set": {"one_set": True},
    "two sets": {"one_set": False},
    "groups": {"one_set": False, "groups": 3, "within_group": True, "n": 90, "m": 90},
    "one set, groups": {"one_set": True, "groups": 2, "within_group": True},
    "quantised": {"one_set": True, "quantised": True},
    "places unknown": {"one_set": False, "unknown": 5},
}
COMPOSED = ("pairs", "all_pairs")
CASES = [(name, strategy, "one set") for name in COMPOSED for strategy in sorted(STRATEGIES)]
CASES += [(name, "A", kind) for name in (*COMPOSED, "tuples") for kind in KINDS if kind != "one set"]


def make(name, strategy="A", kind="one set", seed=1):
    w = world(seed=3, **KINDS[kind])
    batches = BATCHES[name]()
    batches = replace(batches, size=12) if "size" in {f.name for f in fields(batches)} else batches
    if name in COMPOSED:
        batches = replace(batches, strategy=strategy)
    loss = next(LOSSES[loss]() for loss in LOSSES if LOSSES[loss].shape == batches.losses[0])
    return w, batches.sampler(w.graph, Split(w.queries, w.database), seed, loss=loss, graphs={})


def drawn(sampler, epochs=2):
    return [sampler.batch(e, k) for e in range(epochs) for k in range(len(sampler))]


def content(batch):
    return fingerprint(*(v for v in vars(batch).values() if isinstance(v, np.ndarray)))


@pytest.mark.parametrize(("name", "strategy", "kind"), CASES, ids=str)
def test_similarities_are_those_of_the_graph_and_the_composition_holds(name, strategy, kind):
    w, sampler = make(name, strategy, kind)
    for batch in drawn(sampler):
        queries, database = batch.images()
        q, d = (
            x.ravel()
            for x in np.broadcast_arrays(queries.reshape(len(queries), -1), database.reshape(len(queries), -1))
        )
        assert np.array_equal(batch.psi.ravel(), w.dense[q, d])
        assert w.queries.poses.known[q].all()
        assert w.database.poses.known[d].all()
        if w.one_set:
            assert (q != d).all()
        if w.graph.facts["within_group"]:
            names = [np.array(x.group_names)[x.group] for x in (w.queries, w.database)]
            assert (names[0][q] == names[1][d]).all()
        if name == "tuples":
            assert (batch.psi[:, 0] >= 0.5).all()
            assert (batch.psi[:, 1:] < 0.5).all()
            continue
        assert batch.weight.sum() == pytest.approx(len(batch), rel=1e-5)
        bands = STRATEGIES[strategy].bands
        weight = np.bincount(STRATEGIES[strategy].band_of(batch.psi), batch.weight, minlength=len(bands))
        for have, wanted in zip(weight, bands, strict=True):
            exact = float(wanted.share) * len(batch)
            assert abs(have - exact) < (1 if (batch.weight == 1).all() else 1e-3 * exact)


@pytest.mark.parametrize("name", list(BATCHES))
def test_batches_depend_on_nothing_but_epoch_and_index(name):
    _, one = make(name)
    first = [content(b) for b in drawn(one)]
    assert first == [content(b) for b in drawn(pickle.loads(pickle.dumps(one)))]
    assert len(set(first[: len(one)])) > len(one) / 2
    assert [content(one.batch(1, k)) for k in reversed(range(len(one)))][::-1] == first[len(one) :]


@pytest.mark.parametrize("name", [*COMPOSED, "tuples", "places"])
def test_another_seed_gives_other_batches(name):
    first, other = ({content(b) for b in drawn(make(name, seed=seed)[1])} for seed in (1, 2))
    assert len(first | other) > 1.5 * len(first)


def test_another_process_draws_the_same():
    code = (
        "import sys; sys.path[:0] = ['contracts', '.']; import test_samplers as t\n"
        "print(*(t.content(t.make(name)[1].batch(5, 0)) for name in t.BATCHES), end='')"
    )
    tests = Path(__file__).parents[1]
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=tests, capture_output=True, text=True, check=True, timeout=280
    )
    assert out.stdout.split() == [content(make(name)[1].batch(5, 0)) for name in BATCHES]
