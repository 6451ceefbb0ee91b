"""What the machine offers: large blocks of memory are kept by the process."""

import platform
import subprocess
import sys

import pytest

LOOP = """
import resource, sys
{setup}
import numpy as np
for _ in range(40):
    np.ones(4 << 20)  # 32 MB, allocated and freed
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(setup):
    code = LOOP.format(setup=setup)
    return int(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_large_blocks_are_allocated_once():
    plain, kept = faults(""), faults("from covis.machine import keep_large_blocks; assert keep_large_blocks()")
    assert kept < plain / 4
