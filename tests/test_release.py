"""What a release is made of: workflows, the lock file, and the files that strangers look for."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def locked():
    """Requirement by name, and number of hashes, of the lock file."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    pinned = [(Requirement(entry.split("\\")[0].strip()), entry.count("--hash=sha256:")) for entry in entries]
    return {canonicalize_name(requirement.name): (requirement, hashes) for requirement, hashes in pinned}


def test_the_lock_file_pins_each_package_by_hash_and_names_no_host(locked):
    for requirement, hashes in locked.values():
        assert [part.operator for part in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
    assert "://" not in (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_the_lock_file_satisfies_the_project(locked):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for extra in ("train", "search", "onnx", "serve", "postgres", "test") for line in project["optional-dependencies"][extra]]  # fmt: skip
    wanted = [Requirement(line) for line in (*project["dependencies"], *extras)]
    for requirement in wanted:
        if requirement.name != "covis":
            pinned = locked[canonicalize_name(requirement.name)][0]
            [version] = [part.version for part in pinned.specifier]
            assert requirement.specifier.contains(version), f"{pinned}: run `make lock`"


def test_no_package_of_the_tested_set_hides_the_standard_library(locked):
    assert not {"dataclasses", "typing", "enum34", "pathlib", "argparse"} & set(locked)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_pin_their_actions_and_hold_no_secret(file):
    text = file.read_text(encoding="utf-8")
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
    assert "secrets." not in text
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_three_systems_are_tested_and_only_publishing_may_write():
    tests, release = (yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))["jobs"] for name in ("tests", "release"))  # fmt: skip
    for job in (tests["quick"], tests["core"], release["try"]):
        assert job["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert [name for name, job in release.items() if "permissions" in job] == ["publish"]
    assert release["publish"]["environment"] == "pypi"


def test_llms_txt_lists_every_page():
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\S+\.md)\)", text)) == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_no_page_pipes_a_download_into_a_shell():
    for page in [ROOT / "README.md", ROOT / "Dockerfile", *(ROOT / "docs").rglob("*.md")]:
        assert not re.search(
            r"(curl|wget)[^\n]*\|\s*(sudo\s+)?(ba)?sh|(curl|wget)[^\n]*\.sh\b", page.read_text("utf-8")
        )


@pytest.mark.parametrize("name", ["AGENTS.md", "SECURITY.md"])
def test_paths_in_these_files_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"\]\(([\w./]+)\)|`((?:src|tests|docs|benchmarks)/[\w./]*)`|`(\w+\.lock)`", text)
    for path in filter(None, (part for parts in named for part in parts)):
        assert (ROOT / path).exists(), path
