"""Files of tensors: read as weights alone, checked, without the wrappings that training scripts put around them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from covis.core.errors import InputError

Tensors = dict[str, Tensor]

_WRAPPERS = ("state_dict", "model_state_dict", "model", "teacher", "student", "network")
_OUTER_NAMES = ("module.", "model.", "_orig_mod.", "encoder.", "net.")


def read_tensors(path: Path, *, plain: bool = True) -> Tensors:
    """The tensors of a file by name, without the wrappings that training scripts put around them.

    With `plain`, a prefix that all names have, such as `module.`, is removed.
    """
    state = _unwrap(_content(path), path)
    _check_tensors(state, path)
    return _plain_names(state) if plain else state


def _content(path: Path) -> Any:
    """What a file holds, except code; plain numpy numbers and arrays, which training scripts write, are allowed."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a .safetensors or .pth file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(_numpy_globals()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file ({error}); download it again") from None
    except Exception as error:  # torch raises many kinds for files that are broken or would run code
        cause = re.split(r"(?<=[.:;]) ", " ".join(str(error).split()))[0].rstrip(".:;")[:120]
        raise InputError(f"{path} holds more than weights or is damaged, and was not loaded ({cause})") from None


def _numpy_globals() -> list[Any]:
    """What unpickling numpy arrays and numbers calls, under the names of today and of older files."""
    from numpy._core import multiarray

    parts: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.float64)), type(np.dtype(np.float32))]
    parts += [type(np.dtype(np.int64)), multiarray._reconstruct, multiarray.scalar]
    old = [(getattr(multiarray, name), f"numpy.core.multiarray.{name}") for name in ("_reconstruct", "scalar")]
    return [*parts, *old]


def read_centres(path: Path) -> Tensor:
    """The one matrix that a file holds, such as a vocabulary's centres."""
    content = _content(path)
    tensors = [content] if isinstance(content, Tensor) else list(content.values()) if isinstance(content, dict) else []
    if len(tensors) != 1 or not isinstance(tensors[0], Tensor) or tensors[0].ndim != 2:
        raise InputError(f"{path} holds no single matrix of centres; give the vocabulary's c_centers.pt")
    _check_tensors({"centres": tensors[0]}, path)
    return tensors[0].float()


def _check_tensors(state: Tensors, path: Path) -> None:
    """Refuses tensors that no network computes with: sparse ones and values that are not finite; names must be text."""
    for name, tensor in state.items():
        if not isinstance(name, str):
            raise InputError(f"{path} names a tensor {name!r}; names are text: is this a state dict?")
        if tensor.layout != torch.strided:
            raise InputError(f"{path}: {name} is sparse; store dense tensors")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{path}: {name} has values that are not finite; train or download it again")


def _unwrap(content: Any, path: Path) -> Tensors:
    for _ in range(4):
        if not isinstance(content, dict):
            break
        tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
        if len(tensors) > 1:
            return tensors
        inner = [content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)]
        if not inner:
            break
        content = inner[0]
    raise InputError(f"{path} holds no table of tensors; it needs a state dict, alone or under {_WRAPPERS[0]!r}")


def _plain_names(state: Tensors) -> Tensors:
    for _ in range(3):
        for outer in _OUTER_NAMES:
            if all(name.startswith(outer) for name in state):
                state = {name.removeprefix(outer): tensor for name, tensor in state.items()}
    return state
