"""Two gloo processes train as one: same batches, same loss curve."""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

import forked
from covis.models import PlaceModel

COMMON = [
    "model.image_size=[32,32]", "optimiser.name=sgd", "model.batchnorm=frozen", "steps=8", "validations=1", "cache_gb=0.5",
    "optimiser.learning_rate=0.01",
]  # fmt: skip


def train(run, hamlet, tmp_path, processes, settings):
    """Runs to the end, alone, beside another rank, or under `torchrun`; the loss at each step."""
    words = ["train", "town_quick", "-o", str(run), "--data", str(hamlet), "--workers", "0"]
    words += [part for s in [*COMMON, *settings] for part in ("--set", s)]
    environment = os.environ | {"COVIS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    if processes == "torchrun":
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
        launch += ["--standalone", "-m", "covis"]
        done = subprocess.run([*launch, *words], env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
    else:
        for rank in started(words, environment, processes):
            _, talk = rank.communicate()
            assert rank.returncode == 0, talk
    with (run / "metrics.csv").open() as handle:
        return [(row["step"], float(row["loss"])) for row in csv.DictReader(handle)]


def started(words, environment, processes):
    """The ranks, told of each other as `torchrun` tells them; the store where they meet is held here until they end."""
    store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    told = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "TORCHELASTIC_RESTART_COUNT": 0}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    ranks = [{**told, "RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)] if processes > 1 else [{}]
    yield from [
        forked.Command(words, environment=environment | {key: str(value) for key, value in rank.items()})
        for rank in ranks
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "settings"),
    [
        ("torchrun", ["batches.size=9"]),
        (2, ["batches.size=8", "accumulate=2"]),
        (2, ["batches=all_pairs", "batches.size=17"]),
    ],
    ids=["pairs", "accumulated", "all-pairs"],
)
def test_two_processes_follow_one(hamlet, tmp_path, processes, settings):
    alone = train(tmp_path / "one", hamlet, tmp_path, 1, settings)
    together = train(tmp_path / "two", hamlet, tmp_path, processes, settings)
    assert [step for step, _ in alone] == [step for step, _ in together]
    np.testing.assert_allclose([v for _, v in together], [v for _, v in alone], rtol=1e-3, atol=1e-5)
    one, two = (PlaceModel.load(tmp_path / name / "last").state_dict() for name in ("one", "two"))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-2, atol=1e-3, msg=key)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(hamlet, tmp_path):
    settings = ["batches.size=8", "steps=40"]
    alone = train(tmp_path / "one", hamlet, tmp_path, 1, settings)
    words = ["train", "town_quick", "-o", str(tmp_path / "two"), "--data", str(hamlet), "--workers", "0"]
    words += [part for s in [*COMMON, *settings] for part in ("--set", s)]
    environment = os.environ | {"COVIS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    meeting = started(words, environment, 2)
    ranks = [next(meeting), next(meeting)]  # the store where they meet is held as long as `meeting` is
    ranks[0].wait_for("plan")
    for rank in ranks:
        rank.send_signal(signal.SIGTERM)
    for rank in ranks:
        rank.communicate()
    together = train(tmp_path / "two", hamlet, tmp_path, 1, settings)
    assert [step for step, _ in alone] == [step for step, _ in together]
    np.testing.assert_allclose([v for _, v in together], [v for _, v in alone], rtol=1e-3, atol=1e-5)


def test_a_step_is_the_same_on_one_two_and_four_ranks(tmp_path):
    """Live batch statistics, every kind of batch and loss: losses, weights and running statistics to rounding."""
    line = [sys.executable, str(Path(__file__).with_name("rank_steps.py")), str(tmp_path / "ranks")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    found = {world: [torch.load(tmp_path / f"ranks.{world}.{rank}") for rank in range(world)] for world in (1, 2, 4)}
    [alone] = found[1]
    for kind, state in alone.items():
        assert any("running_mean" in name for name in state)
        for other in (*found[2], *found[4]):
            torch.testing.assert_close(other[kind], state, rtol=2e-4, atol=1e-5)


RESTARTED = """
import os, torch.distributed as distributed
from covis.training.ranks import Ranks

store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

def rank(number, attempt):
    told = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": store.port}
    told |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": attempt}
    os.environ |= {key: str(value) for key, value in told.items()}
    agreed = Ranks.join().agree(number == 1)
    if attempt == 0:
        os.kill(os.getpid(), 9)
    os._exit(0 if agreed else 1)

for attempt in range(2):
    children = [os.fork() or rank(number, attempt) for number in range(2)]
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
"""


def test_ranks_meet_again_after_the_launcher_began_them_anew():
    """torchrun keeps one store over restarts, with the addresses of ranks that died."""
    found = subprocess.run([sys.executable, "-c", RESTARTED], capture_output=True, text=True, timeout=280, check=False)
    assert found.stdout.splitlines() == ["-9 -9", "0 0"], found.stderr
