"""timm, and torchvision in working order, which it needs."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import torch


@functools.cache
def import_torchvision() -> Any:
    """Imports torchvision, which timm needs, also where it was built for another torch than the installed one.

    A CUDA build beside a CPU torch registers no operators and then fails on its own `nms`; declaring the two that it
    asks for lets everything else work. Returns what holds the declarations, which the cache keeps alive.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]  # the half-imported package
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
    return library


def import_timm() -> Any:
    """The package timm, with torchvision in working order."""
    import_torchvision()
    return importlib.import_module("timm")
