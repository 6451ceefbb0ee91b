"""Maps and servers that the tests of the service share."""

import shutil

import pytest
from served import build, running

from covis.service.app import create_app
from covis.service.keys import Keys, add_key


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with photos and a map that no test changes."""
    folder = tmp_path_factory.mktemp("service")
    build(folder)
    return folder


@pytest.fixture(scope="session")
def town(made):
    """A server over it that no test changes."""
    with running(create_app([made / "town.map"])) as address:
        yield address


@pytest.fixture
def own(made, tmp_path):
    """A copy of the map, a file of keys and a server over them: (address, map, {role: key})."""
    shutil.copytree(made / "town.map", tmp_path / "town.map")
    keys = {role: add_key(tmp_path / "keys.json", role, role) for role in ("read", "write")}
    with running(create_app([tmp_path / "town.map"], keys=Keys(tmp_path / "keys.json"))) as address:
        yield address, tmp_path / "town.map", keys
