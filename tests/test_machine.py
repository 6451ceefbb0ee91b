"""What the machine offers: large blocks of memory are kept by the process, waiting threads sleep."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from covis.core.machine import keep_large_blocks

LOOP = """
import ctypes, resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # pages of 4 kB (PR_SET_THP_DISABLE): a machine with huge ones counts few faults
{setup}
start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    b"1" * (32 << 20)  # 32 MB, written and freed; numpy would ask for huge pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
"""


def faults(setup):
    code = LOOP.format(setup=setup)
    return int(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    )


@pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="only glibc has these settings"
)
def test_large_blocks_are_allocated_once():
    plain, kept = faults(""), faults("from covis.core.machine import keep_large_blocks; assert keep_large_blocks()")
    assert kept < plain / 4


def test_a_c_library_that_takes_smaller_blocks_keeps_these(monkeypatch):
    """As glibc did before 2.35."""
    settings = {}

    def mallopt(name, size):
        taken = name != -3 or size <= 32 << 20
        settings.update({name: size} if taken else {})
        return int(taken)

    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    assert keep_large_blocks()
    assert settings == {-3: 32 << 20, -1: (1 << 31) - 1}


@pytest.mark.skipif(sys.platform != "linux", reason="torch has its own threads on other systems")
def test_threads_that_wait_sleep_unless_the_user_says_otherwise():
    def policy(**given):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | {"OMP_DISPLAY_ENV": "TRUE"}
        code = "import covis.models, torch; torch.rand(1 << 18).sum()"
        run = [sys.executable, "-c", code]
        told = subprocess.run(
            run, capture_output=True, text=True, check=True, timeout=120, env=environment | given
        ).stderr
        return next(line.split("'")[1] for line in told.splitlines() if "OMP_WAIT_POLICY" in line)

    assert policy() == "PASSIVE"
    assert policy(OMP_WAIT_POLICY="active") == "ACTIVE"
