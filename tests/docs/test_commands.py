"""Every command in the README and the documentation is understood, and those that need no download are run.

Runs go through the documents in order, in one folder each, on the smallest town and with a few training steps; all
else is as written.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

import forked
from covis.cli import main
from covis.cli.app import build_app
from layouts import builders

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS = re.compile(
    r"/data/|photos|town\.map|evals/[ab]\b|msls|pitts|tokyo|robotcar|cmu|tb_places|7scenes|campus|torchrun|MODEL|PHOTO|MAP|[A-Z]{4,}|…|\.\.\."
)
"""Commands with these need data, weights or files of the reader's own."""
SHORT = {"train", "sweep", "reproduce", "demo"}
STEPS = ["--set", "steps=3", "--set", "validations=1"]


def commands(page, inline=True):
    """Commands in code blocks and, if `inline`, those named in sentences."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    fenced = re.findall(r"^ *```(?:console|bash|sh)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in fenced for line in block.splitlines()]
    if inline:
        lines += re.findall(r"`(covis [^`]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))
    found = [line.split("#")[0].strip() for line in lines]
    return [c[c.index("covis ") :] for c in found if re.match(r"(covis |torchrun .*-m covis )", c)]


def understood(words):
    """Finds the verb and hands it the words, without running it."""
    command = typer.main.get_command(build_app())
    context = command.make_context("covis", [], resilient_parsing=True)
    words = words[2:] if words[:1] == ["--import"] else words
    while hasattr(command, "resolve_command") and words and words[0] in getattr(command, "commands", {}):
        name, command, words = command.resolve_command(context, words)
        context = typer.Context(command, info_name=name, parent=context)
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    options |= {"--help", "-h", "--debug", "--version", "--device", "--workers"}
    unknown = [w for w in words if w.startswith("-") and w.split("=")[0] not in options and not re.match(r"-\d", w)]
    return command, unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_is_understood(page):
    for line in commands(page):
        command, unknown = understood(shlex.split(line)[1:])
        assert command.name != "covis" or line.startswith("covis --"), f"{page.name}: no such verb in {line!r}"
        assert not unknown, f"{page.name}: {unknown} in {line!r}"


def shortened(line):
    words = shlex.split(line)
    if words[1] in SHORT and "list" not in words and "--dry-run" not in words:
        words += STEPS + (["--workers", "0"] if "--workers" not in words else [])
    return words[1:]


@pytest.fixture
def place(hamlet, tmp_path):
    """A folder to type commands in, and their environment: the default town is the smallest one."""
    from covis.town.dataset import default_folder

    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / default_folder().name).symlink_to(hamlet)
    (tmp_path / "work").mkdir()
    return tmp_path / "work", os.environ | {"COVIS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


def typed(words, place):
    return forked.run(words, *place, timeout=400)


def with_gps(images, folder):
    """Copies of a set's images with positions and headings in EXIF, as a phone writes them; its walks as folders."""
    for i, (x, y) in enumerate(images.poses.xy):
        target = folder / images.path(i).parent.name / images.path(i).name
        target.parent.mkdir(parents=True, exist_ok=True)
        north, east = 55.7 + y / 111_320, 13.19 + x / (111_320 * np.cos(np.radians(55.7)))
        with Image.open(images.path(i)) as image:
            exif = image.getexif()
            exif.get_ifd(0x8825).update(
                {1: "N", 2: (north, 0.0, 0.0), 3: "E", 4: (east, 0.0, 0.0), 16: "T", 17: images.poses.heading[i]}
            )
            image.save(target, exif=exif)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readmes_commands_run(hamlet, place):
    """Both doors as written, on photos with GPS; the model of the second door stands in for one to be fetched."""
    from covis.town.dataset import load

    queries, database = load(hamlet, "test")
    with_gps(database, place[0] / "photos")
    with_gps(queries.subset(range(3)), place[0] / "new")
    left_out = r"/data/|evals/[ab]\b|covis serve|covis (index|locate|data check)$|covis sample"  # data, a server, verbs named alone
    lines = [line for line in commands(ROOT / "README.md") if not re.search(left_out, line)]
    verbs = [line.split()[1] for line in lines]
    assert {"index", "locate", "train", "evaluate", "label", "pairs", "map"} <= set(verbs)
    for line in sorted(dict.fromkeys(lines), key=lambda line: line.split()[1] not in ("train", "data")):
        words = shortened(line) + (["--model", "runs/quick"] if line.startswith(("covis index", "covis pairs")) else [])
        done = typed(words, place)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert "<html" in (place[0] / "found.html").read_text(encoding="utf-8")


SMALL = ["--workers", "0"]
for _setting in ("backbone=tiny", "weights=null", "image_size=[32,48]"):
    SMALL += ["--set", f"model.{_setting}"]
SMALL += ["--set", "batches.size=4", "--set", "steps=2", "--set", "validations=1"]


def run_here(line, monkeypatch, place, capsys, more=()):
    """A command in this process, which has loaded what every command loads, with a network of toy size."""
    monkeypatch.chdir(place[0])
    monkeypatch.setenv("COVIS_CACHE", place[1]["COVIS_CACHE"])
    words = shlex.split(line)[1:]
    with pytest.raises(SystemExit) as stopped:
        main([*words, *more])
    assert not stopped.value.code, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["docs/index.md", "docs/labels.md", "docs/evaluate.md", "docs/datasets.md"])
def test_commands_that_need_no_download_run(page, place, monkeypatch, capsys):
    for line in dict.fromkeys(line for line in commands(ROOT / page, inline=False) if not NEEDS.search(line)):
        trains = line.split()[1] in SHORT and not re.search(r" list\b|--dry-run", line)
        run_here(line, monkeypatch, place, capsys, SMALL if trains else ())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_msls_step_by_step_runs_on_a_miniature(place, tmp_path, monkeypatch, capsys):
    data = {"/data/msls": builders.msls(tmp_path / "msls"), "/data/pitts": builders.pitts(tmp_path / "pitts")}
    lines = [
        line
        for line in commands(ROOT / "docs" / "train.md")
        if re.search(r"/data/msls|runs/r50", line) and "--init" not in line
    ]
    assert {line.split()[1] for line in lines} >= {"data", "train", "evaluate", "compare", "report"}
    for line in dict.fromkeys(lines):
        for official, miniature in data.items():
            line = line.replace(official, str(miniature))
        run_here(line, monkeypatch, place, capsys, SMALL if line.split()[1] == "train" else ())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_readmes_python_runs(place):
    photo, block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    short = block.replace('covis.recipe("town_quick")', 'dataclasses.replace(covis.recipe("town_quick"), steps=3)')
    assert short != block
    folder, environment = place
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import dataclasses, shutil\n{short}\nshutil.copy(queries.path(0), 'photo.jpg')\n{photo}",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\{1: [\d.]+, 5: [\d.]+", done.stdout)


def test_make_runs_what_the_readme_says():
    for target, program in (("demo", "covis demo"), ("test", "pytest")):
        dry = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=280)
        assert program in dry.stdout
