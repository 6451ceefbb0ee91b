"""The command line as a user meets it: quick help, examples, one-line errors, data on stdout."""

import json
import subprocess
import sys

import pytest

from covis.cli import GROUPS, VERBS
from covis.errors import InputError


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


@pytest.mark.parametrize("kind", ["datasets", "benchmarks", "recipes", "backbones", "losses"])
def test_lists_are_data_on_stdout(kind):
    names = json.loads(covis("list", kind, "--json", check=True).stdout)
    assert len(names) == len(set(names)) > 2
    text = covis("list", kind, "--match", names[0], check=True).stdout
    assert names[0] in text.splitlines()


def test_version_and_dry_run():
    assert covis("--version", check=True).stdout.strip()
    told = json.loads(
        covis("train", "town_quick", "-o", "x", "--dry-run", "--set", "loss.margin=0.7", check=True).stdout
    )
    assert told["loss"] == {"type": "GeneralizedContrastive", "margin": 0.7}
