"""A protocol as a value: what may match, what is taken out of a ranking, what moves the fingerprint."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.evaluation.benchmark import BENCHMARKS, Benchmark, load_benchmark
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import Poses
from covis.ranking import Ranking


def images(n, group="", columns=None, prefix="i"):
    xy = np.column_stack([np.arange(n) * 10.0, np.zeros(n)])
    return ImageSet.of(
        "/nowhere", [f"{prefix}{i}.jpg" for i in range(n)], Poses(xy, np.zeros(n)), group, columns=columns
    )


def truth(shape, pairs, psi=1.0):
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    return SimilarityGraph.from_edges(rows, columns, np.full(len(rows), psi), shape)


def benchmark(queries, database, pairs, **options):
    return Benchmark("toy", queries, database, truth((len(queries), len(database)), pairs), "by hand", **options)


def test_group_codes_agree_whatever_order_the_sides_name_them_in():
    toy = benchmark(images(2, ["b", "c"]), images(3, ["c", "a", "b"], prefix="m"), [(0, 2)], groups="same")
    mine, theirs = toy.group_codes
    assert mine[0] == theirs[2]
    assert mine[1] == theirs[0]
    assert mine[0] != theirs[1]


@pytest.mark.parametrize(
    ("groups", "left"), [("any", [[2, 0, 1, -1], [1, 2, 0, -1]]), ("same", [[0, -1] * 1 + [-1, -1], [1, 2, -1, -1]])]
)
def test_settling_takes_out_what_the_groups_forbid(groups, left):
    toy = benchmark(images(2, ["x", "y"]), images(3, ["x", "y", "y"], prefix="m"), [(0, 0)], groups=groups, ks=(1, 4))
    assert toy.settle(np.array([[2, 0, 1], [1, 2, 0]]))[0].tolist() == left


def test_other_groups_alone_and_relevance_follows():
    walk = images(4, ["x", "x", "y", "y"])
    toy = benchmark(walk, walk, [(0, 1), (0, 2), (1, 0), (3, 2)], groups="other", ks=(1, 2))
    assert toy.relevance.row(0)[0].tolist() == [2]
    assert toy.positives.pairs == 1
    assert toy.settle([[0, 1, 2, 3]] * 4)[0].tolist() == [[2, 3], [2, 3], [0, 1], [0, 1]]


def test_a_query_never_matches_itself_in_one_set():
    walk = images(3)
    toy = benchmark(walk, walk, [(0, 1)], ks=(1, 2))
    assert toy.settle([[0, 1, 2], [1, 0, 2], [2, 2, 0]])[0].tolist() == [[1, 2], [0, 2], [0, -1]]


def test_folding_keeps_the_best_cutout_and_apart_drops_equal_stamps():
    stamps = np.array([1, 1, 2, 2])
    database = images(4, columns={"panorama": np.array(["p", "p", "q", "q"]), "when": stamps}, prefix="m")
    queries = images(1, columns={"when": np.array([2])})
    folded = benchmark(queries, database, [(0, 0)], fold="panorama", ks=(1, 4))
    assert folded.settle([[1, 0, 3, 2]])[0].tolist() == [[1, 3, -1, -1]]
    apart = benchmark(queries, database, [(0, 0), (0, 2)], apart="when", ks=(1, 4))
    assert apart.settle([[3, 1, 2, 0]])[0].tolist() == [[1, 0, -1, -1]]
    assert apart.positives.row(0)[0].tolist() == [0]


def test_a_forbidden_cutout_does_not_shadow_an_allowed_one():
    columns = {"panorama": np.array(["p", "p"]), "when": np.array([1, 2])}
    queries = images(1, columns={"when": np.array([1])})
    toy = benchmark(queries, images(2, columns=columns, prefix="m"), [(0, 1)], fold="panorama", apart="when", ks=(1,))
    assert toy.settle([[0, 1]])[0].tolist() == [[1]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["any", "same", "other"]), st.booleans())
def test_settling_equals_a_loop_and_doing_it_twice_changes_nothing(seed, groups, fold):
    rng = np.random.default_rng(seed)
    queries = images(5, rng.choice(["a", "b"], 5))
    database = images(8, rng.choice(["a", "b"], 8), {"panorama": rng.integers(0, 4, 8)}, prefix="m")
    toy = benchmark(queries, database, [], groups=groups, fold="panorama" if fold else "", ks=(3, 5))
    ids = rng.integers(-1, 8, (5, 7))
    distances = rng.random((5, 7)).astype(np.float32)
    settled, far = toy.settle(Ranking(ids, distances))
    names = (np.array(queries.group_names)[queries.group], np.array(database.group_names)[database.group])
    for q in range(5):
        seen, kept = set(), []
        for i, d in zip(ids[q], distances[q], strict=True):
            key = database.columns["panorama"][i] if fold else i
            same = names[0][q] == names[1][i]
            if i < 0 or key in seen or (groups == "same" and not same) or (groups == "other" and same):
                continue
            seen.add(key)
            kept.append((int(i), float(d)))
        expected = [i for i, _ in kept[:5]] + [-1] * (5 - len(kept[:5]))
        assert settled[q].tolist() == expected
        assert far[q][: len(kept[:5])].tolist() == [d for _, d in kept[:5]]
    again, _ = toy.settle(Ranking(settled, far))
    assert np.array_equal(again, settled)


def test_the_fingerprint_moves_with_what_decides_a_figure_and_with_nothing_else():
    walk = images(4, ["x", "x", "y", "y"])
    toy = benchmark(walk, walk, [(0, 2)], groups="other")
    assert replace(toy, name="another", notes=("n",)).fingerprint == toy.fingerprint
    others = [
        replace(toy, groups="any"),
        replace(toy, denominator="all"),
        replace(toy, relevance=truth((4, 4), [(0, 3)])),
        replace(toy, similarity=truth((4, 4), [(0, 3)], psi=0.4)),
        replace(toy, search_factor=2),
        benchmark(images(4, ["x", "x", "y", "z"]), walk, [(0, 2)], groups="other"),
    ]
    assert len({b.fingerprint for b in [toy, *others]}) == 7


def test_the_fingerprint_does_not_hang_on_the_last_digit_of_a_grade():
    """Another processor may round ψ otherwise; the rule that made it and the relevant pairs are the same."""
    walk, rule = images(3), {"measure": "overlap", "radius_m": 50.0}
    prints = set()
    for psi in (0.7, np.nextafter(np.float32(0.7), np.float32(1))):
        graded = SimilarityGraph.from_edges([0, 1], [1, 0], [psi, psi], (3, 3), rule)
        prints.add(Benchmark("toy", walk, walk, graded, "shared view", graded).fingerprint)
    assert len(prints) == 1
    other = SimilarityGraph.from_edges([0, 1], [1, 0], [0.7, 0.7], (3, 3), {**rule, "radius_m": 25.0})
    assert Benchmark("toy", walk, walk, other, "shared view", other).fingerprint not in prints


def test_leaving_images_out_renumbers_the_truth_and_says_so():
    queries, database = images(3), images(4, prefix="m")
    toy = benchmark(queries, database, [(0, 0), (1, 3), (2, 1)], breakdown={"condition": np.array(["a", "b", "b"])})
    less = toy.without(np.array([True, False, False]), np.array([False, True, False, False]), "unreadable")
    assert [less.queries.name(i) for i in range(2)] == ["i1.jpg", "i2.jpg"]
    assert less.positives.row(0)[0].tolist() == [2]
    assert less.positives.row(1)[0].tolist() == []
    assert less.breakdown["condition"].tolist() == ["b", "b"]
    assert "2 images left out: unreadable" in less.notes
    assert less.fingerprint != toy.fingerprint
    assert toy.without(np.zeros(3, bool), np.zeros(4, bool), "nothing") is toy


def test_leaving_images_out_of_one_set_keeps_it_one():
    walk = images(3)
    less = benchmark(walk, walk, [(0, 2), (2, 0)]).without(np.array([0, 1, 0], bool), np.zeros(3, bool), "x")
    assert less.one_set
    assert less.positives.row(0)[0].tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fold": "panorama"}, "needs the column 'panorama'"),
        ({"apart": "when"}, "needs the column 'when'"),
        ({"relevance": truth((1, 1), [])}, r"relevance is \(1, 1\)"),
    ],
)
def test_a_protocol_that_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        replace(benchmark(images(2), images(2, prefix="m"), []), **options)


def test_an_empty_side_is_refused():
    with pytest.raises(InputError, match="0 queries and 2 map images"):
        benchmark(images(2).subset(np.zeros(2, bool)), images(2), [])


def test_a_ranking_beyond_the_map_is_refused():
    with pytest.raises(InputError, match="names map image 9"):
        benchmark(images(1), images(2, prefix="m"), [(0, 0)]).settle([[9]])


def test_hidden_truth_cannot_be_scored():
    with pytest.raises(InputError, match="submission"):
        _ = Benchmark("hidden", images(1), images(1, prefix="m"), None, "hidden", submission="msls").positives


def test_an_unknown_benchmark_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'msls_val'"):
        load_benchmark("mlsl_val")
    assert "table" in BENCHMARKS
