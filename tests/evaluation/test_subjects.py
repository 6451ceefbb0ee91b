"""Which evaluations are seeds of one configuration, and what they are called."""

import pytest
from toy_benchmarks import descriptors, drive

from covis.evaluation.compare import compare
from covis.evaluation.configurations import grouped
from covis.evaluation.render import comparison_text, seeds
from covis.evaluation.retrieval import evaluate_descriptors

CL, GCL = (
    {"loss": {"type": name, "margin": 0.5}, "dataset": "town"} for name in ("Contrastive", "GeneralizedContrastive")
)


@pytest.fixture(scope="module")
def benchmark():
    return drive(queries=60, images=120)


@pytest.fixture
def scored(benchmark):
    def make(row, seed, recipe, **subject):
        facts = {"label": f"seed-{seed}", "fingerprint": f"{row}{seed}", "folder": f"/x/{row}/seed-{seed}/model"}
        facts |= {"recipe": recipe, "seed": seed, "whitening": None, **subject}
        return evaluate_descriptors(*descriptors(benchmark, 0.5 + seed, seed), benchmark, facts)

    return make


def test_two_losses_are_two_models_whatever_their_folders_are_called(scored):
    groups = grouped([scored("CL", 0, CL), scored("GCL", 0, GCL)])
    assert {name: len(group) for name, group in groups.items()} == {"CL": 1, "GCL": 1}


def test_seeds_of_one_configuration_are_averaged(scored):
    found = [scored("CL", 0, CL), scored("GCL", 0, GCL), scored("CL", 1, CL), scored("GCL", 1, GCL)]
    groups = grouped(found)
    assert {name: seeds(group) for name, group in groups.items()} == {"CL": "0, 1", "GCL": "0, 1"}


def test_namesakes_are_told_apart_by_what_differs(scored):
    groups = grouped([scored("same", 0, CL), scored("same", 0, GCL, fingerprint="other")])
    assert list(groups) == ["same (loss Contrastive)", "same (loss GeneralizedContrastive)"]


def test_variants_of_a_model_are_not_seeds_of_it(scored):
    plain = scored("CL", 0, CL)
    small = scored("CL", 0, CL, label="seed-0, whitened 8 (map)", whitening={"dim": 8, "fit": "map", "rank": 12})
    other = scored("CL", 1, CL, label="seed-1, whitened 8 (map)", whitening={"dim": 8, "fit": "map", "rank": 13})
    assert {name: len(group) for name, group in grouped([plain, small, other]).items()} == {
        "CL": 1, "CL, whitened 8 (map)": 2
    }  # fmt: skip


def test_a_model_without_a_recipe_is_its_own_configuration(scored):
    groups = grouped([scored("a", 0, None), scored("a", 1, None)])
    assert [len(group) for group in groups.values()] == [1, 1]
    assert len(set(groups)) == 2


def test_the_same_evaluation_given_twice_counts_once(scored):
    one = scored("CL", 0, CL)
    assert [len(group) for group in grouped([one, one]).values()] == [1]


def test_a_comparison_is_of_methods_and_names_them_by_their_folder(scored):
    found = [scored(row, seed, recipe) for row, recipe in (("CL", CL), ("GCL", GCL)) for seed in range(3)]
    [entry] = compare(found)["comparisons"]
    assert [(row["label"], row["seeds"]) for row in entry["rows"]] == [("CL", [0, 1, 2]), ("GCL", [0, 1, 2])]
    assert "recipe.loss.type" in entry["differences"]
    assert entry["detectable"] > 0
    assert "power:" in comparison_text({"comparisons": [entry], "alone": []})


def test_two_runs_of_one_recipe_and_seed_are_no_two_methods(scored):
    """The same recipe and seed with another number of threads gives another network."""
    result = compare([scored("CL", 0, CL), scored("CL", 0, CL, fingerprint="two threads")])
    [row] = result["comparisons"][0]["rows"]
    assert len(row["seeds"]) == 2
    assert not row["against_first"]
    assert "networks of one method" in comparison_text(result)
