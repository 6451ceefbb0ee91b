"""Whole sets: every rule against a loop over all pairs, symmetry, groups, facts, refusal of bad input."""

import numpy as np
import pytest
from label_sets import all_pairs, image_set, random_set

from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.labels import FovOverlap, GraphFile, Radius, fov_similarity
from covis.labels.exchange import Labels, save_labels
from covis.poses import angle_between


def expected_fov(rule, queries, database):
    """ψ of all pairs by the aligned function, gates and weights applied the slow way."""
    i, j = all_pairs(queries, database)
    a, b = queries.poses, database.poses
    psi = fov_similarity(
        a.xy[i], a.heading[i], b.xy[j], b.heading[j],
        radius_m=rule.radius_m, fov_deg=rule.fov_deg, measure=rule.measure,
    )  # fmt: skip
    turn = angle_between(a.heading[i], b.heading[j])
    if rule.facing:
        psi = np.where(np.isnan(turn), psi, psi * np.minimum(1, 1 + np.cos(np.radians(turn))))
    if rule.max_angle_deg is not None:
        psi[turn > rule.max_angle_deg] = 0
    if rule.within_group:
        psi[np.array(queries.group_names)[queries.group[i]] != np.array(database.group_names)[database.group[j]]] = 0
    psi[psi < rule.zero_below] = 0
    return psi.reshape(len(queries), len(database))


@pytest.mark.parametrize("unknown", [0.0, 0.3])
@pytest.mark.parametrize(
    "rule",
    [
        FovOverlap(),
        FovOverlap(radius_m=(30.0, 60.0), fov_deg=(120.0, 250.0), measure="iou"),
        FovOverlap(fov_deg=360.0, radius_m=20.0),
        FovOverlap(max_angle_deg=60.0, facing=True),
        FovOverlap(within_group=True, zero_below=0.1),
        FovOverlap(radius_m=900.0),
    ],
    ids=str,
)
def test_graph_equals_all_pairs(rule, unknown):
    queries = random_set(150, 500, seed=1, unknown=unknown, groups=3, origin=5e6)
    database = random_set(200, 500, seed=2, unknown=unknown, groups=4, origin=5e6)
    graph = rule(queries, database)
    expected = expected_fov(rule, queries, database)
    np.testing.assert_allclose(graph.to_scipy().toarray(), expected, rtol=0, atol=1e-7)
    assert graph.pairs == (expected > 0).sum()
    assert all((np.diff(graph.row(i)[0]) > 0).all() for i in range(len(queries)))


@pytest.mark.parametrize("max_angle_deg", [None, 40.0])
@pytest.mark.parametrize("within_group", [False, True])
def test_radius_equals_all_pairs(max_angle_deg, within_group):
    queries, database = (random_set(n, 300, seed=n, unknown=0.2, groups=3) for n in (150, 200))
    i, j = all_pairs(queries, database)
    near = np.hypot(*(queries.poses.xy[i] - database.poses.xy[j]).T) <= 25.0
    if max_angle_deg is not None:
        near &= ~(angle_between(queries.poses.heading[i], database.poses.heading[j]) > max_angle_deg)
    if within_group:
        near &= queries.group[i] == database.group[j]
    graph = Radius(25.0, max_angle_deg, within_group)(queries, database)
    np.testing.assert_array_equal(graph.to_scipy().toarray().ravel(), near.astype(np.float32))


def test_radius_and_gate_include_their_limits():
    queries = image_set([[0.0, 0.0]], [0.0])
    database = image_set([[25.0, 0.0], [25.0 + 1e-9, 0.0], [0.0, 25.0], [15.0, 20.0]], [40.0, 0.0, 40.001, 320.0])
    assert Radius(25.0, 40.0)(queries, database).row(0)[0].tolist() == [0, 3]


@pytest.mark.parametrize("rule", [FovOverlap(), FovOverlap(within_group=True, measure="iou"), Radius(40.0)], ids=str)
def test_one_set_is_symmetric_without_its_diagonal_and_equal_to_two_sets(rule):
    images, twin = (random_set(200, 400, seed=4, unknown=0.1, groups=3) for _ in range(2))
    graph = rule(images, images)
    one, two = graph.to_scipy().toarray(), rule(images, twin).to_scipy().toarray()
    assert (np.diag(two) == 1).all()
    np.fill_diagonal(two, 0)
    np.testing.assert_array_equal(one, one.T)
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-7)
    assert graph.facts["one_set"] is True
    assert all((np.diff(graph.row(i)[0]) > 0).all() for i in range(200))


