"""How numeric kernels are compiled: once per version of their package's sources, not at each start."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from covis.core.progress import warn

try:
    numba: Any = importlib.import_module("numba")
except ImportError:  # not part of the core: it is as large as all the rest
    numba = None

_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(**options: Any) -> Callable[[_F], _F]:
    """A decorator like `numba.njit(cache=True, nogil=True, error_model="numpy", **options)`.

    numba's own cache overlooks changes in functions called from other files; this one is keyed by every source of the
    function's package. If its folder is not writable, numba keeps its files in the user's cache folder; if
    there is none either, kernels are compiled at each start. Without numba, kernels run as plain Python.
    """

    def decorate(function: _F) -> _F:
        if numba is None:
            return _interpreted(function)
        settings: Any = numba.config
        before = settings.CACHE_DIR
        settings.CACHE_DIR = before or _folder(Path(function.__code__.co_filename).parent)
        compile_ = functools.partial(numba.njit, **{"nogil": True, "error_model": "numpy", **options})
        try:
            return cast(_F, compile_(cache=True)(function))
        except RuntimeError:  # no place for a cache
            return cast(_F, compile_(cache=False)(function))
        finally:
            settings.CACHE_DIR = before

    return decorate


def _interpreted(function: _F) -> _F:
    """The function as it is, with numpy's rules for division; its first call says what would be faster."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        _tell_slow()
        with np.errstate(all="ignore"):
            return function(*args)

    return cast(_F, run)


@functools.cache
def _tell_slow() -> None:
    warn("labels are computed in plain Python, about 100 times slower; pip install 'covis[labels]' compiles them")


@functools.cache
def _folder(package: Path) -> str:
    """The folder of a package's compiled kernels; any change in the package's sources gives another folder."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(package.glob("*.py"))))
    return str(package / "__pycache__" / f"kernels-{digest.hexdigest()[:12]}")
