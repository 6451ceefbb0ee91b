"""The demo on the smallest town: its table, its report, killed and resumed."""

import json
import os
import re
import signal
import time

import pytest

import forked
from covis.demo import verdict

SMALL = ["model.image_size=[32,32]", "batches.size=8", "steps=30", "validations=1", "cache_gb=0.5"]


def command(out, hamlet):
    settings = [part for s in SMALL for part in ("--set", s)]
    return ["demo", "-o", str(out), "--data", str(hamlet), "--workers", "0", *settings]


def environment(tmp_path):
    return os.environ | {"COVIS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_in_training_and_after_a_run_it_finishes_without_redoing_what_is_done(hamlet, tmp_path):
    out, env = tmp_path / "demo", environment(tmp_path)
    forked.run(["--version"])  # from here on a start takes no time
    whole = forked.run([*command(tmp_path / "whole", hamlet), "--json"], environment=env, timeout=300)
    assert whole.returncode == 0, whole.stderr
    for moment in ("evals/untrained/*", "runs/*/metrics.csv", "runs/*/result.json"):
        process = forked.Command(command(out, hamlet), environment=env)
        while process.poll() is None and not any(out.glob(moment)):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/result.json")}
    resumed = forked.run([*command(out, hamlet), "--json"], environment=env, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert all(p.stat().st_mtime_ns == when for p, when in done.items())
    first, second = json.loads(whole.stdout), json.loads(resumed.stdout)
    assert first["table"] == second["table"]
    check_report((out / "report.html").read_text(encoding="utf-8"))


def check_report(page):
    assert page.startswith("<!doctype html>")
    assert not re.search(r"""(src=|<link[^>]* href=)["']https?:""", page), "the report must not load anything"
    for part in ("recall", "map", "distance", "examples", "batches"):
        assert f'<section id="{part}">' in page, part
    assert "covis demo" in page or "__main__.py demo" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1].replace("<\\/", "</"))
    shown = data["map"]
    assert {m["name"] for m in shown["models"]} == {"untrained", "CL", "GCL"}
    assert all(len(m["answers"]) == len(shown["queries"]) for m in shown["models"])
    assert any(key.startswith("q") for key in shown["thumbs"])


@pytest.mark.parametrize(
    ("cl", "gcl", "words"),
    [(10, 20, "GCL beats CL"), (20, 10, "GCL does not beat CL")],
)
def test_the_verdict_says_what_the_table_says(cl, gcl, words):
    rows = [
        {"model": name, "seeds": 2} | {f"recall@{k}": float(v) for k in (1, 5, 10)}
        for name, v in (("CL", cl), ("GCL", gcl))
    ]
    assert verdict(rows).startswith(words)
