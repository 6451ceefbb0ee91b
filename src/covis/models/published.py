"""Models that others published: their architecture in covis's words, their state dict in, their descriptors out.

Nothing is bundled. A checkpoint is a file that the user fetches where its authors put it (`source`), or that the hub of
models has under a known name; it is read as weights alone and never run.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialise
from torch import Tensor

from covis.core import artifacts, files
from covis.core.errors import Damaged, InputError
from covis.core.files import read_json, sha256, write_bytes, write_json, write_text
from covis.core.foreign import first_line
from covis.core.machine import weights_folder
from covis.core.registry import Registry
from covis.core.tables import markdown_lines
from covis.models import weights
from covis.models.config import ModelConfig, Preprocessing
from covis.models.weights import Tensors
from covis.whitening import Whitening

if TYPE_CHECKING:
    from covis.models.place_model import PlaceModel

_DINOV2 = "vit_base_patch14_dinov2"
_PARALLEL = "module."
"""Prefix of all names in a file that was saved from a network on several GPUs."""
_SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".torch")


@dataclass(frozen=True)
class PublishedModel:
    """A system that others trained."""

    name: str
    config: ModelConfig
    backbone: str | tuple[str, ...]
    """Prefix of backbone tensors in the checkpoint; if several are given, the first that occurs counts."""
    pool: str
    """Prefix of pooling tensors in the checkpoint."""
    pool_names: Mapping[str, str]
    """Their names of pooling tensors (patterns of whole names) → ours."""
    paper: str
    licence: str
    source: str
    """Where its authors put the checkpoint."""
    hub: tuple[str, str] | None = None
    """(repository, file) on the model hub, if it is there."""
    absent: tuple[str, ...] = ()
    """Pooling tensors of ours that theirs does not have; they are zero."""
    whitening: str = ""
    """Prefix of a linear projection after the pooling; a checkpoint may leave it out."""
    backbone_names: Mapping[str, str] = field(default_factory=dict)
    """Their names of backbone tensors (patterns of whole names) → ours, where they differ."""
    vocabulary: bool = False
    """Whether the file is a vocabulary, one matrix of centres; the backbone's weights are a file of their own."""


def _origin(model: PublishedModel) -> str:
    return f"{model.config.backbone}, {model.config.pool}: {model.paper} ({model.licence})"


PUBLISHED: Registry[PublishedModel] = Registry("published model", _origin)


def find_published(name: str, file: Path | None = None) -> tuple[PublishedModel, Path]:
    """The published model `name`, and its checkpoint: `file`, or what `machine.weights_folder` or the hub has.

    `NAME:SHA256` and `NAME:unpinned` say which file of the hub is taken, see `covis.models.weights.fetch`.
    """
    name, _, pin = name.partition(":")
    entry = PUBLISHED[name]
    return entry, _kept(entry, pin) if file is None else file


def fill_published(model: PlaceModel, entry: PublishedModel, path: Path, weights_file: str = "") -> PlaceModel:
    """Gives `model`, of the architecture of `entry`, the tensors of a checkpoint; returns it.

    weights_file: the backbone's weights, if the checkpoint is only a vocabulary; timm's own without it.
    """
    if entry.vocabulary:
        _load_pool(model, entry, {"centres": weights.read_centres(path)}, path)
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
    """Backbone, pooling and projection from one checkpoint."""
    state = weights.read_tensors(path, plain=False)
    if all(name.startswith(_PARALLEL) for name in state):
        state = {name.removeprefix(_PARALLEL): tensor for name, tensor in state.items()}
    prefixes = (entry.backbone,) if isinstance(entry.backbone, str) else entry.backbone
    prefix = next((p for p in prefixes if any(name.startswith(p) for name in state)), prefixes[0])
    backbone = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
    weights.load_backbone(model, _renamed(backbone, entry.backbone_names, others=True), str(path))
    theirs = {name.removeprefix(entry.pool): t for name, t in state.items() if name.startswith(entry.pool)}
    _load_pool(model, entry, _renamed(theirs, entry.pool_names), path)
    if entry.whitening and f"{entry.whitening}weight" in state:
        model.whiten(_projection(state[f"{entry.whitening}weight"], state[f"{entry.whitening}bias"], entry.name))


