"""Models that others published: their architecture in covis's words, their state dict in, their descriptors out.

Nothing is bundled. A checkpoint is a file that the user fetches where its authors put it (`source`), or that the hub of
models has under a known name; it is read as weights alone and never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covis.errors import InputError
from covis.files import sha256
from covis.machine import weights_folder
from covis.models import weights
from covis.models.config import ModelConfig
from covis.registry import Registry
from covis.whitening import Whitening

if TYPE_CHECKING:
    from covis.models.place_model import PlaceModel

State = dict[str, Tensor]
_DINOV2 = "vit_base_patch14_dinov2"
_SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".torch")


@dataclass(frozen=True)
class PublishedModel:
    """A system that others trained."""

    name: str
    config: ModelConfig
    backbone: str
    """What the checkpoint's names of backbone tensors begin with."""
    pool: str
    """What its names of pooling tensors begin with."""
    pool_names: Mapping[str, str]
    """Their names of pooling tensors (patterns of whole names) → ours."""
    paper: str
    licence: str
    source: str
    """Where its authors put the checkpoint."""
    hub: tuple[str, str] | None = None
    """(repository, file) on the model hub, where it is there."""
    absent: tuple[str, ...] = ()
    """Pooling tensors of ours that theirs does not have; they are zero."""
    whitening: str = ""
    """What its names of a linear projection after the pooling begin with; a checkpoint may leave it out."""


PUBLISHED: Registry[PublishedModel] = Registry("published model")


def find(name: str, file: Path | None = None) -> tuple[PublishedModel, Path]:
    """The published model `name`, and its checkpoint: `file`, or what `machine.weights_folder` or the hub has.

    `NAME:SHA256` and `NAME:unpinned` say which file of the hub is taken, see `covis.models.weights.fetch`.
    """
    name, _, pin = name.partition(":")
    entry = PUBLISHED[name]
    return entry, _kept(entry, pin) if file is None else file


def fill(model: PlaceModel, entry: PublishedModel, path: Path) -> PlaceModel:
    """Gives `model`, of the architecture of `entry`, the tensors of a checkpoint; returns it."""
    state = weights.read(path, plain=False)
    backbone = {name.removeprefix(entry.backbone): t for name, t in state.items() if name.startswith(entry.backbone)}
    weights.load_backbone(model, backbone, str(path))
    theirs = {name.removeprefix(entry.pool): t for name, t in state.items() if name.startswith(entry.pool)}
    _load_pool(model, entry, _renamed(theirs, entry.pool_names), path)
    if entry.whitening and f"{entry.whitening}weight" in state:
        model.whiten(_projection(state[f"{entry.whitening}weight"], state[f"{entry.whitening}bias"], entry.name))
    model.card |= {
        "weights": {"file": path.name, "sha256": sha256(path), "published": entry.name},
        "paper": entry.paper,
        "licence": entry.licence,
    }
    return model.eval()


