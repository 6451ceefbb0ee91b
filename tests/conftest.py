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
