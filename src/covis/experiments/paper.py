"""The method's tables and figures as experiments, and the same questions on the town."""

from __future__ import annotations

from dataclasses import replace

from covis.datasets.seven_scenes import SCENES
from covis.evaluation.published import Published, published
from covis.experiments import recipes
from covis.experiments.recipes import binary_batches, cl, cl_graded, gcl
from covis.experiments.tables import MEAN, TABLES, Row, Table
from covis.sampling import Tuples
from covis.training.recipe import RECIPES, Recipe

_NAMES = {"vgg16": "VGG", "resnet50": "ResNet50", "resnet152": "ResNet152", "resnext": "ResNeXt"}
_MSLS = ("msls_val", "msls_test")
STREETS = (*_MSLS, "pitts30k_test", "tokyo247_cutouts", "robotcar_v2", "cmu_extended_one_map")
"""The six sets of Tables 2, 3 and 9, each by the protocol of the published figures."""
ROBOTCAR, CMU = ("robotcar_v2",), ("cmu_extended_one_map",)
_GEM_DIMS = {"vgg16": 512, "resnet50": 1024, "resnet152": 2048, "resnext": 1024}
_AVG_DIMS = {
    "vgg16": {"cl": 128, "gcl": 256}, "resnet50": {"cl": 2048, "gcl": 1024},
    "resnet152": {"cl": 1024, "gcl": 2048}, "resnext": {"cl": 1024, "gcl": 1024},
}  # fmt: skip
NETVLAD_DIM = 4096
OFF_THE_SHELF = "netvlad"
"""The name for NetVLAD as its authors trained it (`--model netvlad=FOLDER`)."""
HOURS = {"vgg16": 5.0, "resnet50": 6.0, "resnet152": 14.0, "resnext": 28.0}
"""The published hours of one epoch of MSLS on one GPU, by backbone (Table 5)."""
HOURS_NETVLAD = {"netvlad16": 24.0, "netvlad64": 36.0}
"""The same for NetVLAD with triplets and mining."""
_WHITENING = "whitening is fitted on all map images of the benchmark, as the published figures were"
_SERVERS = "MSLS test, RobotCar and CMU are scored by servers: upload the submission files, fill in scores.csv"


def published_hours(recipe: Recipe) -> float | None:
    """GPU-hours of a run by the published hours per epoch; None where nothing is published."""
    if recipe.dataset != "msls":
        return None
    if isinstance(recipe.batches, Tuples):
        hours = HOURS_NETVLAD.get(recipe.model.pool)
    else:
        hours = next((h for short, h in HOURS.items() if recipes.BACKBONES[short] == recipe.model.backbone), None)
    return None if hours is None else hours * recipe.epochs


@TABLES.register("table1")
def table1() -> Table:
    """Which labels compose the batches and which enter the loss."""
    rows = []
    for loss, batch in (("CL", "binary"), ("GCL", "binary"), ("CL", "graded"), ("GCL", "graded")):
        plain = (loss, batch) in (("CL", "binary"), ("GCL", "graded"))
        name = f"msls_vgg16_gem_{loss.lower()}" + ("" if plain else f"_{batch}")
        figures = _figures("table1_batch_and_loss", f"VGG-GeM, {batch} batches", loss)
        rows.append(Row(f"VGG-GeM-{loss}, {batch} batches", RECIPES[name](), _MSLS, published=figures))
    return Table("Table 1: labels in batch and loss", tuple(rows), notes=(_SERVERS,))


@TABLES.register("table2")
def table2() -> Table:
    """The comparison with others: what can be trained here, NetVLAD with triplets and the method's own rows."""
    table, rows = "table2_sota", []
    for clusters in (64, 16):
        recipe = RECIPES[f"msls_vgg16_netvlad{clusters}_triplet"]()
        rows += _pair(table, f"NetVLAD {clusters}", recipe, NETVLAD_DIM)
    rows += _pair(table, "NetVLAD-GCL", RECIPES["msls_vgg16_netvlad64_gcl"](), NETVLAD_DIM)
    for short, name in _NAMES.items():
        rows += _pair(table, f"{name}-GeM-GCL", RECIPES[f"msls_{short}_gem_gcl"](), _GEM_DIMS[short])
    left = "TransVPR, SP-SuperGlue, DELG and Patch-NetVLAD are other methods: their rows are printed by their authors"
    return Table("Table 2: comparison with other methods", tuple(rows), notes=(left, _WHITENING, _SERVERS))


