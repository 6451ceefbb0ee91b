"""Weights into a model: by timm's names, from files in several layouts, from another model.

A file's tensors are matched by name where the names say the same thing (our own, timm's, torchvision's, or the
numbered children of a `Sequential`), and by order where kinds and shapes of all tensors agree one by one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from covis.core.errors import InputError, WeightsMissing
from covis.core.files import sha256
from covis.models.backbones import VARIANTS
from covis.models.hub import fetch, hub_address
from covis.models.library import import_timm
from covis.models.tensor_files import Tensors, read_tensors

if TYPE_CHECKING:
    from covis.models.place_model import PlaceModel

PRETRAINED = "pretrained"
_HUB_FILE = "model.safetensors"
_HEADS = re.compile(r"(.*\.)?((fc|classifier|head\w*|\w+_head|pre_logits|aux\w*|avgpool)\..*|mask_token)")
"""Names of tensors that only training or classifying needs: a place model leaves them out."""
_COUNTER = "num_batches_tracked"
"""End of the names of BatchNorm's counters, which no output depends on."""


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
    exponent = state.pop("pool.p", None) if hasattr(model.pool, "p") else None
    unused = [name for name in load_backbone(model, state, str(path)) if not _HEADS.fullmatch(name)]
    config = model.config
    whole = config.final_norm and config.facet == "token" and not (config.blocks or config.levels)
    if unused and whole:
        raise InputError(
            f"{path}: {unused[0]!r} has no place in {model.config.backbone} with {model.config.pool}; give the other "
            "--backbone and --pool that it belongs to, or --published NAME (covis list models)"
        )
    if exponent is not None:
        model.pool.p.data = exponent.float().reshape(1).clone()
    model.card["weights"] = {"file": path.name, "sha256": sha256(path)}


def load_backbone(model: PlaceModel, state: Tensors, source: str) -> list[str]:
    """Gives the model's backbone the tensors of `state`, by whatever names they have; returns the names left over."""
    net = model.backbone.net
    wanted = net.state_dict()
    state = {name: tensor for name, tensor in state.items() if not name.endswith(_COUNTER)}
    found = _match(net, state, wanted)
    if found is None:
        raise InputError(f"{source} does not fit backbone {model.config.backbone} ({_misfit(state, wanted)})")
    matched, unused = found
    for name, value in matched.items():
        if wanted[name].is_floating_point() and not value.is_floating_point():
            raise InputError(
                f"{source}: {name} is stored as {value.dtype}, not as floating point; it is quantised or damaged"
            )
        if name.endswith("weight") and value.ndim > 1 and not bool(value.any()):
            raise InputError(f"{source}: {name} is all zeros: never trained, or damaged")
    net.load_state_dict({name: matched.get(name, value).to(value.dtype) for name, value in wanted.items()})
    return unused


Matched = tuple[Tensors, list[str]]
"""The network's tensors by its own names, and the names in the file that none of them came from."""


def _match(net: nn.Module, state: Tensors, wanted: Tensors) -> Matched | None:
    for rename in _renamings(net, state):
        renamed = {rename(name): tensor for name, tensor in state.items()}
        if all(_fits(name, renamed, wanted) for name in wanted):
            unused = [name for name in state if rename(name) not in wanted]
            return {name: renamed[name] for name in wanted if name in renamed}, unused
    return _match_by_library(net, state, wanted) or _match_by_order(state, wanted)


def _fits(name: str, state: Tensors, wanted: Tensors) -> bool:
    if name not in state:
        return name.endswith(_COUNTER)
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


def _match_by_order(state: Tensors, wanted: Tensors) -> Matched | None:
    """Tensor by tensor, if every kind (last part of the name) and shape agrees; heads and counters left out."""
    given = [n for n in state if not _HEADS.fullmatch(n)]
    needed = [n for n in wanted if not n.endswith(_COUNTER)]
    if len(given) != len(needed):
        return None
    pairs = list(zip(given, needed, strict=True))
    same = (state[g].shape == wanted[n].shape and g.split(".")[-1] == n.split(".")[-1] for g, n in pairs)
    return ({n: state[g] for g, n in pairs}, [n for n in state if n not in given]) if all(same) else None


def _match_by_library(net: nn.Module, state: Tensors, wanted: Tensors) -> Matched | None:
    """Through timm's own converter for this family (transformers as their authors published them)."""
    convert = getattr(inspect.getmodule(type(net)), "checkpoint_filter_fn", None)
    if convert is None:
        return None

    def converted(names: Iterable[str]) -> Tensors | None:
        try:
            tensors: Tensors = convert({name.removeprefix("backbone."): whole[name] for name in names}, net)
        except (KeyError, RuntimeError, AttributeError, ValueError, TypeError):
            return None
        return tensors if all(_fits(name, tensors, wanted) for name in wanted) else None

    whole = {name: tensor.float() for name, tensor in state.items()}
    tensors = converted(whole)
    if tensors is None:
        return None
    doubtful = [name for name in whole if name.removeprefix("backbone.") not in wanted]
    unused = [name for name in doubtful if converted(n for n in whole if n != name) is not None]
    return {name: tensors[name] for name in wanted if name in tensors}, unused


def _misfit(state: Tensors, wanted: Tensors) -> str:
    missing = [name for name in wanted if name not in state and not name.endswith(_COUNTER)]
    if missing:
        return f"{len(missing)} of {len(wanted)} tensors are missing, the first {missing[0]!r}"
    name = next(n for n in wanted if n in state and state[n].shape != wanted[n].shape)
    return f"{name!r} is {tuple(state[name].shape)} there, {tuple(wanted[name].shape)} here"


def _library_file(name: str, pin: str) -> Path:
    """timm's weights for `name`: from its cache, else fetched into it."""
    timm = import_timm()

    config = None if name in VARIANTS else timm.get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id:
        raise WeightsMissing(f"{name} has no pretrained weights in timm; give a file")
    try:
        return fetch(str(config.hf_hub_id), _HUB_FILE, pin, str(config.license or ""))
    except OSError as error:
        raise WeightsMissing(
            f"pretrained weights of {name} are not in the cache and cannot be fetched here ({error}); download "
            f"{hub_address(str(config.hf_hub_id), _HUB_FILE)} elsewhere and give it"
        ) from None
