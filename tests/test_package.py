"""The wheel: built from the tree, installed into an empty environment, and used without the repository."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import covis

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="needs the `test` extra")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=280)
    [built] = folder.glob("covis-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The `covis` command of an environment that has the wheel, and this one's other packages."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=280)
    python = home / "bin" / "python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, timeout=280
    )
    [packages] = (home / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return home / "bin" / "covis"


def run(installed, *arguments, folder):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(installed), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )


def test_the_wheel_holds_the_package_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"covis", f"covis-{covis.__version__}.dist-info"}
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {name.removeprefix("src/") for name in tracked.stdout.split() if Path(ROOT, name).exists()}
    assert wanted <= set(names)
    assert "covis/py.typed" in names


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(installed, tmp_path):
    assert covis.__version__ in run(installed, "--version", folder=tmp_path).stdout
    table = "image,easting,northing,heading\na.jpg,0,0,90\nb.jpg,5,0,90\nc.jpg,400,0,90\n"
    (tmp_path / "photos.csv").write_text(table, encoding="utf-8")
    labels = ["label", "--queries", "photos.csv", "--radius-m", "50", "--fov-deg", "90", "-o", "labels"]
    done = run(installed, *labels, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    exported = run(installed, "label", "export", "labels", "--format", "csv", "-o", "pairs.csv", folder=tmp_path)
    assert exported.returncode == 0, exported.stderr
    lines = (tmp_path / "pairs.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [["a.jpg", "b.jpg"], ["b.jpg", "a.jpg"]]


def test_the_dockerfile_is_linted():
    program = Path(sys.executable).with_name("hadolint")
    if not program.is_file():
        pytest.skip("needs the `test` extra")
    done = subprocess.run([str(program), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout


def test_the_version_is_stated_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    assert f"version: {covis.__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