@TABLES.register("table3")
def table3() -> Table:
    """Backbones with GeM, with and without whitening, and NetVLAD."""
    table, rows = "table3_ablation_gem", []
    for loss in ("cl", "gcl"):
        recipe = RECIPES[f"msls_vgg16_netvlad64_{loss}"]()
        rows += _pair(table, "NetVLAD", recipe, NETVLAD_DIM, loss=loss.upper())
    for short, name in _NAMES.items():
        for loss in ("cl", "gcl"):
            recipe = RECIPES[f"msls_{short}_gem_{loss}"]()
            rows += _pair(table, f"{name}-GeM", recipe, _GEM_DIMS[short], loss=loss.upper())
    return Table("Table 3: backbones with GeM", tuple(rows), notes=(_WHITENING, _SERVERS))


@TABLES.register("table4")
def table4() -> Table:
    """Losses, VGG16. The published figures are of CMU Seasons, ours of Extended CMU Seasons."""
    named = zip(recipes.TABLE4_LOSSES, _TABLE4_NAMES, strict=True)
    rows = [Row(printed, recipes.other_loss(name), CMU, parts=True) for name, printed in named]
    rows.append(Row("GCL (Ours)", RECIPES["msls_vgg16_gem_gcl"](), CMU, parts=True))
    rows.append(Row("GCL (Ours w/ ResNeXt)", RECIPES["msls_resnext_gem_gcl"](), CMU, parts=True))
    notes = [
        f"other protocol: published on CMU Seasons, not Extended CMU Seasons — {_printed(row.label)}" for row in rows
    ]
    return Table("Table 4: losses", tuple(rows), notes=(*notes, _SERVERS))


_TABLE4_NAMES = (
    "Triplet (original NetVLAD)", "Quadruplet", "Lazy triplet", "Lazy quadruplet", "Triplet + Huber distance",
    "Log-ratio", "Multi-similarity", "Soft contrastive",
)  # fmt: skip


def _printed(label: str) -> str:
    values = [
        f"{p.value:g}" for p in published() if p.table == "table4_losses_cmu" and p.method == label and not p.part
    ]
    return f"{label}: {' / '.join(values)}"


@TABLES.register("table5")
def table5() -> Table:
    """Cost of training: NetVLAD with triplets and mining against the method."""
    names = {"msls_vgg16_netvlad16_triplet": "NetVLAD-16-TL", "msls_vgg16_netvlad64_triplet": "NetVLAD-64-TL"}
    names |= {f"msls_{short}_gem_gcl": _TABLE5_NAMES[short] for short in _NAMES}
    rows = tuple(Row(printed, RECIPES[name](), ()) for name, printed in names.items())
    return Table("Table 5: cost of training", rows, cost=True)


_TABLE5_NAMES = {
    "vgg16": "VGG16-GeM-GCL", "resnet50": "ResNet50-GeM-GCL", "resnet152": "ResNet152-GeM-GCL",
    "resnext": "ResNetXt-GeM-GCL",
}  # fmt: skip


@TABLES.register("table6")
def table6() -> Table:
    """Extended CMU Seasons by surroundings."""
    return Table("Table 6: Extended CMU Seasons by surroundings", _by_parts("table6_cmu_detailed", CMU), notes=_DETAIL)


@TABLES.register("table7")
def table7() -> Table:
    """RobotCar Seasons v2 by condition."""
    return Table(
        "Table 7: RobotCar Seasons v2 by condition", _by_parts("table7_robotcar_detailed", ROBOTCAR), notes=_DETAIL
    )


_DETAIL = (_WHITENING, "the server's figures by part go into scores.csv; likely misprints are left out")


def _by_parts(table: str, benchmarks: tuple[str, ...]) -> tuple[Row, ...]:
    """Every model of Tables 2, 3 and 9 with its figures by condition or surroundings."""
    rows = []
    for clusters in (64, 16):
        recipe = RECIPES[f"msls_vgg16_netvlad{clusters}_triplet"]()
        rows += _pair(table, f"NetVLAD-{clusters}", recipe, NETVLAD_DIM, benchmarks)
    for method, recipe, dim in _all_models():
        rows += _pair(table, method, recipe, dim, benchmarks)
    return tuple(replace(row, parts=True) for row in rows)


