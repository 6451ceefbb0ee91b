"""Fixtures that every test may use."""

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from layouts.miniatures import Written

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def covis(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any, str]]:
    """Runs a command in this process; its exit code, what it printed (parsed where --json was asked), and what it said."""
    from covis.cli import main

    def run(*arguments: object) -> tuple[int, Any, str]:
        words = [str(a) for a in arguments]
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(words)
        out, err = capsys.readouterr()
        return int(end.value.code or 0), json.loads(out) if out and "--json" in words else out, err

    return run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COVIS_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photographs and weights kept beside the project; absent on most machines."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("needs the real photographs and weights beside the project (../shared/data)")
    return folder


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Dataset → a miniature of its layout, written when first asked for."""
    return Written(tmp_path_factory.mktemp("layouts"))


@pytest.fixture(scope="session")
def hamlet(official: Written) -> Path:
    """A rendered town of the smallest size, with all its splits."""
    return official["town"]


@pytest.fixture(scope="module")
def evidence() -> Iterator[dict[str, set[str]]]:
    """The plugin `evidence`, imported and forgotten afterwards; kind → the names that it adds."""
    from plugins import REGISTRIES, forgotten_afterwards

    with forgotten_afterwards() as before:
        importlib.import_module("evidence")
        yield {registry.kind: set(registry) - before[registry.kind] for registry in REGISTRIES}
    for name in [name for name in sys.modules if name.split(".")[0] == "evidence"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium from the system's packages; CI fails without one."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        hint = "no Chromium found; install the system's package `chromium` (make browser)"
        if os.environ.get("CI"):
            pytest.fail(hint)
        pytest.skip(hint)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()
