"""The method's tables as experiments, and the same questions asked of the town."""

from __future__ import annotations

from dataclasses import replace

from covis.evaluation.published import Published, published
from covis.experiments import indoor, msls, town
from covis.experiments.campus import GRADED
from covis.experiments.tables import TABLES, Row, Table
from covis.experiments.variants import binary_batches, cl, cl_graded, gcl
from covis.losses import LOSSES
from covis.sampling import AllPairs, Tuples
from covis.training.recipe import RECIPES, Recipe

NAMES = {"vgg16": "VGG", "resnet50": "ResNet50", "resnet152": "ResNet152", "resnext": "ResNeXt"}
STREETS = ("msls_val", "pitts30k_test", "tokyo247_cutouts")
_TABLE3_DIMS = {"vgg16": 512, "resnet50": 1024, "resnet152": 2048, "resnext": 1024}
_TABLE9_DIMS = {
    "vgg16": {"cl": 128, "gcl": 256}, "resnet50": {"cl": 2048, "gcl": 1024},
    "resnet152": {"cl": 1024, "gcl": 2048}, "resnext": {"cl": 1024, "gcl": 1024},
}  # fmt: skip


@TABLES.register("table1")
def table1() -> Table:
    """Which labels compose the batches and which enter the loss."""
    rows = []
    for loss, batch in (("CL", "binary"), ("GCL", "binary"), ("CL", "graded"), ("GCL", "graded")):
        plain = (loss, batch) in (("CL", "binary"), ("GCL", "graded"))
        name = f"msls_vgg16_gem_{loss.lower()}" + ("" if plain else f"_{batch}")
        figures = _published("table1_batch_and_loss", f"VGG-GeM, {batch} batches", loss)
        rows.append(Row(f"VGG-GeM {loss}, {batch} batches", RECIPES[name](), ("msls_val",), published=figures))
    return Table("Table 1: labels in batch and loss", tuple(rows))


@TABLES.register("table3")
def table3() -> Table:
    """Backbones with GeM, with and without whitening, and NetVLAD."""
    rows = []
    for loss in ("cl", "gcl"):
        recipe = RECIPES[f"msls_vgg16_netvlad64_{loss}"]()
        rows += _pair("table3_ablation_gem", "NetVLAD", loss, recipe, 4096)
    for short, name in NAMES.items():
        for loss in ("cl", "gcl"):
            recipe = RECIPES[f"msls_{short}_gem_{loss}"]()
            rows += _pair("table3_ablation_gem", f"{name}-GeM", loss, recipe, _TABLE3_DIMS[short])
    return Table("Table 3: backbones with GeM", tuple(rows))


@TABLES.register("table2")
def table2() -> Table:
    """The method's own rows of the comparison with others."""
    rows = tuple(row for row in table3().rows if " GCL" in row.label)
    return Table("Table 2: the method's rows", rows, notes=("other methods' rows are published by their authors",))


@TABLES.register("table9")
def table9() -> Table:
    """Backbones with average pooling, with and without whitening."""
    rows = []
    for short, name in NAMES.items():
        for loss in ("cl", "gcl"):
            recipe = RECIPES[f"msls_{short}_avg_{loss}"]()
            method = f"{name}-avg-{loss.upper()}"
            rows += _pair("table9_ablation_avg", method, "", recipe, _TABLE9_DIMS[short][loss])
    return Table("Table 9: backbones with average pooling", tuple(rows))


@TABLES.register("table8")
def table8() -> Table:
    """Pittsburgh 250k and TokyoTM, trained on MSLS."""
    rows = []
    for short, name in NAMES.items():
        for pool, shown in (("avg", "avg"), ("gem", "GeM")):
            for loss in ("cl", "gcl"):
                dim = _TABLE3_DIMS[short] if pool == "gem" else _TABLE9_DIMS[short][loss]
                method = f"{name}-{shown}-{loss.upper()}"
                recipe = RECIPES[f"msls_{short}_{pool}_{loss}"]()
                rows += _pair("table8_pitts250k_tokyotm", method, "", recipe, dim, ("pitts250k_test", "tokyotm_val"))
    return Table("Table 8: Pittsburgh 250k and TokyoTM", tuple(rows))


@TABLES.register("table4")
def table4() -> Table:
    """Losses, VGG16. The published figures are on CMU Seasons' server; here they are compared on MSLS validation."""
    rows = [Row(name.replace("_", " "), msls.other_loss(name), ("msls_val",)) for name in msls.TABLE4_LOSSES]
    rows.append(Row("GCL", RECIPES["msls_vgg16_gem_gcl"](), ("msls_val",)))
    return Table("Table 4: losses", tuple(rows), notes=("published on CMU Seasons, whose truth is on a server",))