def test_places_that_are_far_apart_do_not_meet_through_the_grid():
    xy = np.concatenate([np.full((5, 2), k * 1e7) + np.arange(5)[:, None] for k in range(9)])
    images = image_set(xy, np.zeros(len(xy)))
    graph = Radius(10.0)(images, images)
    assert graph.pairs == 9 * 5 * 4
    assert (graph.rows // 5 == graph.indices // 5).all()


def test_all_images_at_one_place():
    images = image_set(np.full((60, 2), 7.0), np.full(60, 30.0))
    graph = FovOverlap()(images, images)
    assert graph.pairs == 60 * 59
    assert (graph.psi == 1).all()


def test_an_exponent_raises_every_overlap():
    queries, database = random_set(40, 100.0, 0), random_set(60, 100.0, 1)
    plain, squared = FovOverlap()(queries, database), FovOverlap(exponent=2.0)(queries, database)
    assert squared.psi == pytest.approx(plain.psi**2, rel=1e-6)
    assert "exponent" not in plain.facts
    assert squared.facts["exponent"] == 2.0
    assert FovOverlap(exponent=60.0)(queries, database).pairs == plain.pairs  # tiny, but still no pairs of nothing
    with pytest.raises(InputError, match="exponent"):
        FovOverlap(exponent=0.0)


def test_facing_cameras_lose_their_overlap_and_the_rest_stays():
    queries = image_set([[0, 0], [0, 0], [0, 0]], [0, 0, 0])
    database = image_set([[0, 63], [0, 0], [10, 0]], [180, 40, 90])
    plain, facing = FovOverlap()(queries, database), FovOverlap(facing=True)(queries, database)
    assert plain.lookup(0, 0) == pytest.approx(0.82, abs=0.005)
    assert facing.lookup(0, 0) == 0
    assert facing.lookup([1, 2], [1, 2]).tolist() == plain.lookup([1, 2], [1, 2]).tolist()


def test_bands_survive_quantising_and_the_facts_survive_the_disk(tmp_path):
    queries, database = random_set(200, 300, seed=8), random_set(300, 300, seed=9)
    graph = FovOverlap()(queries, database)
    graph.quantised().save(tmp_path / "graph")
    again = SimilarityGraph.open(tmp_path / "graph")
    for low, high in ((0.0, 0.5), (0.5, 0.75), (0.75, 1.0)):
        np.testing.assert_array_equal(again.band(low, high).indices, graph.band(low, high).indices)
    assert again.facts["measure"] == "overlap"
    assert (again.facts["radius_m"], again.facts["fov_deg"], again.facts["zero_below"]) == (50.0, 90.0, 1e-9)
    assert again.facts["queries"] == queries.fingerprint()
    assert again.facts["database"] == database.fingerprint()
    assert isinstance(again.values, np.memmap)


def test_quaternions_of_a_garden_robot_label_as_its_headings_do():
    from covis.poses import Poses

    rng = np.random.default_rng(2)
    heading, xyz = rng.uniform(0, 360, 60), rng.uniform(0, 8, (60, 3))
    ahead = np.radians(90.0 - heading)  # yaw of a body whose x axis looks ahead, z up
    quaternions = np.stack([np.zeros(60), np.zeros(60), np.sin(ahead / 2), np.cos(ahead / 2)], 1)
    poses = Poses.from_quaternions(quaternions, xyz, order="xyzw", forward="x")
    rule = FovOverlap(radius_m=3.5, fov_deg=90.0)
    plain = image_set(xyz[:, :2], heading)
    from covis.images import ImageSet

    robot = ImageSet.of("photos", [f"{i:05d}.jpg" for i in range(60)], poses)
    one, two = rule(plain, plain).to_scipy().toarray(), rule(robot, robot).to_scipy().toarray()
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
    assert 0.1 < (one > 0).mean() < 0.9


@pytest.mark.parametrize("rule", [FovOverlap(), Radius(), FovOverlap(within_group=True)], ids=str)
@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)])
def test_an_empty_side_gives_an_empty_graph_of_the_right_shape(rule, sizes):
    queries, database = (random_set(n, 100, seed=n) for n in sizes)
    graph = rule(queries, database)
    assert (graph.shape, graph.pairs) == (sizes, 0)


@pytest.mark.parametrize("rule", [FovOverlap(), Radius()], ids=str)
def test_images_without_position_are_refused_by_count_and_name(rule):
    good, bad = random_set(4, 10, seed=1), image_set([[0, 0], [np.nan, np.nan], [np.nan, np.nan]], [0, 0, 0])
    for sides in ((good, bad), (bad, good), (bad, bad)):
        with pytest.raises(InputError, match=r"2 of 3 images have no position \(first: 00001.jpg\); leave them out"):
            rule(*sides)
    assert rule(bad.subset(bad.poses.known), good).shape == (1, 4)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda s: FovOverlap(measure="dice")(s, s), "unknown measure 'dice'"),
        (lambda s: FovOverlap(radius_m=-5.0)(s, s), "radius_m is -5.0"),
        (lambda s: FovOverlap(fov_deg=0.0)(s, s), "fov_deg is 0.0"),
        (lambda s: FovOverlap(radius_m=(1.0, 2.0))(s, s), "one set matched with itself"),
        (lambda s: FovOverlap(max_angle_deg=200.0)(s, s), "max_angle_deg is 200.0"),
        (lambda s: Radius(0.0)(s, s), "radius_m is 0.0"),
        (lambda s: Radius(float("nan"))(s, s), "radius_m is nan"),
        (lambda s: Radius(25.0, -1.0)(s, s), "max_angle_deg is -1.0"),
    ],
)
def test_bad_parameters_are_refused(make, says):
    with pytest.raises(InputError, match=says):
        make(random_set(3, 10, seed=0))


def test_a_graph_of_more_images_in_another_order_labels_those_that_are_asked_for(tmp_path):
    queries, database = random_set(30, 200, seed=1, groups=2), random_set(40, 200, seed=2, groups=2)
    graph = FovOverlap(within_group=True)(queries, database)
    save_labels(Labels(graph, queries, database), tmp_path / "g")
    rows, columns = np.array([7, 3, 29]), np.arange(39, 4, -1)
    part = GraphFile(tmp_path / "g")(queries.subset(rows), database.subset(columns))
    np.testing.assert_array_equal(part.to_scipy().toarray(), graph.to_scipy().toarray()[rows][:, columns])
    assert (part.facts["within_group"], part.facts["radius_m"]) == (True, 50.0)
    assert part.facts["queries"] == queries.subset(rows).fingerprint()
