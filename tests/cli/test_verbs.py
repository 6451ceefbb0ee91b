"""The command line as a user meets it: quick help, examples, one-line errors, data on stdout."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from covis.cli import main
from covis.cli.app import find_verbs
from covis.cli.errors import error_line
from covis.cli.listing import LISTS
from covis.cli.verbs import GROUPS, VERBS, first_words, headings
from covis.core.errors import InputError, WeightsMissing

ROOT = Path(__file__).resolve().parents[2]


def typed(*args):
    """In an interpreter of its own, as a shell runs it."""
    return subprocess.run([sys.executable, "-m", "covis", *args], capture_output=True, text=True, timeout=280)


def test_every_verb_has_help_with_examples_and_json(covis):
    find_verbs()
    for verb in VERBS:
        shown = covis(*verb.split(), "--help")[1]
        for words in ("Examples:", f"covis {verb}", "--json", "-q (warnings only)"):
            assert words in shown, verb


def test_help_lists_every_verb_under_a_heading_with_its_whole_summary():
    listed = [verb for names in headings().values() for verb in names]
    assert sorted(listed) == first_words()
    shown = typed("--help").stdout
    assert [
        line.split()[0] for line in shown.splitlines() if line[2:].split()[:1] and line[2:].split()[0] in listed
    ] == listed
    assert "..." not in shown.partition("[ARGS]...")[2]
    for heading in headings():
        assert f"\n{heading}:\n" in shown


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom covis.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'numba', 'scipy', 'timm', 'matplotlib', 'faiss'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280, stdout=subprocess.DEVNULL)


def test_bad_usage_is_one_line_and_exit_code_2(covis, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photo.jpg").write_bytes(b"precious")
    for line, message in (
        ("trian", "Did you mean 'train'"),
        ("evaluate nowhere town", "nowhere"),
        ("evaluate town runs", "the model comes first: covis evaluate MODEL town"),
        ("train", "give a recipe"),
        ("reproduce table99 -o x", "unknown table"),
        ("index photos -o photo.jpg", "already exists and is not a folder"),
        ("serve photos", "photos is not a covis map"),
        ("map check photos", "photos is not a covis map"),
        ("remove photos a.jpg", "photos is not a covis map"),
    ):
        code, out, err = covis(*line.split())
        assert (code, out, err.strip().count("\n"), message in err) == (2, "", 0, True), err
        assert "-o photos" not in err  # the advice must not write a map into somebody's photos
    assert (tmp_path / "photo.jpg").read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.jpg", "photos"]


def test_debug_adds_the_traceback(covis):
    code, _, err = covis("train", "town_quik", "-o", "x", "--debug")
    assert (code, "Traceback" in err, "unknown recipe" in err) == (2, True, True)


def test_without_a_verb_the_help_is_shown(covis):
    for group in ([], *([name] for name in GROUPS)):
        code, out, err = covis(*group)
        assert (code, err, "Usage: " in out, out.count("\n") > 5) == (0, "", True, True), group


def test_lists_are_results_on_stdout(covis):
    for kind in LISTS:
        names = covis("list", kind, "--json")[1]
        assert len(names) == len(set(names)) > 0, kind
        found = covis("list", kind, "--match", names[0])[1]
        assert any(line.split()[0] == names[0] for line in found.splitlines()), kind
        assert kind in covis("list")[1]


@pytest.mark.parametrize("command", ["", "train town_gcl --dry-run"])
def test_a_reader_that_stops_early_is_no_error(command):
    """As with `| head -1`."""
    with subprocess.Popen(
        [sys.executable, "-m", "covis", *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(280) == 141


def test_the_doctor_names_the_extras(covis):
    facts = covis("doctor", "--json")[1]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras) - {"test", "bench", "dev", "docs"} <= set(facts["extras"])
    assert facts["libraries"]["torch"] == version("torch")
    assert "covis[" in covis("doctor")[1] or all(facts["extras"].values())


def test_the_cache_is_listed_and_cleared(covis, tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    assert covis("cache", "--json")[1]["entries"] == []
    for kind, name, size in (("features", "old", 3000), ("features", "new", 2000), ("descriptors", "one", 1000)):
        folder = tmp_path / "cache" / kind / name
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(bytes(size))
    (tmp_path / "cache" / "mine.txt").write_text("not an entry", encoding="utf-8")
    assert covis("cache", "--json")[1]["bytes"] == 6000
    assert "features" in covis("cache")[1]
    assert covis("cache", "--clear", "features", "--json")[1]["bytes"] == 1000
    assert covis("cache", "--clear", "all", "--json")[1]["bytes"] == 0
    assert (tmp_path / "cache" / "mine.txt").exists()


def test_version_and_dry_run(covis):
    assert covis("--version")[1].strip()
    recipe = json.loads(covis("train", "town_quick", "-o", "x", "--dry-run", "--set", "loss.margin=0.7")[1])
    assert recipe["loss"] == {"type": "GeneralizedContrastive", "margin": 0.7}


def test_missing_weights_name_the_option_of_the_verb():
    error = WeightsMissing("no weights of vgg16 here; give a file")
    assert "ModelConfig(weights='FILE.safetensors')" in str(error)
    assert error_line(error, "index") == (2, "error: no weights of vgg16 here; give a file: --weights FILE.safetensors")
    assert error_line(error, "train")[1].endswith("--set model.weights=FILE.safetensors")


PATHS = """
evaluate rnus town
compare rnus rnus
report rnus -o r.html
embed rnus . -o s
embed runs rnus -o s
index rnus -o m.map
index . -o m.map --model rnus
index . -o m.map --track rnus
index . -o m.map --weights rnus
add rnus .
add runs rnus
remove rnus a.jpg
locate rnus runs
locate runs rnus
serve rnus
serve runs --keys rnus
pairs rnus -o p.txt
pairs runs --model rnus -o p.txt
pairs runs --queries rnus -o p.txt
export rnus --onnx x.onnx
train town_quick -o x --init rnus
train town_quick -o x --data town=rnus
reproduce table1 -o x --scores rnus
label --queries rnus -o x
label --queries runs --database rnus -o x
label export rnus --format csv -o x
data check msls rnus
data import rnus -o x.csv
data coverage rnus
keys rnus
export rnus --hub x
map show rnus
map check rnus
map repair rnus
map export rnus x.covis
map import rnus -o x
"""
NAMES = """
train town_quik -o x
train town_quick -o x --set loss=contrastiv
train town_quick -o x --set los.margin=1
train town_quick -o x --set loss.magin=1
train town_quick -o x --set model.backbone=resnet5O
train town_quick -o x --data mslss=runs
train town_quick --sed 1 -o x
demo --sed 1
sweep town_clx --benchmark town -o x
sweep town_cl --benchmark twon -o x
reproduce tabel1 -o x
evaluate runs twon
evaluate runs town --fit mpa
evaluate runs town --rerank consenus
evaluate runs town --whiten 8:grded
compare runs --format latx
report runs -o r.pdf --figure recal
embed runs . -o x --dtype float16x
index . -o m.map --recipe own_phots
index . -o m.map --kind hnws
index . -o m.map --runtime troch
pairs runs -o p.txt --by retreival
list recpies
cache --clear featurs
label --dataset twon -o x
label --queries runs -o x --rule fvo
label --queries runs -o x --measure overlp
label export runs --format cvs -o x
data check msl runs
keys keys.json --add a --role wirte
model import rnus --backbone resnet50 -o x
model import runs --published anyloc_vitg14 --weights rnus -o x
model import runs --backbone resnet5O -o x
model import runs --published mixvpr -o x
model import runs --backbone resnet50 --pool gme -o x
"""


def _told(lines, folder, heavy):
    """What each command says before it ends with 2, all in one process."""
    commands = [line.split() for line in lines.strip().splitlines()]
    code = (
        "import sys\nfrom covis.cli import main\n"
        f"for args in {commands!r}:\n"
        "    try: main(args)\n"
        "    except SystemExit as end: assert end.code == 2, args\n"
        f"    loaded = {heavy!r} & set(sys.modules)\n"
        "    assert not loaded, (args, loaded)\n"
    )
    (folder / "runs").mkdir()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=280)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(commands)
    assert [path.name for path in folder.iterdir()] == ["runs"]
    return dict(zip(lines.strip().splitlines(), said, strict=True))


def test_a_mistyped_path_is_told_before_anything_heavy_is_imported(tmp_path):
    for command, line in _told(PATHS, tmp_path, {"torch", "timm", "matplotlib"}).items():
        assert "rnus does not exist (did you mean runs?)" in line, (command, line)


def test_a_mistyped_name_is_told_before_anything_is_read_or_written(tmp_path):
    for command, line in _told(NAMES, tmp_path, {"matplotlib", "fastapi"}).items():
        assert any(words in line for words in ("did you mean", "Possible options", "is not one of")), (command, line)


def test_choices_are_those_of_their_owners():
    from typing import get_args, get_type_hints

    from covis.cli import compare, data, evaluate, label, report
    from covis.evaluation import render
    from covis.labels.fov import Measure
    from covis.poses import Axis
    from covis.report.figures import FIGURES
    from covis.whitening import PairLabels

    def choices(verb, option):
        kind = get_type_hints(verb)[option]
        return set(get_args(next((part for part in get_args(kind) if get_args(part)), kind)))

    assert choices(report.report, "figure") == set(FIGURES)
    assert choices(compare.compare, "format_") == set(render.TABLE_FORMATS)
    assert set(evaluate.PAIR_LABELS) == set(get_args(PairLabels))
    assert choices(label.label, "measure") == set(get_args(Measure))
    assert choices(data.import_, "up") == set(get_args(Axis))


def test_quiet_leaves_warnings_and_verbose_adds_times(capsys):
    from covis.core import progress

    try:
        for switch in ("-q", "--verbose"):
            with pytest.raises(SystemExit):
                main(["map", "check", switch, "--debug", "--help"])
            progress.say("told")
            progress.warn("read this")
    finally:
        progress.set_level(progress.NORMAL)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "warning: read this"
    assert [line.split("] ")[1] for line in lines[1:]] == ["told", "warning: read this"]


def test_a_slow_first_item_does_not_spoil_the_time_left(monkeypatch, capsys):
    from covis.core import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Meter("town", 100, "images") as meter:
        for now[0] in (25.0, *(25.0 + i for i in range(1, 12))):  # 25 s to compile, then an image per second
            meter.advance()
    told = capsys.readouterr().err.splitlines()
    assert "h" not in told[0].split("images/s")[1]
    assert "1 images/s, 1 min 29 s left" in told[0]
    assert told[-1].startswith("town: 12 images in 36 s")


@pytest.mark.parametrize(("total", "seconds", "lines"), [(1000, 1000, 20), (50_000, 1200, 10), (100, 5, 0)])
def test_a_log_gets_a_line_per_twentieth_or_two_minutes(monkeypatch, capsys, total, seconds, lines):
    from covis.core import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Meter("embed", total, "images") as meter:
        for now[0] in range(1, seconds + 1):
            meter.advance()
    assert len(capsys.readouterr().err.splitlines()) == lines + 1


def test_a_device_is_checked(capsys, monkeypatch):
    from covis.core import machine

    monkeypatch.setattr(machine, "_chosen_device", None)
    with pytest.raises(SystemExit):
        main(["train", "town_quick", "--device", "gpu", "--dry-run"])
    assert (
        "--device is cpu, cuda, cuda:N, mps, tensorrt, coreml, openvino or directml, not 'gpu'"
        in capsys.readouterr().err
    )
    machine.use_device("cpu")
    assert machine.device() == "cpu"
    machine.use_device("cuda:99")
    with pytest.raises(InputError, match="no device 'cuda:99'"):
        machine.device()


def test_a_shell_completes_verbs():
    asked = {"_COVIS_COMPLETE": "complete_bash", "COMP_WORDS": "covis eva", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['covis']; from covis.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, timeout=280
    )
    assert "evaluate" in done.stdout
