"""Two gloo processes train as one: same batches, same loss curve."""

import csv
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from covis.models import PlaceModel

COMMON = [
    "model.image_size=[32,32]", "optimiser.name=sgd", "model.batchnorm=frozen", "steps=8", "validations=1", "cache_gb=0.5",
    "optimiser.learning_rate=0.01",
]  # fmt: skip


def train(run, hamlet, tmp_path, processes, settings):
    verb = ["-m", "covis", "train", "town_quick", "-o", str(run), "--data", str(hamlet), "--workers", "0"]
    options = [part for s in [*COMMON, *settings] for part in ("--set", s)]
    launch = [sys.executable]
    if processes > 1:
        launch += [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(processes),
            "--master-port",
            "0",
            "--standalone",
        ]
    environment = os.environ | {"COVIS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *verb, *options], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    with (run / "metrics.csv").open() as handle:
        return [(row["step"], float(row["loss"])) for row in csv.DictReader(handle)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["batches.size=9"],
        ["batches.size=8", "accumulate=2"],
        ["batches=all_pairs", "batches.size=17"],
    ],
    ids=["pairs", "accumulated", "all-pairs"],
)
def test_two_processes_follow_one(hamlet, tmp_path, settings):
    alone = train(tmp_path / "one", hamlet, tmp_path, 1, settings)
    together = train(tmp_path / "two", hamlet, tmp_path, 2, settings)
    assert [step for step, _ in alone] == [step for step, _ in together]
    np.testing.assert_allclose([v for _, v in together], [v for _, v in alone], rtol=1e-3, atol=1e-5)
    one, two = (PlaceModel.load(tmp_path / name / "last").state_dict() for name in ("one", "two"))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-2, atol=1e-3, msg=key)


RESTARTED = """
import os, torch.distributed as distributed
from covis.training.loop import Ranks

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
    found = subprocess.run([sys.executable, "-c", RESTARTED], capture_output=True, text=True, timeout=240, check=False)
    assert found.stdout.splitlines() == ["-9 -9", "0 0"], found.stderr
