"""The command line as a user meets it: quick help, examples, one-line errors, data on stdout."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from covis.cli import GROUPS, VERBS, build_app, error_line, main
from covis.cli.listing import KINDS, START_WITH
from covis.errors import InputError, WeightsMissing

ROOT = Path(__file__).resolve().parents[2]


def covis(*args, check=False):
    return subprocess.run(
        [sys.executable, "-m", "covis", *args], capture_output=True, text=True, timeout=120, check=check
    )


def verbs():
    yield from ([name] for name in VERBS)
    yield from ([group, verb] if verb else [group] for group, names in GROUPS.items() for verb in names)


@pytest.mark.parametrize("verb", list(verbs()), ids=" ".join)
def test_every_verb_has_help_with_examples_and_json(verb):
    shown = covis(*verb, "--help", check=True).stdout
    assert "Examples:" in shown
    assert f"covis {' '.join(verb)}" in shown
    assert "--json" in shown


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom covis.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'numba', 'scipy', 'timm', 'matplotlib', 'faiss'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "Did you mean 'train'"),
        (["train", "town_quik", "-o", "x"], "did you mean 'town_quick'"),
        (["list", "datasts"], "did you mean 'datasets'"),
        (["evaluate", "nowhere", "town"], "nowhere"),
        (["train", "town_quick", "-o", "x", "--set", "los.margin=1"], "did you mean 'loss'"),
        (["train"], "Missing"),
        (["reproduce", "table99", "-o", "x"], "unknown table"),
    ],
    ids=lambda v: " ".join(v[:2]) if isinstance(v, list) else "",
)
def test_bad_usage_is_one_line_and_exit_code_2(args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = covis(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_debug_adds_the_traceback():
    done = covis("train", "town_quik", "-o", "x", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert InputError.__name__ in done.stderr or "unknown recipe" in done.stderr


@pytest.mark.parametrize("group", [[], *([name] for name, verbs in GROUPS.items() if "" not in verbs)])
def test_without_a_verb_the_help_is_shown(group):
    done = covis(*group)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "Usage: " in done.stdout
    assert len(done.stdout.splitlines()) > 5


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_lists_are_results_on_stdout(kind, capsys):
    names = run(capsys, "list", kind, "--json")
    assert len(names) == len(set(names)) > 2
    assert any(line.split()[0] == names[0] for line in run(capsys, "list", kind, "--match", names[0]).splitlines())
    assert kind in run(capsys, "list")


def test_recipes_to_start_with_come_first(capsys):
    names = run(capsys, "list", "recipes", "--json")
    assert set(names[: len(START_WITH)]) == set(START_WITH)


def run(capsys, *args):
    """What a verb that ends well prints, in this process: JSON parsed, text as it is."""
    with pytest.raises(SystemExit) as left:
        main([*args])
    assert not left.value.code
    text = capsys.readouterr().out
    return json.loads(text) if "--json" in args else text


def test_the_doctor_names_the_extras(capsys):
    facts = run(capsys, "doctor", "--json")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras) - {"test", "dev", "docs"} <= set(facts["extras"])
    assert facts["libraries"]["torch"] == version("torch")
    assert "covis[" in run(capsys, "doctor") or all(facts["extras"].values())


def test_the_cache_is_listed_bounded_and_cleared(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    assert run(capsys, "cache", "--json")["entries"] == []
    for kind, name, size in (("features", "old", 3000), ("features", "new", 2000), ("descriptors", "one", 1000)):
        folder = tmp_path / "cache" / kind / name
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(bytes(size))
    os.utime(tmp_path / "cache" / "features" / "old" / "data", (1, 1))
    (tmp_path / "cache" / "mine.txt").write_text("not an entry", encoding="utf-8")
    assert run(capsys, "cache", "--json")["bytes"] == 6000
    assert "features" in run(capsys, "cache")
    bounded = run(capsys, "cache", "--keep-gb", "4e-6", "--json")
    assert [entry["name"] for entry in bounded["deleted"]] == ["old"]
    assert run(capsys, "cache", "--clear", "features", "--json")["bytes"] == 1000
    assert run(capsys, "cache", "--clear", "all", "--json")["bytes"] == 0
    assert (tmp_path / "cache" / "mine.txt").exists()


def test_version_and_dry_run():
    assert covis("--version", check=True).stdout.strip()
    told = json.loads(
        covis("train", "town_quick", "-o", "x", "--dry-run", "--set", "loss.margin=0.7", check=True).stdout
    )
    assert told["loss"] == {"type": "GeneralizedContrastive", "margin": 0.7}


def test_missing_weights_name_the_option_of_the_verb():
    error = WeightsMissing("no weights of vgg16 here; give a file")
    assert "ModelConfig(weights='FILE.safetensors')" in str(error)
    assert error_line(error, "index") == (2, "error: no weights of vgg16 here; give a file: --weights FILE.safetensors")
    assert error_line(error, "train")[1].endswith("--set model.weights=FILE.safetensors")


TYPOS = (
    ("evaluate", "rnus", "town"),
    ("compare", "rnus", "rnus"),
    ("report", "rnus", "-o", "r.html"),
    ("embed", "rnus", ".", "-o", "s"),
    ("index", "rnus", "-o", "m.map"),
    ("index", ".", "-o", "m.map", "--model", "rnus"),
    ("add", "m.map", "rnus"),
    ("export", "rnus", "--onnx", "x.onnx"),
    ("label", "export", "rnus", "--format", "csv", "-o", "x"),
    ("label", "plot", "rnus", "-o", "x.png"),
    ("label", "import", "rnus", "-o", "x"),
    ("data", "check", "msls", "rnus"),
    ("data", "export", "rnus", "-o", "x"),
    ("data", "coverage", "rnus"),
    ("model", "import", "rnus", "--backbone", "resnet50", "-o", "x"),
    ("model", "show", "rnus"),
)


def test_a_mistyped_path_is_told_before_anything_heavy_is_imported(tmp_path):
    (tmp_path / "runs").mkdir()
    code = (
        "import sys\nfrom covis.cli import main\n"
        f"for args in {TYPOS!r}:\n"
        "    try: main(list(args))\n"
        "    except SystemExit as end: assert end.code == 2, args\n"
        "    heavy = {'torch', 'timm', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, (args, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(TYPOS)
    assert all("rnus is not there (did you mean runs?)" in line for line in lines), lines


def test_a_mistyped_name_is_told_before_torch_is_loaded(tmp_path):
    typos = (
        ("train", "town_quik", "-o", "x"),
        ("train", "town_quick", "-o", "x", "--set", "loss=contrastiv"),
        ("sweep", "town_clx", "--benchmark", "town", "-o", "x"),
        ("reproduce", "tabel1", "-o", "x"),
        ("list", "recpies"),
        ("label", "--dataset", "twon", "-o", "x"),
    )
    code = (
        "import sys\nfrom covis.cli import main\n"
        f"for args in {typos!r}:\n"
        "    try: main(list(args))\n"
        "    except SystemExit as end: assert end.code == 2, args\n"
        "    heavy = {'torch', 'timm', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, (args, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all("did you mean" in line for line in done.stderr.splitlines()), done.stderr


def test_quiet_leaves_warnings_and_verbose_adds_times(capsys):
    from covis import progress

    try:
        for switch in ("-q", "--verbose"):
            with pytest.raises(SystemExit):
                main(["list", "recpies", switch])
            progress.say("told")
            progress.warn("read this")
    finally:
        progress.set_level(progress.NORMAL)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("covis: error")]
    assert lines[0] == "warning: read this"
    assert [line.split("] ")[1] for line in lines[1:]] == ["told", "warning: read this"]


def test_a_device_is_checked(capsys, monkeypatch):
    from covis import machine

    monkeypatch.setattr(machine, "_chosen_device", None)
    with pytest.raises(SystemExit):
        main(["train", "town_quick", "--device", "gpu", "--dry-run"])
    assert "--device is cpu, cuda, cuda:N or mps, not 'gpu'" in capsys.readouterr().err
    machine.use_device("cpu")
    assert machine.device() == "cpu"
    machine.use_device("cuda:99")
    with pytest.raises(InputError, match="no device 'cuda:99'"):
        machine.device()


@pytest.mark.parametrize(
    "verb",
    ["train", "sweep", "reproduce", "demo", "evaluate", "embed", "index", "add", "locate", "serve", "pairs", "report"],
)
def test_verbs_that_run_a_network_take_a_device(verb):
    command = typer.main.get_command(build_app()).commands[verb]
    assert any("--device" in parameter.opts for parameter in command.params)