def _all_models() -> list[tuple[str, Recipe, int]]:
    """Printed name, recipe and whitened size of the models of Tables 3 and 9."""
    models = []
    for short, name in _NAMES.items():
        for pool, shown in (("avg", "avg"), ("gem", "GeM")):
            for loss in ("cl", "gcl"):
                dim = _GEM_DIMS[short] if pool == "gem" else _AVG_DIMS[short][loss]
                models.append((f"{name}-{shown}-{loss.upper()}", RECIPES[f"msls_{short}_{pool}_{loss}"](), dim))
    return models


@TABLES.register("table8")
def table8() -> Table:
    """Pittsburgh 250k and TokyoTM."""
    rows = []
    for method, recipe, dim in _all_models():
        rows += _pair("table8_pitts250k_tokyotm", method, recipe, dim, ("pitts250k_test", "tokyotm_val"))
    return Table("Table 8: Pittsburgh 250k and TokyoTM", tuple(rows), notes=(_WHITENING,))


@TABLES.register("table9")
def table9() -> Table:
    """Backbones with average pooling, with and without whitening."""
    rows = []
    for method, recipe, dim in _all_models():
        if recipe.model.pool == "avg":
            rows += _pair("table9_ablation_avg", method, recipe, dim)
    return Table("Table 9: backbones with average pooling", tuple(rows), notes=(_WHITENING, _SERVERS))


@TABLES.register("table10")
def table10() -> Table:
    """Batch compositions A to D."""
    rows = []
    for short, name in _NAMES.items():
        for strategy in "ABCD":
            suffix = "" if strategy == "A" else f"_{strategy.lower()}"
            method = f"{name}-GeM-GCL, strategy {strategy}"
            figures = _figures("table10_batch_strategies", method)
            rows.append(Row(method, RECIPES[f"msls_{short}_gem_gcl{suffix}"](), _MSLS, published=figures))
    return Table("Table 10: batch compositions", tuple(rows), notes=(_SERVERS,))


@TABLES.register("table11")
def table11() -> Table:
    """Average precision on 7Scenes."""
    rows = []
    for scene in SCENES:
        name = f"7scenes_{scene}"
        shelf = tuple(p for p in published(name) if p.method == "netvlad_off_the_shelf")
        rows.append(Row(f"{scene} NetVLAD off the shelf", None, (name,), published=shelf, model=OFF_THE_SHELF))
        for backbone in ("resnet18", "resnet34"):
            for loss in ("cl", "gcl"):
                figures = tuple(p for p in published(name) if p.method == f"{backbone}_{loss}")
                recipe = RECIPES[f"{name}_{backbone}_{loss}"]()
                rows.append(Row(f"{scene} {backbone} {loss.upper()}", recipe, (name,), published=figures))
    names = {f"{b}_{loss}": f"{b} {loss.upper()}" for b in ("resnet18", "resnet34") for loss in ("cl", "gcl")}
    names["netvlad_off_the_shelf"] = "NetVLAD off the shelf"
    printed = (p for p in published() if p.table == "table11_7scenes_ap" and not p.benchmark)
    means = tuple(replace(p, method=names[p.method], benchmark=MEAN) for p in printed)
    return Table("Table 11: average precision, 7Scenes", tuple(rows), mean_over=tuple(SCENES), published_means=means)


@TABLES.register("figure_whitening")
def figure_whitening() -> Table:
    """Recall against whitened size; the truth of MSLS test is hidden, so its curve is left out."""
    streets = ("msls_val", "pitts30k_test", "tokyo247_cutouts")
    rows = [
        Row(f"{name}-GeM-{loss.upper()}", RECIPES[f"msls_{short}_gem_{loss}"](), streets, sweep=True, fit_images=None)
        for short, name in _NAMES.items()
        for loss in ("cl", "gcl")
    ]
    return Table("Figure: recall against whitened size", tuple(rows), figure="sizes", notes=(_WHITENING,))


