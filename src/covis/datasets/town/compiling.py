"""How the town's kernels are compiled: free of the interpreter's lock, and once for each state of their sources."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def _folder() -> Path:
    """Where compiled kernels are kept; another one for any change in any source of this package."""
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(here.glob("*.py"))))
    return here / "__pycache__" / f"kernels-{digest.hexdigest()[:12]}"


def kernel(function: F) -> F:
    """Compiles `function`. numba's own cache misses changes in functions called from other files; ours does not.

    Where the folder cannot be written, numba falls back on the user's cache.
    """
    settings: Any = numba.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(_folder())
    try:
        compiled: Any = numba.njit(
            cache=True,
            nogil=True,
            error_model="numpy",  # no test for division by zero on every division
            fastmath={"contract", "arcp", "nsz", "reassoc"},  # infinities and NaN keep their meaning
        )(function)
    finally:
        settings.CACHE_DIR = before
    return cast(F, compiled)
