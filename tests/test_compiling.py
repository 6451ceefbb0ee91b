"""Compiled kernels: kept between starts, made anew when a source of their package changes, and without a cache."""

import os
import subprocess
import sys

import pytest

INNER = """
from covis.core.compiling import kernel

@kernel(forceinline=True)
def inner(x):
    return x + 1.0
"""
OUTER = """
from covis.core.compiling import kernel
from kernels.inner import inner

@kernel()
def outer(x):
    return 2.0 * inner(x)
"""
CODE = """
from kernels.outer import outer
print(outer(3.0), sum(outer.stats.cache_hits.values()), sum(outer.stats.cache_misses.values()))
"""


@pytest.fixture
def package(tmp_path):
    """A package in which one file's kernel calls another's."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "inner.py").write_text(INNER)
    (folder / "outer.py").write_text(OUTER)
    return tmp_path


def run(package, **settings):
    """Result, cache hits, cache misses of one start."""
    env = {**os.environ, "PYTHONPATH": str(package), **settings}
    env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=280, check=True
    )
    value, hits, misses = done.stdout.split()
    return float(value), int(hits), int(misses)


def test_the_second_start_compiles_nothing_and_a_change_in_another_file_is_seen(package):
    assert run(package) == (8.0, 0, 1)
    assert run(package) == (8.0, 1, 0)
    (package / "kernels" / "inner.py").write_text(INNER.replace("x + 1.0", "x + 5.0"))
    assert run(package) == (16.0, 0, 1)  # numba's own cache would have answered 8


def test_where_the_package_cannot_be_written_kernels_are_kept_at_home(package, tmp_path):
    (package / "kernels" / "__pycache__").write_text("in the way")
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    assert run(package, **home) == (8.0, 0, 1)
    assert run(package, **home) == (8.0, 1, 0)


def test_where_nothing_can_be_written_it_works_all_the_same(package, tmp_path):
    for name in (package / "kernels" / "__pycache__", tmp_path / "blocked"):
        name.write_text("a file, not a folder")
    blocked = str(tmp_path / "blocked" / "home")
    assert run(package, HOME=blocked, XDG_CACHE_HOME=blocked, PYTHONDONTWRITEBYTECODE="1")[0] == 8.0
