"""Weights into a model: by timm's names, from files in several layouts, from another model.

A file's tensors are matched by name where the names say the same thing (our own, timm's, torchvision's, or the
numbered children of a `Sequential`), and by order where kinds and shapes of all tensors agree one by one.
"""

from __future__ import annotations

import inspect
import re
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from covis.core.errors import Damaged, InputError, WeightsMissing
from covis.core.files import read_sealed, sha256, write_json
from covis.core.machine import cache_folder
from covis.core.progress import say
from covis.models.backbones import VARIANTS, import_timm

if TYPE_CHECKING:
    from covis.models.place_model import PlaceModel

PRETRAINED = "pretrained"
UNPINNED = "unpinned"
"""`NAME:unpinned` takes what the hub has, whatever it is, and remembers its SHA-256 for the next time."""
PINS: dict[str, str] = {}
"""Repository of the model hub → SHA-256 of the one file that is taken from it, where covis knows it."""
_PINNED = "pins.json"
"""File in the cache folder: what `PINS` lacks and this machine's user has accepted."""
Tensors = dict[str, Tensor]

_HUB_FILE = "model.safetensors"
_CONNECT_TIMEOUT_S = 5.0

_WRAPPERS = ("state_dict", "model_state_dict", "model", "teacher", "student", "network")
_OUTER_NAMES = ("module.", "model.", "_orig_mod.", "encoder.", "net.")
_HEAD_NAMES = (
    "fc.",
    "classifier.",
    "head.",
    "head_dist.",
    "pre_logits.",
    "mask_token",
    "aggregator.",
    "aux",
    "avgpool.",
)


def fill(model: PlaceModel, weights: str) -> None:
    """Gives `model` the weights that `ModelConfig.weights` names."""
    word, _, pin = weights.partition(":")
    if word == PRETRAINED:
        path = _library_file(model.config.backbone, pin)
        load_backbone(model, read_tensors(path), f"pretrained {model.config.backbone}")
        model.card["weights"] = {"name": f"{model.config.backbone}, from timm", "sha256": sha256(path)}
        return
    path = Path(weights).expanduser()
    if path.suffix != ".safetensors":
        raise InputError(
            f"{path} is not a .safetensors file; turn it into a model first: "
            f"covis model import {path} --backbone {model.config.backbone} -o MODEL"
        )
    fill_from_file(model, path)


def fill_from_file(model: PlaceModel, path: Path) -> None:
    """Gives `model` the tensors of a .safetensors or (weights only) .pth file, and notes the file on its card."""
    state = read_tensors(path)
    exponent = state.pop("pool.p", None)
    load_backbone(model, state, str(path))
    if exponent is not None and hasattr(model.pool, "p"):
        model.pool.p.data = exponent.float().reshape(1).clone()
    model.card["weights"] = {"file": path.name, "sha256": sha256(path)}


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


def load_backbone(model: PlaceModel, state: Tensors, source: str) -> None:
    """Gives the model's backbone the tensors of `state`, by whatever names they have; heads are left out."""
    net = model.backbone.net
    wanted = net.state_dict()
    matched = _match(net, state, wanted)
    if matched is None:
        raise InputError(f"{source} does not fit backbone {model.config.backbone} ({_misfit(state, wanted)})")
    for name, value in matched.items():
        if wanted[name].is_floating_point() and not value.is_floating_point():
            raise InputError(
                f"{source}: {name} is stored as {value.dtype}, not as floating point; it is quantised or damaged"
            )
        if name.endswith("weight") and value.ndim > 1 and not bool(value.any()):
            raise InputError(f"{source}: {name} is all zeros: never trained, or damaged")
    net.load_state_dict({name: matched.get(name, value).to(value.dtype) for name, value in wanted.items()})


def _match(net: nn.Module, state: Tensors, wanted: Tensors) -> Tensors | None:
    for rename in _renamings(net, state):
        renamed = {rename(name): tensor for name, tensor in state.items()}
        if all(_fits(name, renamed, wanted) for name in wanted):
            return {name: renamed[name] for name in wanted if name in renamed}
    return _match_by_library(net, state, wanted) or _match_by_order(state, wanted)


def _fits(name: str, state: Tensors, wanted: Tensors) -> bool:
    if name not in state:
        return name.endswith("num_batches_tracked")
    return state[name].shape == wanted[name].shape


def _renamings(net: nn.Module, state: Tensors) -> Iterable[Callable[[str], str]]:
    """Ways to read a file's names as the network's own."""
    children = [name for name, _ in net.named_children()]

    def numbered(name: str) -> str:
        head, _, rest = name.removeprefix("backbone.").partition(".")
        return f"{children[int(head)]}.{rest}" if head.isdigit() and int(head) < len(children) else name

    yield lambda name: name
    yield lambda name: name.removeprefix("backbone.")
    yield lambda name: name.removeprefix("backbone.net.")
    yield lambda name: f"features.{name.removeprefix('backbone.')}"
    yield numbered
    yield lambda name: re.sub(r"\.(norm|conv)\.(\d)\.", r".\1\2.", name.removeprefix("backbone."))  # old DenseNets


