"""The other side of `_common.Apart`: makes the work of `MODULE FUNCTION ARGUMENT…` and does it once for each line on stdin.

It answers with CPU seconds. `prepare_process` is not called here: memory is allocated as in any other program.
"""

import importlib
import sys

from _common import seconds

if __name__ == "__main__":
    _, module, function, *arguments = sys.argv
    work = getattr(importlib.import_module(module), function)(*arguments)
    for _ in sys.stdin:
        print(seconds(work)[0], flush=True)
