"""Compiled kernels: kept between starts, made anew when a source of their package changes, and without a cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import covis

CODE = """
from covis.labels import fov_similarity
from covis.labels.aligned import _similarities
print(fov_similarity([[0, 0]], [0], [[0, 25]], [0])[0])
print(sum(_similarities.stats.cache_hits.values()), sum(_similarities.stats.cache_misses.values()))
"""


@pytest.fixture
def package(tmp_path):
    """A copy of what labelling needs, without anything compiled."""
    source = Path(covis.__file__).parent
    for part in ("labels", "cli"):
        shutil.copytree(source / part, tmp_path / "covis" / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in source.glob("*.py"):
        shutil.copy(file, tmp_path / "covis" / file.name)
    return tmp_path


def run(package, **settings):
    env = {**os.environ, "PYTHONPATH": str(package), **settings}
    env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=package, env=env, capture_output=True, text=True, timeout=240, check=True
    )
    value, counts = done.stdout.split("\n")[:2]
    return float(value), tuple(map(int, counts.split()))


@pytest.mark.slow
def test_the_second_start_compiles_nothing_and_a_changed_source_everything(package):
    first, (hits, misses) = run(package)
    assert first == pytest.approx(0.27796, abs=1e-5)
    assert (hits, misses) == (0, 1)
    assert run(package) == (first, (1, 0))
    kernel = package / "covis" / "labels" / "sectors.py"
    kernel.write_text(kernel.read_text().replace("0.5 * (ra * ra * arc_a + edges) + arc_b", "ra * ra"))
    changed, (hits, _) = run(package)
    assert changed == 1.0  # numba's own cache would have answered with the old kernel
    assert hits == 0


@pytest.mark.slow
def test_where_nothing_can_be_written_it_works_all_the_same(package):
    (package / "covis" / "labels" / "__pycache__").write_text("in the way")
    blocked = package / "no-home"
    blocked.write_text("a file, not a folder")
    value, _ = run(package, HOME=str(blocked), XDG_CACHE_HOME=str(blocked / "cache"), PYTHONDONTWRITEBYTECODE="1")
    assert value == pytest.approx(0.27796, abs=1e-5)
