"""Fixtures that every test may use."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layouts import builders

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photographs and weights kept beside the project; absent on most machines."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("needs the real photographs and weights beside the project (../shared/data)")
    return folder


@pytest.fixture(scope="session")
def official() -> dict[str, Path]:
    """Dataset → a miniature of its official layout, written from the formats by someone who had not read the readers."""
    builder = SHARED / "layouts" / "build.py"
    if not builder.is_file():
        pytest.skip("needs the builder of official layouts beside the project (../shared/layouts/build.py)")
    key = hashlib.sha256(builder.read_bytes()).hexdigest()[:16]
    root = Path(tempfile.gettempdir()) / f"covis-layouts-{key}"  # made once, not once a session: it takes a while
    if not root.is_dir():
        draft = Path(tempfile.mkdtemp(prefix="covis-layouts-"))
        subprocess.run([sys.executable, str(builder), str(draft)], check=True, timeout=600)
        with contextlib.suppress(OSError):  # another session may have been quicker
            draft.rename(root)
    return {name: root / folder for name, folder in builders.OFFICIAL.items()}


@pytest.fixture(scope="session")
def hamlet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered town of the smallest size, with all its splits."""
    from covis.town.config import TownConfig
    from covis.town.dataset import load

    folder = tmp_path_factory.mktemp("town") / "hamlet"
    for split in ("train", "val", "test"):
        load(folder, split, TownConfig.small())
    return folder


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
