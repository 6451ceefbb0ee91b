"""Models that others published: architecture, names of tensors, paper, licence and source of each.

Nothing is bundled. A checkpoint is fetched from where its authors put it (`address`, `hub`), or by the user where that
needs a browser (`source`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from covis.core.machine import cache_folder
from covis.core.registry import Registry
from covis.models.config import ModelConfig
from covis.models.pins import UNPINNED

_DINOV2 = "vit_base_patch14_dinov2"
_IDLE = (r".*\.num_batches_tracked", r".*\.mask_token")
"""BatchNorm's counters, and what stood for hidden patches when DINOv2 was trained."""


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
    """Where its authors put the checkpoint, in words."""
    address: str = ""
    """That of the file itself, if it can be downloaded without a browser."""
    hub: tuple[str, str] | None = None
    """(repository, file) on the model hub, if it is there."""
    absent: tuple[str, ...] = ()
    """Pooling tensors of ours that theirs does not have; they are zero."""
    whitening: str = ""
    """Prefix of a linear projection after the pooling; a checkpoint may leave it out."""
    backbone_names: Mapping[str, str] = field(default_factory=dict)
    """Their names of backbone tensors (patterns of whole names) → ours, where they differ."""
    unused: tuple[str, ...] = _IDLE
    """Tensors of theirs (patterns of whole names) that no descriptor depends on."""
    vocabulary: bool = False
    """Whether the file is a vocabulary, one matrix of centres; the backbone's weights are a file of their own."""


def _origin(model: PublishedModel) -> str:
    return f"{model.config.backbone}, {model.config.pool}: {model.paper} ({model.licence})"


PUBLISHED: Registry[PublishedModel] = Registry("published model", _origin)
HUB_PREFIX = "hub:"
"""Start of the address of a model that was published with covis: `hub:OWNER/NAME@REVISION`."""


def is_published(given: Path | str) -> bool:
    """Whether this names a published model (`NAME`, `NAME:SHA256`, `hub:OWNER/NAME`); a path that exists never does."""
    name = str(given)
    return not Path(given).exists() and (name.startswith(HUB_PREFIX) or name.partition(":")[0] in PUBLISHED)


def published_folder(name: str) -> Path:
    """Where the model folder of a published model is kept; `NAME:SHA256` has one of its own."""
    if name.startswith(HUB_PREFIX):
        return cache_folder() / "models" / name.removeprefix(HUB_PREFIX).replace("@", "-")
    name, _, pin = name.partition(":")
    return cache_folder() / "models" / ("" if pin in ("", UNPINNED) else pin[:12]) / name


def _register(entries: Iterable[PublishedModel]) -> None:
    for entry in entries:
        PUBLISHED.register(entry.name)(entry)


_METHOD_NETWORKS = {"vgg16": "vgg16", "resnet50": "resnet50", "resnet152": "resnet152", "resnext101_32x8d": "resnext"}
_MEAN_NAMES = {r"1\.p": "mean.p", r"3\.(weight|bias)": r"linear.\1"}
_COSPLACE = "Berton, Masone, Caputo: Rethinking Visual Geo-localization for Large-Scale Applications, CVPR 2022"
_EIGENPLACES = "Berton, Trivigno, Caputo, Masone: EigenPlaces, ICCV 2023"
_DIMS = (32, 64, 128, 256, 512, 1024, 2048)
_COSPLACE_DIMS = {
    "vgg16": _DIMS[1:5], "resnet18": _DIMS[:5], "resnet50": _DIMS, "resnet101": _DIMS, "resnet152": _DIMS
}  # fmt: skip
_TORCHVISION_NAMES = {
    "vgg16": "VGG16", "resnet18": "ResNet18", "resnet50": "ResNet50", "resnet101": "ResNet101", "resnet152": "ResNet152"
}  # fmt: skip
_EIGENPLACES_DIMS = {"vgg16": (512,), "resnet18": (256, 512), "resnet50": _DIMS[2:], "resnet101": _DIMS[2:]}


def _projected_means(repository: str, networks: Mapping[str, tuple[int, ...]], paper: str) -> Iterable[PublishedModel]:
    """CosPlace's and EigenPlaces' networks: one architecture, names such as `cosplace_resnet50_512`."""
    name = repository.lower()
    source = f"the releases of the {repository} repository"
    for network, dims in networks.items():
        for dim in dims:
            config = ModelConfig(network, f"gemfc{dim}", (480, 640), final_norm=network != "vgg16")
            file = f"{_TORCHVISION_NAMES[network]}_{dim}_{name}.pth"
            yield PublishedModel(
                f"{name}_{network}_{dim}", config, "backbone.", "aggregation.", _MEAN_NAMES, paper, "MIT", source,
                address=f"https://github.com/gmberton/{repository}/releases/download/v1.0/{file}",
            )  # fmt: skip


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
_NETVLAD_NAMES = {"centroids": "centres", r"conv\.weight": "assign.weight"}
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
_CIRTORCH_FILES = "http://cmp.felk.cvut.cz/cnnimageretrieval/data/networks/retrieval-SfM-120k"
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

