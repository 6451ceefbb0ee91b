"""What every registered label rule owes its users; a new entry is picked up automatically."""

import dataclasses
import json

import numpy as np
import pytest

from covis import datasets, town
from covis.core.errors import InputError
from covis.core.settings import build_value, describe
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels import RULES, FovOverlap, LabelRule
from covis.labels.clouds import PointCloud
from covis.labels.exchange import Labels, save_labels
from covis.labels.tracks import Tracks

EVERY = pytest.mark.parametrize("name", list(RULES))


@pytest.fixture(scope="module")
def images(hamlet):
    """A dozen images of the town in two groups, with 6DOF poses, intrinsics and all else that a rule may need."""
    database = town.load(hamlet, "test").database
    return database.subset(np.arange(0, len(database), max(1, len(database) // 12))[:12])


@pytest.fixture(scope="module")
def sides(images):
    return images.subset(np.arange(5)), images


@pytest.fixture(scope="module")
def rules(images, sides, hamlet, tmp_path_factory):
    """Name → a rule with what it needs beside its defaults; a rule with defaults for all needs no entry."""
    from scipy.sparse import csr_matrix

    folder = tmp_path_factory.mktemp("graphs") / "whole"
    save_labels(Labels(FovOverlap()(images, images), images, images), folder)
    cloud = PointCloud(town.point_cloud("test", town.TownConfig.small(), spacing_m=2.0))
    seen = csr_matrix(np.random.default_rng(0).random((len(images), 40)) < 0.3, dtype=np.int8)
    needs = {
        "surface": {"cloud": cloud},
        "tracks": {"tracks": Tracks(images.names, seen)},
        "graph": {"path": str(folder)},
    }
    return {name: RULES[name](**needs.get(name, {})) for name in RULES}


@EVERY
def test_is_a_frozen_value_that_a_recipe_can_state(name, rules):
    rule = rules[name]
    assert isinstance(rule, LabelRule)
    assert RULES[name].__doc__
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(rule, dataclasses.fields(rule)[0].name, 1.0)
    if name not in ("surface", "tracks"):  # which hold arrays here; as files they are texts
        told = json.loads(json.dumps(describe(rule)))
        assert (
            build_value(
                RULES[name], {k: tuple(v) if isinstance(v, list) else v for k, v in told.items() if k != "type"}
            )
            == rule
        )


@EVERY
def test_one_set_is_labelled_without_its_diagonal_and_facts_survive_the_disk(name, rules, images, tmp_path):
    counted = []
    graph = rules[name](images, images, counted.append)
    assert graph.shape == (len(images), len(images))
    assert graph.pairs > 0
    assert (graph.rows != graph.indices).all()
    assert sum(counted) == len(images)
    facts = rules[name].facts(images, images)
    graph.save(tmp_path / "graph")
    again = SimilarityGraph.open(tmp_path / "graph").facts
    assert facts["rule"] == RULES[name].__name__
    assert (again["one_set"], again["queries"]) == (True, images.fingerprint())
    assert {k: again.get(k) for k in json.loads(json.dumps(facts))} == json.loads(json.dumps(facts))


@EVERY
def test_two_sets_agree_with_one(name, rules, images, sides):
    if name == "graph":
        with pytest.raises(InputError, match="one set with itself"):
            rules[name](*sides)
        return
    whole, part = rules[name](images, images).to_scipy().toarray(), rules[name](*sides).to_scipy().toarray()
    np.fill_diagonal(whole[:5, :5], 1)
    np.fill_diagonal(part[:5, :5], 1)
    np.testing.assert_allclose(part, whole[:5], atol=1e-6 if name != "surface" else 0.05)


@EVERY
def test_an_estimate_costs_little_and_an_empty_set_nothing(name, rules, images):
    estimate = rules[name].estimate(images, images)
    assert estimate.pairs >= 0
    assert estimate.seconds >= 0
    none = images.subset(np.arange(0))
    assert rules[name].estimate(none, images).pairs == 0


def test_every_dataset_names_a_rule():
    for name in datasets.DATASETS:
        assert isinstance(datasets.DATASETS[name].rule, LabelRule)
    assert datasets.DATASETS["tb_places"].rule.radius_m == 3.5


def test_images_without_a_place_are_refused_or_need_none(rules, images):
    lost = ImageSet.of(images.root, images.names, type(images.poses)(np.full((12, 2), np.nan), np.full(12, np.nan)))
    for name in ("fov", "radius", "surface", "town"):
        with pytest.raises(InputError, match="no position"):
            rules[name](lost, lost)
