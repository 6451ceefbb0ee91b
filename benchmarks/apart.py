"""The other side of `_common.Apart`: makes the work of `MODULE FUNCTION ARGUMENT…` and does it once for each line on stdin.

It answers with CPU seconds. The parts of covis that the benchmark imports leave the C library's allocator as it is.
"""

import importlib
import sys

from _common import seconds

from covis.core import machine

machine.keep_large_blocks = lambda: False  # before covis.models calls it

if __name__ == "__main__":
    _, module, function, *arguments = sys.argv
    work = getattr(importlib.import_module(module), function)(*arguments)
    for _ in sys.stdin:
        print(seconds(work)[0], flush=True)
