"""How the town's kernels are compiled."""

from __future__ import annotations

from typing import Any

_FAST = {"contract", "arcp", "nsz", "reassoc"}
"""Liberties the compiler may take; infinities and NaN keep their meaning."""
ENTRY: dict[str, Any] = {"fastmath": _FAST}
"""Kernels that Python calls."""
INNER: dict[str, Any] = {"fastmath": _FAST, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Kernels that only kernels call. Nothing is allocated there, so arrays need no reference counts: three times faster."""