@TABLES.register("figure_tb_places")
def figure_tb_places() -> Table:
    """Recall@k in the garden: W18 against W17, and the halves of W18."""
    gardens = ("tb_places_w17_w18", "tb_places_w18")
    rows = [Row("NetVLAD off the shelf", None, gardens, model=OFF_THE_SHELF)]
    for backbone in ("resnet18", "resnet34", "densenet161"):
        for loss in ("cl", "gcl"):
            rows.append(Row(f"{backbone} {loss.upper()}", RECIPES[f"tb_places_{backbone}_{loss}"](), gardens))
    return Table("Figure: recall on TB-Places", tuple(rows), figure="recall")


@TABLES.register("figure_7scenes")
def figure_7scenes() -> Table:
    """Recall@k in each room."""
    return replace(table11(), title="Figure: recall on 7Scenes", figure="recall", mean_over=(), published_means=())


@TABLES.register("figure_batches")
def figure_batches() -> Table:
    """How ψ is distributed in the batches of each composition."""
    names = {"binary": "msls_vgg16_gem_gcl_binary", "A": "msls_vgg16_gem_gcl"}
    names |= {strategy: f"msls_vgg16_gem_gcl_{strategy.lower()}" for strategy in "BCD"}
    rows = tuple(Row(f"{kind} batches", RECIPES[name](), ()) for kind, name in names.items())
    return Table("Figure: similarity in the batches", rows, figure="batches")


@TABLES.register("figure_tsne")
def figure_tsne() -> Table:
    """Descriptor differences of similar and other pairs, CL against GCL."""
    return Table("Figure: differences of descriptors (t-SNE)", _both_losses("resnet50"), figure="differences")


@TABLES.register("figure_activations")
def figure_activations() -> Table:
    """What in an image makes two descriptors alike, CL against GCL."""
    streets = ("msls_val", "pitts30k_test", "tokyo247_cutouts")
    rows = tuple(row for short in ("vgg16", "resnet50") for row in _both_losses(short, streets))
    hidden = "MSLS test is left out: its pairs are known to the server only"
    return Table("Figure: activations", rows, figure="activations", notes=(hidden,))


@TABLES.register("figure_overlap")
def figure_overlap() -> Table:
    """ψ against distance and angle of the training pairs."""
    row = Row("VGG-GeM-GCL", RECIPES["msls_vgg16_gem_gcl"](), ("msls_val",))
    return Table("Figure: overlap against distance and angle", (row,), figure="overlap")


def _both_losses(short: str, benchmarks: tuple[str, ...] = ("msls_val",)) -> tuple[Row, ...]:
    return tuple(
        Row(f"{_NAMES[short]}-GeM-{loss.upper()}", RECIPES[f"msls_{short}_gem_{loss}"](), benchmarks)
        for loss in ("cl", "gcl")
    )


@TABLES.register("town_table1")
def town_table1() -> Table:
    """Table 1's question on the town's unseen streets."""
    base = recipes.town_base()
    rows = (
        Row("CL, binary batches", cl(base), ("town",)),
        Row("GCL, binary batches", binary_batches(gcl(base)), ("town",)),
        Row("CL, graded batches", cl_graded(base), ("town",)),
        Row("GCL, graded batches", gcl(base), ("town",)),
    )
    return Table("Labels in batch and loss, on the town", rows, seeds=3)


def _figures(table: str, method: str, loss: str = "", whitened: bool | None = None) -> tuple[Published, ...]:
    """What was printed for a method, including likely misprints (which are marked `doubtful`)."""
    wanted = method.casefold()
    figures = (p for p in published() if p.table == table and p.method.casefold().removesuffix("*") == wanted)
    return tuple(p for p in figures if p.loss in ("", loss) and p.whitened == whitened)


def _pair(
    table: str, method: str, recipe: Recipe, dim: int, benchmarks: tuple[str, ...] = STREETS, *, loss: str = ""
) -> list[Row]:
    """A row as it is and one whitened to `dim`."""
    label = f"{method}-{loss}" if loss else method
    plain = Row(label, recipe, benchmarks, published=_figures(table, method, loss, False), fit_images=None)
    return [plain, replace(plain, whiten=dim, published=_figures(table, method, loss, True))]
