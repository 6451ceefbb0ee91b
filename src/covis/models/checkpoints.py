"""Checkpoints of published models: their state dict in, their descriptors out; read as weights alone, never run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covis.core.errors import InputError
from covis.core.files import sha256
from covis.core.machine import cache_folder, weights_folder
from covis.models import weights
from covis.models.downloads import download
from covis.models.hub import fetch, hub_address
from covis.models.pins import check_pinned, wanted_sha256
from covis.models.published import PUBLISHED, PublishedModel, published_folder
from covis.models.tensor_files import Tensors, read_centres, read_tensors
from covis.whitening import Whitening

if TYPE_CHECKING:
    from covis.models.place_model import PlaceModel

_PARALLEL = re.compile(r"(^|\.)module\.")
"""In names of tensors: saved from a network, or a part of it, on several GPUs."""
_SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".torch")


def find_published(name: str, file: Path | None = None) -> tuple[PublishedModel, Path]:
    """The published model `name`, and its checkpoint: `file`, or what `machine.weights_folder` or the hub has.

    `NAME:SHA256` says which file is taken, see `covis.models.pins`.
    """
    name, _, pin = name.partition(":")
    entry = PUBLISHED[name]
    return entry, _find_checkpoint(entry, pin) if file is None else file


def fill_published(model: PlaceModel, entry: PublishedModel, path: Path, weights_file: str = "") -> PlaceModel:
    """Gives `model`, of the architecture of `entry`, the tensors of a checkpoint; returns it.

    weights_file: the backbone's weights, if the checkpoint is only a vocabulary; timm's own without it.
    """
    if entry.vocabulary:
        _load_pool(model, entry, {"centres": read_centres(path)}, path)
        if weights_file:
            weights.fill_from_file(model, Path(weights_file).expanduser())
        else:
            weights.fill(model, weights.PRETRAINED)
        origin = model.card["weights"]
    else:
        if weights_file:
            raise InputError(f"{entry.name} has its backbone's weights in {path}; leave --weights out")
        _load_whole(model, entry, path)
        origin = {}
    model.card |= {
        "weights": {"file": path.name, "sha256": sha256(path), "published": entry.name}
        | ({"backbone": origin} if origin else {}),
        "paper": entry.paper,
        "licence": entry.licence,
    }
    return model.eval()


def _load_whole(model: PlaceModel, entry: PublishedModel, path: Path) -> None:
    """Backbone, pooling and projection from one checkpoint, of which every tensor is used or refused."""
    state = {_PARALLEL.sub(r"\1", name): tensor for name, tensor in read_tensors(path, plain=False).items()}
    state = {n: t for n, t in state.items() if not any(re.fullmatch(p, n) for p in entry.unused)}
    prefixes = (entry.backbone,) if isinstance(entry.backbone, str) else entry.backbone
    prefix = next((p for p in prefixes if any(name.startswith(p) for name in state)), prefixes[0])
    parts: dict[str, Tensors] = {prefix: {}, entry.pool: {}, entry.whitening: {}, "": {}}
    for name, tensor in state.items():
        part = max((p for p in parts if name.startswith(p)), key=len)
        parts[part][name.removeprefix(part)] = tensor
    backbone = _renamed(parts[prefix], entry.backbone_names, others=True)
    theirs = dict(zip(backbone, parts[prefix], strict=True))
    _refuse([theirs[name] for name in weights.load_backbone(model, backbone, str(path))], prefix, entry, path)
    pooling = _renamed(parts[entry.pool], entry.pool_names)
    known = [name for name in parts[entry.pool] if any(re.fullmatch(p, name) for p in entry.pool_names)]
    _refuse([name for name in parts[entry.pool] if name not in known], entry.pool, entry, path)
    _load_pool(model, entry, pooling, path)
    if entry.whitening and (projection := parts[entry.whitening]):
        _refuse([name for name in projection if name not in ("weight", "bias")], entry.whitening, entry, path)
        if len(projection) < 2:
            raise InputError(f"{path} is not a checkpoint of {entry.name}: {entry.whitening} needs weight and bias")
        model.whiten(_projection(projection["weight"], projection["bias"], entry.name))
    if "" not in (prefix, entry.pool):
        _refuse(list(parts[""]), "", entry, path)


def _refuse(unused: list[str], prefix: str, entry: PublishedModel, path: Path) -> None:
    """A tensor that ours has no place for would change every descriptor if it were dropped."""
    if unused:
        raise InputError(
            f"{path}: {prefix + min(unused)!r} has no place in {entry.name}, and leaving it out would give other "
            "descriptors; check that the file is of this model"
        )


def _load_pool(model: PlaceModel, entry: PublishedModel, state: Tensors, path: Path) -> None:
    wanted = model.pool.state_dict()
    state = {name: torch.zeros_like(wanted[name]) for name in entry.absent if name in wanted} | state
    lacking = sorted(wanted.keys() - state.keys())
    if lacking:
        raise InputError(
            f"{path} is not a checkpoint of {entry.name}: it lacks the pooling's {lacking[0]!r}; check the file"
        )
    for name, tensor in wanted.items():
        if state[name].numel() != tensor.numel():
            raise InputError(
                f"{path}: {name!r} of the pooling is {tuple(state[name].shape)} there, {tuple(tensor.shape)} in "
                f"{entry.name}; check the file"
            )
    model.pool.load_state_dict({name: state[name].reshape(wanted[name].shape).float() for name in wanted})


def _projection(weight: Tensor, bias: Tensor, name: str) -> Whitening:
    """A layer W·z + b, whose result is scaled to unit length, as a whitening: W·(z − m), where W·m = −b."""
    matrix = weight.flatten(1).double()
    mean = -torch.linalg.lstsq(matrix @ matrix.T, bias.double().unsqueeze(1)).solution.T @ matrix
    facts = {"fit": "published", "published": name}
    return Whitening(mean[0].numpy(), matrix.T.contiguous().numpy(), facts=facts)


def _renamed(state: Tensors, names: Mapping[str, str], *, others: bool = False) -> Tensors:
    """The tensors, renamed by the first pattern that fits; names that none fits are kept if `others`, else left out."""
    renamed = {}
    for name, tensor in state.items():
        pattern = next((p for p in names if re.fullmatch(p, name)), None)
        if pattern is not None:
            renamed[re.sub(pattern, names[pattern], name)] = tensor
        elif others:
            renamed[name] = tensor
    return renamed


def _find_checkpoint(entry: PublishedModel, pin: str) -> Path:
    """The checkpoint in the cache, or fetched from where its authors put it."""
    folder = weights_folder()
    for suffix in _SUFFIXES:
        if (folder / f"{entry.name}{suffix}").is_file():
            return folder / f"{entry.name}{suffix}"
    try:
        if entry.hub is not None:
            return fetch(*entry.hub, pin, entry.licence)
        if entry.address:
            return _fetch_address(entry, pin)
    except OSError as error:
        place = entry.address if entry.hub is None else hub_address(*entry.hub)
        raise InputError(
            f"the checkpoint of {entry.name} is not in {folder} and cannot be fetched here ({error}); download {place} "
            "elsewhere and give it by --weights FILE"
        ) from None
    raise InputError(
        f"the checkpoint of {entry.name} is not in {folder} and has no address to fetch it from; get it from "
        f"{entry.source} and give it by --weights FILE"
    )


def _fetch_address(entry: PublishedModel, pin: str) -> Path:
    """The checkpoint from its address, compared with its SHA-256 if one is known."""
    if wanted_sha256(entry.address, pin) is None and entry.address.startswith("http:"):
        raise OSError(f"the connection would not be encrypted: say {entry.name}:SHA256 to have the file compared")
    file = _downloads() / f"{entry.name}{Path(entry.address).suffix}"
    check_pinned(entry.address, download(entry.address, file, entry.licence), pin)
    return file


def _downloads() -> Path:
    return cache_folder() / "downloads"


def keep_published(model: PlaceModel, name: str, checkpoint: Path) -> None:
    """Writes the model folder of a fetched model, in whose place a downloaded checkpoint is no longer needed."""
    model.save(published_folder(name), replace=True)
    if checkpoint.parent == _downloads():
        checkpoint.unlink()
