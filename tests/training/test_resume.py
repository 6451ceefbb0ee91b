"""Killed at any point, the same command gives the same weights, bit for bit."""

import os
import random
import signal
import time

import pytest
import torch

import forked
from covis.models import PlaceModel

STOPS = 6
SETTINGS = [
    "model.image_size=[32,32]", "batches.size=8", "steps=40", "validations=8", "accumulate=2", "cache_gb=0.5",
]  # fmt: skip


def command(run, hamlet):
    settings = [part for s in SETTINGS for part in ("--set", s)]
    words = ["train", "town_quick", "-o", str(run), "--data", str(hamlet), "--workers", "0"]
    return [*words, "--checkpoint-seconds", "0.05", *settings]


def environment(tmp_path):
    return os.environ | {"COVIS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


def weights(run):
    return {name: PlaceModel.load(run / name).state_dict() for name in ("model", "last")}


def run_to_end(run, hamlet, tmp_path):
    done = forked.run(command(run, hamlet), environment=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    return weights(run)


def assert_same(a, b):
    for name, state in a.items():
        for key, value in state.items():
            assert torch.equal(value, b[name][key]), f"{name}: {key} differs"


def steps_seen(run):
    path = run / "metrics.csv"
    return (
        max((int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]), default=0) if path.exists() else 0
    )


@pytest.mark.slow
def test_kills_at_any_step_change_nothing(hamlet, tmp_path):
    undisturbed = run_to_end(tmp_path / "whole", hamlet, tmp_path)
    run = tmp_path / "stopped"
    for step in sorted(random.Random(0).sample(range(40), STOPS)):
        there = environment(tmp_path) | {"KILLED_AT": str(step)}
        killed = forked.run(["--import", "killed_at", *command(run, hamlet)], environment=there)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert_same(undisturbed, run_to_end(run, hamlet, tmp_path))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.slow
def test_a_polite_stop_checkpoints_and_says_how_to_go_on(hamlet, tmp_path, number, code):
    run = tmp_path / "run"
    slow = [c if c != "steps=40" else "steps=4000" for c in command(run, hamlet)]
    slow[slow.index("--checkpoint-seconds") + 1] = "1000"
    process = forked.Command(slow, environment=environment(tmp_path))
    deadline = time.monotonic() + 120
    while steps_seen(run) < 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, talk = process.communicate(timeout=280)
    assert process.returncode == code, talk
    assert "re-run the same command to resume" in talk
    kept = sorted((run / "checkpoints").glob("step-*"))
    assert kept, "no checkpoint was left"
    assert int(kept[-1].name.split("-")[1]) >= 10


@pytest.mark.slow
def test_two_runs_at_once_are_refused_with_the_process_id(hamlet, tmp_path):
    run = tmp_path / "run"
    slow = [c if c != "steps=40" else "steps=4000" for c in command(run, hamlet)]
    first = forked.Command(slow, environment=environment(tmp_path))
    deadline = time.monotonic() + 120
    while steps_seen(run) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    second = forked.run(slow, environment=environment(tmp_path))
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=280)
    assert second.returncode == 2
    assert f"process {first.pid}" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1