def _load_pool(model: PlaceModel, entry: PublishedModel, state: Tensors, path: Path) -> None:
    wanted = model.pool.state_dict()
    state |= {name: torch.zeros_like(wanted[name]) for name in entry.absent if name in wanted}
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


def _kept(entry: PublishedModel, pin: str) -> Path:
    """The checkpoint in the cache, or fetched from the hub if it is there."""
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
_DIMS = (32, 64, 128, 256, 512, 1024, 2048)
_COSPLACE_DIMS = {
    "vgg16": _DIMS[1:5], "resnet18": _DIMS[:5], "resnet50": _DIMS, "resnet101": _DIMS, "resnet152": _DIMS
}  # fmt: skip
_EIGENPLACES_DIMS = {"vgg16": (512,), "resnet18": (256, 512), "resnet50": _DIMS[2:], "resnet101": _DIMS[2:]}


def _projected_means(
    name: str, networks: Mapping[str, tuple[int, ...]], paper: str, source: str
) -> Iterable[PublishedModel]:
    """CosPlace's and EigenPlaces' networks: one architecture, names such as `cosplace_resnet50_512`."""
    for network, dims in networks.items():
        for dim in dims:
            config = ModelConfig(network, f"gemfc{dim}", (480, 640), final_norm=network != "vgg16")
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

_CIRTORCH = "Radenović, Tolias, Chum: Fine-tuning CNN Image Retrieval with No Human Annotation, TPAMI 2019"
_CIRTORCH_SOURCE = "the cnnimageretrieval-pytorch repository"
_SELAVPR_NAMES = {
    r"(blocks\.\d+)\.adapter1\.D_fc1\.(.*)": r"\1.ls1.adapter.down.\2",
    r"(blocks\.\d+)\.adapter1\.D_fc2\.(.*)": r"\1.ls1.adapter.up.\2",
    r"(blocks\.\d+)\.adapter2\.D_fc1\.(.*)": r"\1.mlp.adapter.down.\2",
    r"(blocks\.\d+)\.adapter2\.D_fc2\.(.*)": r"\1.mlp.adapter.up.\2",
    r"(blocks\.\d+)\.ls1\.gamma": r"\1.ls1.scale.gamma",
    r"(blocks\.\d+)\.mlp\.(fc.*)": r"\1.mlp.inner.\2",
}
_CRICAVPR_NAMES = {
    r"(blocks\.\d+)\.adapter\.D_fc1\.(.*)": r"\1.mlp.adapter.down.\2",
    r"(blocks\.\d+)\.adapter\.D_fc2\.(.*)": r"\1.mlp.adapter.up.\2",
    r"(blocks\.\d+)\.adapter\.branch1\.(.*)": r"\1.mlp.adapter.one.\2",
    r"(blocks\.\d+)\.adapter\.branch2\.(.*)": r"\1.mlp.adapter.three.\2",
    r"(blocks\.\d+)\.adapter\.branch3\.(.*)": r"\1.mlp.adapter.five.\2",
    r"(blocks\.\d+)\.mlp\.(fc.*)": r"\1.mlp.inner.\2",
}

