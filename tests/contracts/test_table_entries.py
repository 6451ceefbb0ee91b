"""What every registered table owes its users; a new entry is picked up automatically."""

import pytest

from covis.datasets import DATASETS
from covis.evaluation import BENCHMARKS
from covis.experiments import TABLES
from covis.models import POOLS
from covis.report.figures import FIGURES

EVERY = pytest.mark.parametrize("name", list(TABLES))


@EVERY
def test_its_parts_exist(name):
    table = TABLES[name]()
    assert table.title
    assert table.rows
    assert table.seeds >= 1
    assert not table.figure or table.figure in FIGURES
    for row in table.rows:
        assert set(row.benchmarks) <= set(BENCHMARKS), row.name
        assert (row.recipe is None) == bool(row.model), row.name
        if row.recipe is not None:
            data = DATASETS[row.recipe.dataset]
            assert row.recipe.split in data.splits, row.name
            assert row.recipe.model.pool in POOLS, row.name


@EVERY
def test_its_rows_can_be_told_apart_and_compared(name):
    table = TABLES[name]()
    names = [row.name for row in table.rows]
    assert len(set(names)) == len(names)
    assert set(table.against) <= set(names)
    assert all(any(row.label.startswith(scene) for row in table.rows) for scene in table.mean_over)