def _load_pool(model: PlaceModel, entry: PublishedModel, state: State, path: Path) -> None:
    wanted = model.pool.state_dict()
    state |= {name: torch.zeros_like(wanted[name]) for name in entry.absent if name in wanted}
    lacking = sorted(wanted.keys() - state.keys())
    if lacking:
        raise InputError(
            f"{path} is no checkpoint of {entry.name}: it lacks the pooling's {lacking[0]!r}; check the file"
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


def _renamed(state: State, names: Mapping[str, str]) -> State:
    renamed = {}
    for name, tensor in state.items():
        for pattern, ours in names.items():
            if re.fullmatch(pattern, name):
                renamed[re.sub(pattern, ours, name)] = tensor
                break
    return renamed


def _kept(entry: PublishedModel, pin: str) -> Path:
    """The checkpoint in the cache, or fetched from the hub where it is there."""
    folder = weights_folder()
    for suffix in _SUFFIXES:
        if (folder / f"{entry.name}{suffix}").is_file():
            return folder / f"{entry.name}{suffix}"
    reason = ""
    if entry.hub is not None:
        try:
            return weights.fetch(*entry.hub, pin)
        except weights.Unpinned as error:
            raise InputError(
                f"{error}: say {entry.name}:SHA256 with the one that its page lists, or {entry.name}:unpinned to take "
                "what is there"
            ) from None
        except OSError as error:
            reason = f" and cannot be fetched here ({error})"
    raise InputError(
        f"the checkpoint of {entry.name} is not in {folder}{reason}; get it from {entry.source}, then: "
        f"covis model import FILE --published {entry.name} -o MODEL"
    )


def _register(entries: Iterable[PublishedModel]) -> None:
    for entry in entries:
        PUBLISHED.register(entry.name)(entry)


_MEAN_NAMES = {r"1\.p": "mean.p", r"3\.(weight|bias)": r"linear.\1"}
_COSPLACE = "Berton, Masone, Caputo: Rethinking Visual Geo-localization for Large-Scale Applications, CVPR 2022"
_EIGENPLACES = "Berton, Trivigno, Caputo, Masone: EigenPlaces, ICCV 2023"
_NETWORKS = {"resnet18": (256, 512), "resnet50": (128, 256, 512, 2048), "resnet101": (128, 256, 512, 2048)}


def _projected_means(name: str, paper: str, source: str) -> Iterable[PublishedModel]:
    """CosPlace's and EigenPlaces' networks: one architecture, names such as `cosplace_resnet50_512`."""
    for network, dims in _NETWORKS.items():
        for dim in dims:
            config = ModelConfig(network, f"gemfc{dim}", (480, 640))
            yield PublishedModel(
                f"{name}_{network}_{dim}", config, "backbone.", "aggregation.", _MEAN_NAMES, paper, "MIT", source
            )


_SALAD_NAMES = {
    r"cluster_features\.0\.(.*)": r"content.0.\1",
    r"cluster_features\.3\.(.*)": r"content.2.\1",
    r"score\.0\.(.*)": r"score.0.\1",
    r"score\.3\.(.*)": r"score.2.\1",
    r"token_features\.(.*)": r"whole.\1",
    r"dust_bin": "bin_score",
}
_BOQ_NAMES = {
    r"proj_c\.(.*)": r"reduce.\1",
    r"norm_input\.(.*)": r"norm.\1",
    r"fc\.(.*)": r"mix.\1",
    r"boqs\.(\d+)\.self_attn\.(.*)": r"layers.\1.among_queries.\2",
    r"boqs\.(\d+)\.cross_attn\.(.*)": r"layers.\1.to_features.\2",
    r"boqs\.(\d+)\.norm_q\.(.*)": r"layers.\1.query_norm.\2",
    r"boqs\.(\d+)\.norm_out\.(.*)": r"layers.\1.out_norm.\2",
    r"boqs\.(\d+)\.(.*)": r"layers.\1.\2",
}
_MIX_NAMES = {
    r"mix\.(\d+)\.mix\.(.*)": r"layers.\1.\2",
    r"channel_proj\.(.*)": r"to_channels.\1",
    r"row_proj\.(.*)": r"to_rows.\1",
}
_SALAD = "Izquierdo, Civera: Optimal Transport Aggregation for Visual Place Recognition, CVPR 2024"
_BOQ = "Ali-bey, Chaib-draa, Giguère: BoQ: A Place is Worth a Bag of Learnable Queries, CVPR 2024"
_MIXVPR = "Ali-bey, Chaib-draa, Giguère: MixVPR: Feature Mixing for Visual Place Recognition, WACV 2023"

_register(_projected_means("cosplace", _COSPLACE, "the releases of the CosPlace repository"))
_register(_projected_means("eigenplaces", _EIGENPLACES, "the releases of the EigenPlaces repository"))
_register(
    PublishedModel(
        f"netvlad{clusters}_vgg16",
        ModelConfig("vgg16", f"netvlad{clusters}", (480, 640), final_norm=False),
        "encoder.",
        "pool.",
        {"centroids": "centres", r"conv\.weight": "assign.weight"},
        "Arandjelović, Gronat, Torii, Pajdla, Sivic: NetVLAD, CVPR 2016; Hausler et al.: Patch-NetVLAD, CVPR 2021",
        "MIT",
        "the Patch-NetVLAD or pytorch-NetVlad repository",
        whitening="WPCA.0.",
    )
    for clusters in (16, 64)
)
_register(
    PublishedModel(
        f"mixvpr_resnet50_{dim}",
        ModelConfig("resnet50", f"mixvpr{dim}", (320, 320), blocks=3),
        "backbone.model.",
        "aggregator.",
        _MIX_NAMES,
        _MIXVPR,
        "see its repository",
        "the MixVPR repository",
        absent=("to_rows.bias",),
    )
    for dim in (4096, 512, 128)
)
_register(
    PublishedModel(
        f"gem_{network}_{dim}",
        ModelConfig(network, f"gemwhiten{dim}", (768, 1024)),
        "features.",
        "",
        {r"pool\.p": "mean.p", r"whiten\.(.*)": r"linear.\1"},
        "Radenović, Tolias, Chum: Fine-tuning CNN Image Retrieval with No Human Annotation, TPAMI 2019",
        "MIT",
        "the cnnimageretrieval-pytorch repository",
    )
    for network, dim in (("vgg16", 512), ("resnet50", 2048), ("resnet101", 2048), ("resnet152", 2048))
)
_register(
    [
        PublishedModel(
            "salad",
            ModelConfig(_DINOV2, "salad8448", (322, 322), positions="original"),
            "backbone.model.",
            "aggregator.",
            _SALAD_NAMES,
            _SALAD,
            "GPL-3.0",
            "the releases of the SALAD repository",
        ),
        PublishedModel(
            "megaloc",
            ModelConfig(_DINOV2, "megaloc8448", (322, 322), positions="original"),
            "backbone.model.",
            "aggregator.",
            {**{f"agg\\.{theirs}": ours for theirs, ours in _SALAD_NAMES.items()}, r"linear\.(.*)": r"linear.\1"},
            "Berton, Masone: MegaLoc: One Retrieval to Place Them All, CVPR Workshops 2025",
            "MIT",
            "the releases of the MegaLoc repository",
            hub=("gberton/MegaLoc", "model.safetensors"),
        ),
        PublishedModel(
            "boq_dinov2_12288",
            ModelConfig(_DINOV2, "boq12288", (322, 322), positions="original", final_norm=False),
            "backbone.dino.",
            "aggregator.",
            _BOQ_NAMES,
            _BOQ,
            "MIT",
            "the releases of the Bag-of-Queries repository",
        ),
        PublishedModel(
            "boq_resnet50_16384",
            ModelConfig("resnet50", "boq16384", (384, 384), blocks=3),
            "backbone.net.",
            "aggregator.",
            _BOQ_NAMES,
            _BOQ,
            "MIT",
            "the releases of the Bag-of-Queries repository",
        ),
    ]
)
