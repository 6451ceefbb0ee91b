"""Every dataset on a miniature of its layout: its splits are complete and can be read."""

from pathlib import Path

import pytest

from covis import datasets
from covis.core.errors import InputError
from covis.datasets import DATASETS, given_paths
from covis.datasets.doctor import check
from covis.evaluation import BENCHMARKS
from layouts.miniatures import miniatures

EVERY = [(name, split) for name in DATASETS for split in DATASETS[name].splits]


@pytest.mark.parametrize(("name", "split"), EVERY, ids=" ".join)
def test_every_split_of_its_miniature_is_read(official, name, split):
    path = official[name]
    if split in miniatures()[name].without:
        return
    queries, database = datasets.load(name, path, split)
    assert len(queries) > 0
    assert len(database) > 0
    assert all(side.path(i).is_file() for side in (queries, database) for i in range(len(side)))


def test_every_recipe_trains_on_a_split_that_its_dataset_has():
    from covis.experiments import RECIPES

    for recipe in (RECIPES[name]() for name in RECIPES):
        assert recipe.split in DATASETS[recipe.dataset].splits, recipe
        assert not recipe.validation or BENCHMARKS[recipe.validation].dataset == recipe.dataset


def test_data_is_given_by_dataset_or_as_one_path(tmp_path):
    assert given_paths(["msls=/a", "town=/b"], ["msls", "town"]) == {"msls": Path("/a"), "town": Path("/b")}
    assert given_paths(["/c"], ["town"]) == {"town": Path("/c")}
    assert given_paths(["/c"], ["town", "msls"]) == {"msls": Path("/c")}  # the town needs no path
    assert given_paths(None, ["msls"]) == {}
    with pytest.raises(InputError, match="DATASET=PATH, since several datasets are asked for: msls, pitts30k"):
        given_paths(["/c"], ["msls", "pitts30k"])
    with pytest.raises(InputError, match="unknown dataset in --data 'mlss'; did you mean 'msls'"):
        given_paths(["mlss=/a"], ["msls"])
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert given_paths([str(odd)], ["msls"]) == {"msls": odd}


@pytest.mark.parametrize("name", ["msls", "tb_places"])
def test_the_doctor_tells_the_truth(official, name, tmp_path, capsys):
    report = check(name, official[name], tmp_path, quick=True, workers=1)
    texts = [f["text"] for f in report["findings"]]
    assert len(texts) == len(set(texts))
    if name == "tb_places":  # W18 against the map W17: two groups in one frame
        assert report["splits"]["w17_w18"]["without_positive"] == 0
        assert not any("have no map image" in text for text in texts)
    else:
        assert capsys.readouterr().err.count("lacks 19 of 22 cities") == 1
        assert {"count": "test/queries", "published": 20_000, "exact": False, "found": 96} in report["published"]
        assert "test/queries: 96 images, the whole set has at least 20000" in texts