_register(_projected_means("cosplace", _COSPLACE_DIMS, _COSPLACE, "the releases of the CosPlace repository"))
_register(
    _projected_means("eigenplaces", _EIGENPLACES_DIMS, _EIGENPLACES, "the releases of the EigenPlaces repository")
)
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
        "none is stated in its repository",
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
        _CIRTORCH,
        "MIT",
        _CIRTORCH_SOURCE,
    )
    for network, dim in (("resnet50", 2048), ("resnet101", 2048), ("resnet152", 2048))
)
_register(
    PublishedModel(
        f"{pool}_{network.partition('_')[0]}_{dim}",
        ModelConfig(network, pool, (768, 1024)),
        "features.",
        "pool.",
        {"p": "p"},
        _CIRTORCH if pool == "gem" else "Tolias, Sicre, Jégou: Particular object retrieval with R-MAC, ICLR 2016",
        "MIT",
        _CIRTORCH_SOURCE,
        whitening="whiten.",
    )
    for pool, network, dim in (
        ("gem", "vgg16_cirtorch", 512), ("rmac", "vgg16_cirtorch", 512), ("rmac", "resnet101", 2048),
    )
)  # fmt: skip
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
            ("backbone.model.", "backbone."),
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
_register(
    [
        PublishedModel(
            "transvpr",
            ModelConfig("transvpr", "transvpr256", (480, 640), "all"),
            "",
            "pool.",
            {r"attention_pool\.(.*)": r"attention.\1", r"fc\.1\.(.*)": r"linear.\1"},
            "Wang, Shen, Zuo, Zhou, Zheng: TransVPR: Transformer-Based Place Recognition, CVPR 2022",
            "none is stated in its repository",
            "the TransVPR-model-implementation repository: TransVPR_MSLS.pth, TransVPR_Pitts30k.pth",
        ),
        PublishedModel(
            "selavpr",
            ModelConfig("vit_large_patch14_selavpr", "selavpr", (224, 224), positions="original"),
            "backbone.",
            "",
            {
                r"aggregation\.1\.p": "mean.p",
                r"LocalAdapt\.upconv1\.(.*)": r"finer.0.\1",
                r"LocalAdapt\.upconv2\.(.*)": r"finer.2.\1",
            },
            "Lu et al.: Towards Seamless Adaptation of Pre-trained Models for Visual Place Recognition, ICLR 2024",
            "MIT",
            "the links of the SelaVPR repository",
            backbone_names=_SELAVPR_NAMES,
        ),
        PublishedModel(
            "cricavpr",
            ModelConfig("vit_base_patch14_cricavpr", "cricavpr", (224, 224), positions="original"),
            "backbone.",
            "",
            {r"aggregation\.1\.p": "mean.p", r"encoder\.(.*)": r"encoder.\1"},
            "Lu et al.: CricaVPR: Cross-image Correlation-aware Representation Learning, CVPR 2024",
            "MIT",
            "the releases of the CricaVPR repository: CricaVPR.pth",
            backbone_names=_CRICAVPR_NAMES,
        ),
    ]
)
PUBLISHED.register("anyloc_vitg14")(
    PublishedModel(
        "anyloc_vitg14",
        ModelConfig(
            "vit_giant_patch14_dinov2", "vlad32", (476, 630), "none", blocks=32, positions="original", facet="value"
        ),
        "",
        "",
        {},
        "Keetha et al.: AnyLoc: Towards Universal Visual Place Recognition, RA-L 2023",
        "BSD-3-Clause",
        "the vocabularies that the AnyLoc repository links: dinov2_vitg14/l31_value_c32/DOMAIN/c_centers.pt",
        vocabulary=True,
    )
)


# A model in the layout of model hubs: a folder of `config.json`, `model.safetensors` and a card, `README.md`.
#
# Written for an upload (`covis model publish`), read back from a folder or, by `hub:OWNER/NAME@REVISION`, from a hub. The
# config holds the weights' SHA-256, so that weights other than those published are refused.


CONFIG, _WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY = "covis"
HUB_PREFIX = "hub:"
_WHITENING = "whitening."
_ADDRESS = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:@([\w.-]+))?")


@dataclass(frozen=True)
class HubModel:
    """What a folder for a model hub holds."""

    config: ModelConfig
    preprocessing: Preprocessing
    state: dict[str, Tensor]
    whitening: Whitening | None
    card: dict[str, Any]


def is_hub_folder(path: Path) -> bool:
    """Whether the folder is of this layout and not one of covis's own artefacts."""
    return (path / _WEIGHTS).is_file() and (path / CONFIG).is_file() and not (path / artifacts.MANIFEST).exists()


