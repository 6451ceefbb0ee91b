"""How the town's kernels are compiled: once, kept on disk, free of the interpreter's lock."""

from __future__ import annotations

from numba import njit

kernel = njit(
    cache=True,
    nogil=True,
    error_model="numpy",  # no test for division by zero on every division
    fastmath={"contract", "arcp", "nsz", "reassoc"},  # infinities and NaN keep their meaning
)
