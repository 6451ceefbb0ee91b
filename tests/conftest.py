"""Fixtures that every test may use."""

import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photographs and weights kept beside the project; absent on most machines."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("needs the real photographs and weights beside the project (../shared/data)")
    return folder


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Dataset → a miniature of its official layout, written from the formats by someone who had not read the readers."""
    builder = SHARED / "layouts" / "build.py"
    if not builder.is_file():
        pytest.skip("needs the builder of official layouts beside the project (../shared/layouts/build.py)")
    root = tmp_path_factory.mktemp("official")
    subprocess.run([sys.executable, str(builder), str(root)], check=True, timeout=300)
    folders = {"robotcar_v2": "robotcar", "cmu_extended": "cmu", "tb_places": "tb"}
    names = (
        "msls",
        "pitts30k",
        "pitts250k",
        "tokyo247",
        "tokyotm",
        "robotcar_v2",
        "cmu_extended",
        "tb_places",
        "7scenes",
    )
    return {name: root / folders.get(name, name) for name in names}


@pytest.fixture(scope="session")
def hamlet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered town of the smallest size, with all its splits."""
    from covis.town.config import TownConfig
    from covis.town.dataset import load

    folder = tmp_path_factory.mktemp("town") / "hamlet"
    for split in ("train", "val", "test"):
        load(folder, split, TownConfig.small())
    return folder