def write_hub_folder(path: Path, model: HubModel) -> None:
    """Writes the folder, all of it or nothing; an existing one is refused."""
    if path.exists():
        raise InputError(f"{path} already exists; choose another output or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.clear_partials(path)
    draft = files.partial_name(path)
    draft.mkdir()
    try:
        with files.held(draft):
            _write_parts(draft, path.name, model)
            files.replace_folder(draft, path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _write_parts(path: Path, name: str, model: HubModel) -> None:
    state = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state.items()}
    if model.whitening is not None:
        for part in ("mean", "projection"):
            state[_WHITENING + part] = torch.from_numpy(np.ascontiguousarray(getattr(model.whitening, part)))
    write_bytes(path / _WEIGHTS, serialise(state))
    config = {
        "library_name": LIBRARY,
        "model": model.config.to_dict(),
        "preprocessing": asdict(model.preprocessing),
        "whitening": None if model.whitening is None else dict(model.whitening.facts),
        "card": model.card,
        "sha256": sha256(path / _WEIGHTS),
    }
    write_text(path / CARD, _readme(name, model))
    write_json(path / CONFIG, config)


def read_hub_folder(path: Path) -> HubModel:
    """Reads the folder; weights that are not those of its config are refused."""
    config = read_json(path / CONFIG, "download it again")
    if not isinstance(config, Mapping) or config.get("library_name") != LIBRARY:
        raise InputError(f"{path / CONFIG} is not of a covis model; import others with: covis model import FILE")
    if sha256(path / _WEIGHTS) != config.get("sha256"):
        raise Damaged(f"{path / _WEIGHTS} is not the file that {CONFIG} names (SHA-256 differs); download it again")
    try:
        state = load_file(path / _WEIGHTS)
        whitening = None
        if config["whitening"] is not None:
            mean, projection = (state.pop(_WHITENING + part).numpy() for part in ("mean", "projection"))
            whitening = Whitening(mean, projection, facts=config["whitening"])
        preprocessing = Preprocessing(**config["preprocessing"])
        return HubModel(ModelConfig.from_dict(config["model"]), preprocessing, state, whitening, dict(config["card"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path / CONFIG} is incomplete ({first_line(error)}); download it again") from None


def fetch_from_hub(address: str) -> Path:
    """The folder of `hub:OWNER/NAME[@REVISION]`: from the hub's cache, else fetched into it."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InputError(
            f"{address} is not the address of a hub model; write hub:OWNER/NAME or hub:OWNER/NAME@REVISION"
        )
    name, revision = match.groups()
    try:
        weights.fetch_revision(name, _WEIGHTS, revision)
        return weights.fetch_revision(name, CONFIG, revision).parent
    except OSError as error:
        raise InputError(
            f"{address} cannot be fetched here ({error}); download its {CONFIG} and {_WEIGHTS} elsewhere into a folder "
            "and give that"
        ) from None


def _readme(name: str, model: HubModel) -> str:
    """The card: what people and hubs read."""
    card, p = model.card, model.preprocessing
    head = {
        "library_name": LIBRARY,
        "tags": ["visual-place-recognition", "image-retrieval", model.config.backbone],
        "pipeline_tag": "image-feature-extraction",
        **_licence(card.get("licence") or ""),
    }
    front = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items())
    dim = model.whitening.dim if model.whitening is not None else card.get("dim", "")
    facts = {
        "Backbone, pooling": f"{model.config.backbone}, {model.config.pool}",
        "Descriptor": f"{dim} dims, unit length",
        "Images": f"{p.image_size[0]} × {p.image_size[1]} pixels (height × width)",
        "Licence": card.get("licence") or "not stated",
        "Paper": card.get("paper", ""),
        "Recall": _recall(card.get("recalls")),
        "Fingerprint": card.get("fingerprint", ""),
    }
    rows = markdown_lines([("", ""), *((key, str(value)) for key, value in facts.items() if value)], (False, False))
    use = f'from covis import PlaceModel\n\nmodel = PlaceModel.from_pretrained("{name}")  # this folder, or hub:OWNER/NAME'
    return f"---\n{front}\n---\n\n# {name}\n\n{rows}\n\n```python\n{use}\n```\n"


_LICENCES = ("mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "cc-by-4.0", "cc-by-nc-4.0")
"""Licences that hubs know by these names."""


def _licence(stated: str) -> dict[str, str]:
    """A licence as hubs read it: by the hub's name for it, or as `other` with its own name."""
    if stated.lower() in _LICENCES:
        return {"license": stated.lower()}
    return {"license": "other", "license_name": stated} if stated else {}


def _recall(recalls: Any) -> str:
    if not isinstance(recalls, Mapping) or not recalls.get("recall"):
        return ""
    figures = ", ".join(f"@{k} {v:.1f}" for k, v in recalls["recall"].items())
    return f"{figures} on {recalls.get('benchmark', '')} (protocol {recalls.get('fingerprint', '')})"