_SIDE_NAMES = {
    r"(adapters\.\d+)\.D_fc1\.(.*)": r"\1.down.\2",
    r"(adapters\.\d+)\.D_fc2\.(.*)": r"\1.up.\2",
    r"(adapters\.\d+)\.branch1\.(.*)": r"\1.one.\2",
    r"(adapters\.\d+)\.branch2\.(.*)": r"\1.three.\2",
    r"(adapters\.\d+)\.branch3\.(.*)": r"\1.five.\2",
    r"(.+)": r"vit.\1",
}


def _sage_names(blocks: int) -> Mapping[str, str]:
    """Names in SAGE's files, where each of the last blocks has its recalibration elsewhere."""
    last = [str(index) for index in range(blocks - 4, blocks)]
    names = {}
    for index, block in enumerate(last):
        for theirs, ours in ((0, 0), (3, 2)):
            names[rf"gpn_norms\.{index}\.projection\.{theirs}\.(.*)"] = (
                rf"blocks.{block}.recalibration.exponent.{ours}.\1"
            )
    return names | {rf"model\.blocks\.({'|'.join(last)})\.(.*)": r"blocks.\1.block.\2", r"model\.(.*)": r"\1"}


_register(
    PublishedModel(
        f"{loss.lower()}_{name.removesuffix('_32x8d')}_{pool.lower()}",
        ModelConfig(name, pool.lower(), (480, 640)),
        "backbone.",
        "pool.",
        {"p": "p"} if pool == "GeM" else {},
        "Leyva-Vallina, Strisciuglio, Petkov: Data-efficient Large Scale Place Recognition with Graded Similarity "
        "Supervision, CVPR 2023",
        "MIT",
        f"the links of the generalized_contrastive_loss repository: MSLS_{theirs}_{pool}_480_{loss}.pth",
    )
    for name, theirs in _METHOD_NETWORKS.items()
    for pool in ("GeM", "avg")
    for loss in ("GCL", "CL")
)
_register(_projected_means("CosPlace", _COSPLACE_DIMS, _COSPLACE))
_register(_projected_means("EigenPlaces", _EIGENPLACES_DIMS, _EIGENPLACES))
_register(
    PublishedModel(
        f"netvlad{clusters}_vgg16",
        ModelConfig("vgg16", f"netvlad{clusters}", (480, 640), final_norm=False),
        "encoder.",
        "pool.",
        _NETVLAD_NAMES,
        "Arandjelović, Gronat, Torii, Pajdla, Sivic: NetVLAD, CVPR 2016; Hausler et al.: Patch-NetVLAD, CVPR 2021",
        "MIT",
        "the Patch-NetVLAD or pytorch-NetVlad repository",
        whitening="WPCA.0.",
    )
    for clusters in (16, 64)
)
PUBLISHED.register("sfrs")(
    PublishedModel(
        "sfrs",
        ModelConfig("vgg16_caffe", "netvlad64", (480, 640), final_norm=False),
        "base_model.base.",
        "net_vlad.",
        _NETVLAD_NAMES,
        "Ge, Wang, Zhu, Zhao, Li: Self-supervising Fine-grained Region Similarities, ECCV 2020",
        "MIT",
        "the releases of the OpenIBL repository",
        address="https://github.com/yxgeee/OpenIBL/releases/download/v0.1.0-beta/vgg16_netvlad.pth",
        whitening="pca_layer.",
    )
)
_register(
    PublishedModel(
        f"convap_resnet50_{dim}",
        ModelConfig("resnet50", f"convap{dim}", (320, 320)),
        "backbone.model.",
        "aggregator.",
        {r"channel_pool\.(.*)": r"project.\1"},
        "Ali-bey, Chaib-draa, Giguère: GSV-Cities: Toward Appropriate Supervised VPR, Neurocomputing 2022",
        "none is stated in its repository",
        f"the links of the gsv-cities repository: resnet50_ConvAP_{dim // 4}_2x2.ckpt",
    )
    for dim in (512, 2048, 4096, 8192)
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
        address=f"{_CIRTORCH_FILES}/rSfM120k-tl-{network}-gem-w-{version}.pth",
    )
    for network, dim, version in (
        ("resnet50", 2048, "97bf910"),
        ("resnet101", 2048, "a155e54"),
        ("resnet152", 2048, "f39cada"),
    )
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
            address="https://github.com/serizba/salad/releases/download/v1.0.0/dino_salad.ckpt",
        ),
        PublishedModel(
            "clique_mining",
            ModelConfig(_DINOV2, "salad8448", (322, 322), positions="original"),
            "backbone.model.",
            "aggregator.",
            _SALAD_NAMES,
            "Izquierdo, Civera: Close, But Not There: Boosting Geographic Distance Sensitivity in VPR, ECCV 2024",
            "GPL-3.0",
            "the link of the cliquemining repository",
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
            address="https://github.com/amaralibey/Bag-of-Queries/releases/download/v1.0/dinov2_12288.pth",
            unused=(*_IDLE, r"backbone\.dino\.norm\..*"),
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
            address="https://github.com/amaralibey/Bag-of-Queries/releases/download/v1.0/resnet50_16384.pth",
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
            address="https://github.com/Lu-Feng/CricaVPR/releases/download/v1.0/CricaVPR.pth",
            backbone_names=_CRICAVPR_NAMES,
        ),
    ]
)
_register(
    PublishedModel(
        f"selavprpp_{size}",
        ModelConfig(f"vit_{size}_patch14_selavprpp", f"selavprpp{dim}", (322, 322), "all"),
        "backbone.",
        "",
        {r"aggregation\.1\.p": "mean.p", r"linear1\.(.*)": r"first.\1", r"linear2\.(.*)": r"linear.\1"},
        "Lu et al.: SelaVPR++: Towards Seamless Adaptation of Foundation Models for Efficient Place Recognition, TPAMI 2026",
        "MIT",
        "the releases of the SelaVPRplusplus repository",
        address="https://github.com/Lu-Feng/SelaVPRplusplus/releases/download/SelaVPR%2B%2B/"
        f"SelaVPRplusplus_{size}.pth",
        backbone_names=_SIDE_NAMES,
    )
    for size, dim in (("base", 2048), ("large", 4096))
)
PUBLISHED.register("edtformer")(
    PublishedModel(
        "edtformer",
        ModelConfig("vit_base_patch14_edtformer", "edtformer4096", (322, 322), "all"),
        "backbone.",
        "",
        {
            r"fc\.(.*)": r"features.\1",
            "queries": "queries",
            r"decoder\.(layers\.\d+)\.self_attn\.(.*)": r"\1.among_queries.\2",
            r"decoder\.(layers\.\d+)\.multihead_attn\.(.*)": r"\1.to_features.\2",
            r"decoder\.(layers\.\d+)\.norm1\.(.*)": r"\1.query_norm.\2",
            r"decoder\.(layers\.\d+)\.norm2\.(.*)": r"\1.out_norm.\2",
            r"channel_proj\.(.*)": r"to_channels.\1",
            r"row_proj\.(.*)": r"to_rows.\1",
        },
        "Jin, Lu, Hu, Yuan, Liu: EDTformer: An Efficient Decoder Transformer for Visual Place Recognition, TCSVT 2025",
        "MIT",
        "the releases of the EDTformer repository",
        address="https://github.com/Tong-Jin01/EDTformer/releases/download/v1.0.0/EDTformer.pth",
        backbone_names=_SIDE_NAMES,
    )
)
_register(
    PublishedModel(
        f"sage_{size}",
        ModelConfig(f"vit_{size}_patch14_sage", "sage8448", (322, 322), positions="original"),
        "backbone.",
        "aggregator.",
        _SALAD_NAMES
        | {
            r"soft_weighting\.predictor\.(.*)": r"weight.\1",
            r"gpn\.projection\.0\.(.*)": r"powers.exponent.0.\1",
            r"gpn\.projection\.3\.(.*)": r"powers.exponent.2.\1",
        },
        "Chen et al.: SAGE: Spatial-visual Adaptive Graph Exploration for Efficient Visual Place Recognition, ICLR 2026",
        "MIT",
        "the links of the SAGE repository: those without cross-image encoder",
        backbone_names=_sage_names(blocks),
        unused=(*_IDLE, r"aggregator\.single_branch\..*"),
    )
    for size, blocks in (("base", 12), ("large", 24))
)
_register(
    PublishedModel(
        name,
        ModelConfig(_DINOV2, pool, (322, 322), positions="original"),
        "backbone.",
        "aggregation.",
        {r"conv\.weight": "assign.weight"},
        "Lu et al.: SuperVLAD: Compact and Robust Image Descriptors for Visual Place Recognition, NeurIPS 2024",
        "MIT",
        f"the links of the SuperVLAD repository: {file}",
    )
    for name, pool, file in (
        ("supervlad", "supervlad4", "SuperVLAD without cross-image encoder"),
        ("supervlad_1cluster", "supervlad1", "1-ClusterVLAD"),
    )
)
PUBLISHED.register("dinomix")(
    PublishedModel(
        "dinomix",
        ModelConfig(_DINOV2, "dinomix4096", (224, 224), positions="original", final_norm=False),
        "backbone.dino_model.",
        "aggregator.",
        _MIX_NAMES,
        "Huang et al.: DINO-Mix: Enhancing VPR with Foundational Vision Model and Feature Mixing, arXiv:2311.00230, 2023",
        "MIT",
        "the releases of the DINO-Mix repository",
        address="https://github.com/GaoShuang98/DINO-Mix/releases/download/v1.0.0/dinov2_vitb14_mix.ckpt",
    )
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