def _match_by_order(state: Tensors, wanted: Tensors) -> Tensors | None:
    """Tensor by tensor, if every kind (last part of the name) and shape agrees; heads and counters left out."""
    given = [n for n in state if not n.startswith(_HEAD_NAMES) and not n.endswith("num_batches_tracked")]
    needed = [n for n in wanted if not n.endswith("num_batches_tracked")]
    if len(given) != len(needed):
        return None
    pairs = list(zip(given, needed, strict=True))
    same = (state[g].shape == wanted[n].shape and g.split(".")[-1] == n.split(".")[-1] for g, n in pairs)
    return {n: state[g] for g, n in pairs} if all(same) else None


def _match_by_library(net: nn.Module, state: Tensors, wanted: Tensors) -> Tensors | None:
    """Through timm's own converter for this family (transformers as their authors published them)."""
    convert = getattr(inspect.getmodule(type(net)), "checkpoint_filter_fn", None)
    if convert is None:
        return None
    try:
        converted = convert({name.removeprefix("backbone."): t.float() for name, t in state.items()}, net)
    except (KeyError, RuntimeError, AttributeError, ValueError, TypeError):
        return None
    fits = all(_fits(name, converted, wanted) for name in wanted)
    return {name: converted[name] for name in wanted if name in converted} if fits else None


def _misfit(state: Tensors, wanted: Tensors) -> str:
    missing = [name for name in wanted if name not in state and not name.endswith("num_batches_tracked")]
    if missing:
        return f"{len(missing)} of {len(wanted)} tensors are missing, the first {missing[0]!r}"
    name = next(n for n in wanted if n in state and state[n].shape != wanted[n].shape)
    return f"{name!r} is {tuple(state[name].shape)} there, {tuple(wanted[name].shape)} here"


def _library_file(name: str, pin: str) -> Path:
    """timm's weights for `name`: from its cache, else fetched into it.

    A .safetensors file runs no code, so one of unknown SHA-256 is taken; that is printed, and required from then on.
    """
    timm = import_timm()

    config = None if name in VARIANTS else timm.get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id:
        raise WeightsMissing(f"{name} has no pretrained weights in timm; give a file")
    try:
        return fetch(str(config.hf_hub_id), _HUB_FILE, pin or UNPINNED)
    except OSError as error:
        raise WeightsMissing(
            f"pretrained weights of {name} are not in the cache and cannot be fetched here ({error}); download "
            f"model.safetensors of {config.hf_hub_id} elsewhere and give it"
        ) from None


class Unpinned(InputError):  # noqa: N818 - a state of affairs, read as one
    """A file of the model hub whose SHA-256 is not known."""


def fetch(hub_id: str, file: str, pin: str = "") -> Path:
    """A file of the model hub with a known SHA-256: from its cache, else fetched into it.

    pin: the SHA-256, or `unpinned` for any; by default the one that covis or this machine knows. A file in the hub's
    cache counts as accepted. Raises `Unpinned` where no SHA-256 is known, `OSError` where the hub cannot be reached,
    `InputError` where the file has another SHA-256.
    """
    from huggingface_hub import try_to_load_from_cache

    if pin and pin != UNPINNED and not re.fullmatch(r"[0-9a-f]{64}", pin):
        raise InputError(f"{pin!r} is no SHA-256 (64 characters, 0 to 9 and a to f); give that, or `{UNPINNED}`")
    known = _pins().get(hub_id) or PINS.get(hub_id)
    wanted = known if pin in ("", UNPINNED) else pin
    cached = try_to_load_from_cache(hub_id, file)
    if not isinstance(cached, str):
        _reach()
        if wanted is None and pin != UNPINNED:
            raise Unpinned(f"the SHA-256 of {file} of {hub_id} is not known, so it is not taken unseen")
    path = Path(cached) if isinstance(cached, str) else _download(hub_id, file)
    digest = sha256(path)
    if wanted is not None and digest != wanted:
        raise InputError(
            f"{file} of {hub_id} has the SHA-256 {digest}, expected {wanted}; it was changed there or damaged here "
            f"({path}): delete it to fetch it again, or give the weights as a file"
        )
    if known is None:
        write_json(cache_folder() / _PINNED, {**_pins(), hub_id: digest})
        say(f"{hub_id}: {file} has the SHA-256 {digest}, which later downloads must match")
    return path


def _pins() -> dict[str, str]:
    """Repository → SHA-256 that this machine's user accepted before."""
    file = cache_folder() / _PINNED
    if not file.is_file():
        return {}
    pins, sealed = read_sealed(file, f"delete {file}, and compare the SHA-256 that the next download says")
    if not sealed or not isinstance(pins, dict):
        raise Damaged(
            f"{file} is damaged (no checksum); delete it, and compare the SHA-256 that the next download says"
        )
    return {str(k): str(v) for k, v in pins.items()}


def _reach() -> None:
    """Raises `OSError` where the hub cannot be reached."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise OSError("offline mode")
    address = urlsplit(constants.ENDPOINT)
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    if not getproxies():  # behind a proxy only the proxy can tell; elsewhere the hub's client would retry for a minute
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()


def fetch_revision(hub_id: str, file: str, revision: str | None) -> Path:
    """A file of the model hub at a commit, tag or branch: from its cache, else fetched; `OSError` as in `fetch`.

    Its content is for the caller to check, unless the revision is a commit, which pins it.
    """
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(hub_id, file, revision=revision)
    if isinstance(cached, str):
        return Path(cached)
    _reach()
    return _download(hub_id, file, revision)


def _download(hub_id: str, file: str, revision: str | None = None) -> Path:
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, file, revision=revision))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise OSError(" ".join(str(error).split())[:120]) from None
