"""What models make of pairs: planes, activation maps, overlap against poses, on two short runs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from covis import experiments
from covis.core.errors import InputError
from covis.describing.describers import open_describer
from covis.evaluation import load_benchmark
from covis.evaluation.run import evaluate_to
from covis.graph import SimilarityGraph
from covis.models import ModelConfig, PlaceModel
from covis.report import write_report
from covis.report.activations import contributions, pairs_to_show
from covis.report.differences import pca, tsne
from covis.report.figures import FIGURES
from covis.report.study import Study
from covis.report.style import save
from covis.training.recipe import configure
from covis.training.run import Resources, train


def two_clusters(n=40):
    rng = np.random.default_rng(3)
    return np.concatenate([rng.normal(size=(n, 20)), rng.normal(size=(n, 20)) + 1.5]), np.arange(2 * n) < n


def test_tsne_keeps_two_clusters_apart_and_is_repeatable():
    pytest.importorskip("sklearn", reason="draws t-SNE")
    vectors, first = two_clusters()
    plane = tsne(vectors)
    distance = cdist(plane, plane) + np.diag(np.full(len(plane), np.inf))
    assert plane.shape == (80, 2)
    assert (first[distance.argmin(1)] == first).all()
    np.testing.assert_array_equal(plane, tsne(vectors))


def test_pairs_of_one_place_are_shown_where_nothing_is_graded():
    positives = SimilarityGraph.from_edges([1, 1, 3, 4, 6, 7], [0, 5, 2, 9, 9, 3], np.ones(6), (9, 10))
    study = SimpleNamespace(benchmark=SimpleNamespace(graded=positives, positives=positives))
    assert pairs_to_show(study) == [("same place", *pair) for pair in ((1, 0), (3, 2), (4, 9), (7, 3))]


def test_pca_is_that_of_the_covariance():
    vectors, _ = two_clusters()
    values = np.linalg.eigvalsh(np.cov(vectors.T))[::-1]
    np.testing.assert_allclose(pca(vectors).var(0, ddof=1), values[:2], rtol=1e-9)
    assert pca(np.arange(5.0)[:, None]).shape == (5, 2)


@pytest.mark.parametrize("pool", ["avg", "max", "gem"])
def test_contributions_sum_to_the_cosine(pool):
    model = PlaceModel.build(ModelConfig("tiny", pool, (64, 96), "all"), 0)
    a, b = torch.randint(0, 255, (2, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        za, zb = model(model.normalise(torch.stack([a, b])))
    for shares in contributions(model, a, b):
        assert shares.shape == tuple(model.local_features(model.normalise(a[None])).shape[-2:])
        assert shares.sum() == pytest.approx(float(za @ zb), abs=1e-4)


def test_a_pooling_that_ignores_the_map_is_told():
    model = PlaceModel.build(ModelConfig("tiny", "token", (64, 64), "all"), 0)
    photo = torch.zeros(3, 64, 64, dtype=torch.uint8)
    with pytest.raises(InputError, match="token"):
        contributions(model, photo, photo)


@pytest.fixture(scope="module")
def trained(hamlet, tmp_path_factory):
    """Evaluations and runs by name, and their benchmark."""
    folder = tmp_path_factory.mktemp("runs")
    benchmark = load_benchmark("town", hamlet)
    groups, runs = {}, {}
    for name, recipe in (("CL", "town_cl"), ("GCL", "town_gcl")):
        short = configure(experiments.get(recipe), ["steps=2", "validations=0"])
        train(short, folder / name, data=hamlet, resources=Resources(0, tensorboard=False))
        runs[name] = [folder / name]
        source = open_describer(folder / name, workers=0, cache=folder / "cache")
        groups[name] = evaluate_to(source, benchmark, folder / "evals" / name)
    return groups, runs, benchmark


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["differences", "activations", "overlap", "batches"])
def test_figures_of_runs(trained, hamlet, tmp_path, name):
    groups, runs, _ = trained
    drawn = FIGURES[name].draw(Study(groups, runs, hamlet))
    save(drawn, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    pytest.importorskip("sklearn", reason="draws half of the differences")
    panels = {"differences": 4, "activations": 4 * 6, "overlap": 4, "batches": 2}  # with two colour bars for overlap
    assert len(drawn.axes) == panels[name]


@pytest.mark.slow
def test_the_report_of_runs_has_every_section(trained, hamlet, tmp_path):
    groups, runs, benchmark = trained
    write_report(tmp_path / "r.html", {"untrained": groups["CL"], **groups}, benchmark, runs=runs, data=hamlet)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for part in ("differences", "activations", "examples", "overlap", "batches"):
        assert f'<section id="{part}">' in page


@pytest.mark.slow
def test_a_name_keeps_its_colour(trained, hamlet):
    groups, runs, _ = trained
    study = Study({"untrained": groups["CL"], **groups}, runs, hamlet)
    curves = {line.get_label(): line.get_color() for line in FIGURES["recall"].draw(study).axes[0].lines}
    from matplotlib.colors import to_hex

    for axes in FIGURES["batches"].draw(study).axes:
        assert to_hex(axes.patches[0].get_facecolor()) == curves[axes.get_title()]
    assert len(set(curves.values())) == 3


def test_batches_are_those_of_runs(hamlet):
    with pytest.raises(InputError, match="run folders"):
        FIGURES["batches"].draw(Study({}, {}, hamlet))
