"""Lets timm import torchvision where torchvision's compiled operators do not fit the installed torch.

timm takes only Python code from torchvision (transforms, model layouts). A torchvision built for another torch
refuses the import, because two of its operators are not there; declared without a body they cost nothing, and the
import goes through. Where the plain import works, nothing is declared.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import torch

_MISSING_OPERATORS = ("nms", "qnms")


@functools.cache
def ensure() -> Any:
    """Makes `import torchvision` work; the cached result keeps the declarations alive."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    else:
        return None
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]  # the half-imported package
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in _MISSING_OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
    return library
