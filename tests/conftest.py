"""Fixtures that every test may use."""

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
def hamlet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered town of the smallest size, with all its splits."""
    from covis.town.config import TownConfig
    from covis.town.dataset import load

    folder = tmp_path_factory.mktemp("town") / "hamlet"
    for split in ("train", "val", "test"):
        load(folder, split, TownConfig.small())
    return folder