@TABLES.register("table5")
def table5() -> Table:
    """Cost of training: NetVLAD with triplets and mining against the method."""
    names = ["msls_vgg16_netvlad16_triplet", "msls_vgg16_netvlad64_triplet"]
    names += [f"msls_{short}_gem_gcl" for short in NAMES]
    return Table("Table 5: cost of training", tuple(Row(name, RECIPES[name](), ("msls_val",)) for name in names))


@TABLES.register("table10")
def table10() -> Table:
    """Batch compositions A to D."""
    rows = []
    for short, name in NAMES.items():
        for strategy in "ABCD":
            suffix = "" if strategy == "A" else f"_{strategy.lower()}"
            figures = _published("table10_batch_strategies", f"{name}-GeM-GCL, strategy {strategy}", "")
            recipe = RECIPES[f"msls_{short}_gem_gcl{suffix}"]()
            rows.append(Row(f"{name}-GeM-GCL, strategy {strategy}", recipe, ("msls_val",), published=figures))
    return Table("Table 10: batch compositions", tuple(rows))


@TABLES.register("table11")
def table11() -> Table:
    """Average precision on 7Scenes."""
    rows = []
    for scene in indoor.SCENES:
        for backbone in ("resnet18", "resnet34"):
            for loss in ("cl", "gcl"):
                name = f"7scenes_{scene}"
                figures = tuple(p for p in published(name) if p.method == f"{backbone}_{loss}")
                recipe = RECIPES[f"{name}_{backbone}_{loss}"]()
                rows.append(Row(f"{scene} {backbone} {loss.upper()}", recipe, (name,), published=figures))
    return Table("Table 11: average precision, 7Scenes", tuple(rows))


@TABLES.register("town_table1")
def town_table1() -> Table:
    """Table 1's question on the town's unseen streets."""
    base = town.base()
    rows = (
        Row("CL, binary batches", cl(base), ("town",)),
        Row("GCL, binary batches", binary_batches(gcl(base)), ("town",)),
        Row("CL, graded batches", cl_graded(base), ("town",)),
        Row(GRADED, gcl(base), ("town",)),
    )
    return Table("Labels in batch and loss, on the town", rows, seeds=3)


@TABLES.register("town_all_pairs")
def town_all_pairs() -> Table:
    """All pairs of a batch's images against disjoint pairs, by forward passes."""
    pairs = gcl(town.base())
    steps = pairs.steps or 1
    wide = replace(pairs, batches=AllPairs(size=2 * pairs.batches.size))
    rows = [Row(GRADED, pairs, ("town",))]
    rows += [Row(f"all pairs, 1/{n} of the images", replace(wide, steps=steps // n), ("town",)) for n in (1, 2, 4)]
    return Table("All-pairs batches, on the town", tuple(rows), seeds=3)


@TABLES.register("town_losses")
def town_losses() -> Table:
    """The losses of Table 4 on the town, at equal forward passes; mining is counted apart."""
    pairs = gcl(town.base())
    rows = [Row(GRADED, pairs, ("town",))]
    images = 2 * pairs.batches.size * (pairs.steps or 1)
    for name in msls.TABLE4_LOSSES:
        recipe = _on_town(name, pairs, images)
        rows.append(Row(name.replace("_", " "), recipe, ("town",)))
    return Table("Losses at equal forward passes, on the town", tuple(rows), seeds=3)


def _on_town(name: str, pairs: Recipe, images: int) -> Recipe:
    loss = LOSSES[name]()
    if loss.shape != "tuples":
        return replace(pairs, loss=loss)
    batches = Tuples(8, negatives=6, mined=True, refresh=50, pool=400)
    return replace(pairs, loss=loss, batches=batches, steps=images // (8 * 8))


def _published(table: str, method: str, loss: str, whitened: bool | None = None) -> tuple[Published, ...]:
    found = (p for p in published() if p.table == table and p.method == method and p.loss in ("", loss))
    return tuple(p for p in found if p.whitened == whitened and not p.doubtful)


def _pair(
    table: str, method: str, loss: str, recipe: Recipe, dim: int, benchmarks: tuple[str, ...] = STREETS
) -> list[Row]:
    """A row as it is and one whitened to `dim`."""
    label = f"{method} {loss.upper()}".strip()
    plain = Row(label, recipe, benchmarks, published=_published(table, method, loss.upper(), False))
    white = _published(table, method, loss.upper(), True)
    return [plain, Row(label, recipe, benchmarks, whiten=dim, published=white)]
