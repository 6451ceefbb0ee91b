"""Odd surroundings: signals at a bad moment, closed streams, ASCII terminals, no home folder, hostile names."""

import json
import os
import signal
import subprocess
import sys

import pytest

from covis.cli import main, output
from covis.core import progress

SWALLOWED = """
import os, signal, sys, time
import covis.cli as cli
import covis.cli.app as app

class Dropped:
    def __del__(self):  # as native code does, a finalizer drops what is raised inside it
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def work(*_, **__):
    dropped = Dropped()
    del dropped
    time.sleep(200)

app.build_app = lambda *_, **__: work
sys.unraisablehook = lambda _: print("dropped", flush=True)
cli.main(["list"])
"""


def run(code_or_args, closed=(), **environment):
    """A fresh interpreter, with streams closed as `>&-` closes them."""
    words = ["-c", code_or_args] if isinstance(code_or_args, str) else ["-m", "covis", *map(str, code_or_args)]
    shell = " ".join(f"{number}>&-" for number in closed)
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, *words],
        capture_output=True,
        env=os.environ | environment,
        timeout=280,
        check=False,
    )


def test_an_interrupt_that_a_finalizer_drops_is_raised_again():
    done = run(SWALLOWED)
    assert b"dropped" in done.stdout
    assert done.returncode == 128 + signal.SIGINT
    assert b"re-run the same command" in done.stderr


def test_closed_streams_discard_what_is_printed():
    for closed in [(1,), (2,), (0, 1, 2)]:
        done = run(["list", "recipes"], closed)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr


def test_a_terminal_of_ascii_gets_escapes_and_json_stays_json():
    shown = "import covis.cli as c; from covis.cli.output import emit; c._repair_streams(); emit({'a': '1°'}, %s, '1°')"
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert run(shown % False, **plain).stdout == b"1\\xb0\n"
    assert json.loads(run(shown % True, **plain).stdout) == {"a": "1°"}


def test_json_holds_no_value_that_parsers_refuse(capsys):
    output.emit({"a": float("nan"), "b": [float("inf"), 1.5]}, True)
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": None, "b": [None, 1.5]}


def test_a_cache_in_an_unknown_home_is_bad_input(monkeypatch, capsys):
    monkeypatch.setenv("COVIS_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(SystemExit) as left:
        main(["doctor"])
    assert left.value.code == 2
    assert "COVIS_CACHE=FOLDER" in capsys.readouterr().err


HOMELESS = """
import os, pwd, sys
for name in ("HOME", "COVIS_CACHE", "XDG_CACHE_HOME"):
    os.environ.pop(name, None)
def unknown(*_):
    raise KeyError
pwd.getpwuid = pwd.getpwnam = unknown
from covis.cli import main
main(["cache"])
"""


def test_a_user_without_a_home_folder_has_a_private_cache(tmp_path):
    done = run(HOMELESS, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    [folder] = tmp_path.glob("covis-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    done = run(HOMELESS, TMPDIR=str(tmp_path))
    assert done.returncode == 2
    assert b"COVIS_CACHE=FOLDER" in done.stderr


def test_warnings_and_progress_spell_out_control_characters(capsys):
    progress.warn("photo a\x1b]0;pwn\x07.jpg")
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert "\\x1b]0;pwn\\x07.jpg" in shown
