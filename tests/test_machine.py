"""A process of covis is set up in one place; importing covis changes nothing in the process of others."""

import os
import pkgutil
import platform
import subprocess
import sys

import pytest

import covis

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
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=280).stdout
    )


GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
PREPARE = "from covis.core.machine import prepare_process; prepare_process()"
PACKAGES = sorted(f"covis.{m.name}" for m in pkgutil.iter_modules(covis.__path__) if m.name != "__main__")


@pytest.mark.skipif(not GLIBC, reason="only glibc has these settings")
def test_large_blocks_are_kept_in_a_process_of_covis_and_not_in_others():
    plain, kept, imported = faults(""), faults(PREPARE), faults("import covis.models.place_model")
    assert kept < plain / 4
    assert imported > plain / 2


def test_importing_any_package_leaves_environment_signals_and_compiler_alone():
    code = (
        "import importlib, os, signal, sys\n"
        "def state(): return dict(os.environ), [signal.getsignal(s) for s in sorted(signal.valid_signals())]\n"
        "before = state()\n"
        f"for name in {PACKAGES}: importlib.import_module(name)\n"
        "assert state() == before\n"
        "assert not [n for n, m in sys.modules.items() if n.startswith('torch._dynamo') and not hasattr(m, '__file__')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)


@pytest.mark.skipif(sys.platform != "linux", reason="torch has its own threads on other systems")
def test_waiting_threads_sleep_unless_the_user_says_otherwise():
    def policy(**given):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | {"OMP_DISPLAY_ENV": "TRUE"}
        code = f"{PREPARE}; import torch; torch.rand(1 << 18).sum()"
        run = [sys.executable, "-c", code]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=280, env=environment | given)
        return next(line.split("'")[1] for line in done.stderr.splitlines() if "OMP_WAIT_POLICY" in line)

    assert policy() == "PASSIVE"
    assert policy(OMP_WAIT_POLICY="active") == "ACTIVE"
