"""Experiments on street views and drives with exact poses, and on campus walks: every pair of a batch counts.

Sixty steps over all pairs of 48 images from 12 places train the last two blocks with AdamW. The margin is 1, as wide as
the distances that a pretrained network starts from. Each loss has the rate that suited it best on the held-out part of
`train` (tables `cambridge_rates`, `racetrack_rates`). `val` is scored only at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from covis.evaluation.whitening_fits import PHOTO_VIEWS
from covis.experiments.recipes import SAME_PLACE
from covis.experiments.tables import TABLES, Row, Table
from covis.labels import FovOverlap
from covis.losses import Contrastive, GeneralizedContrastive, ListwiseSoftmax, Loss
from covis.models import ModelConfig
from covis.sampling import AllPairs
from covis.training.recipe import RECIPES, Optimiser, Recipe
from covis.whitening import PCA, WhiteningRule
from evidence import campus
from evidence.campus import GRADED
from evidence.datasets import JOINED, WITHOUT

_MODEL = ModelConfig("mobilenetv2_100", "gem", (160, 160), "last2", "pretrained")
_BATCHES = AllPairs(size=48, places=12, partners="other_groups")
MARGIN = 1.0
_STEPS = 60
PHOTO_GRADES = replace(PHOTO_VIEWS, exponent=2.0)
"""25 m, squared: follows the share of pairs that look alike on all three sets (`evidence/bench_agreement.py`)."""
METHOD = FovOverlap(radius_m=50.0, fov_deg=90.0)
GRADES = {"cambridge": METHOD, "racetrack": METHOD, "campus": PHOTO_GRADES}
"""The method's field of view for its own kind of data (street views and drives), that of photos for photos."""
RATES = (3e-5, 1e-4, 3e-4)
BEST = {
    "cambridge": {"CL": 1e-4, "GCL": 1e-4, "listwise": 3e-4, "listwise yes/no": 1e-4},
    "racetrack": {"CL": 1e-4, "GCL": 1e-4, "listwise": 1e-4, "listwise yes/no": 3e-5},
    "campus": {"CL": 3e-5, "GCL": 3e-4, "listwise": 3e-4, "listwise yes/no": 3e-4},
}
"""Dataset → loss → its best rate on the held-out part, by the mean of Recall@1, 5 and 10; on the race track, where
those are all 100 %, by Recall@1 within 2, 5 and 10 m. The campus rates are of an earlier trial on other parts of it."""


def survey_base(dataset: str, loss: Loss, rate: float) -> Recipe:
    """What these recipes share."""
    return Recipe(
        dataset=dataset,
        model=_MODEL,
        labels=GRADES[dataset],
        loss=loss,
        batches=_BATCHES,
        optimiser=Optimiser("adamw", learning_rate=rate, weight_decay=1e-4, schedule="cosine", warmup=0.1),
        steps=_STEPS,
    )


def survey_gcl(dataset: str, strategy: str = "A") -> Recipe:
    """GCL; batches weighted by grade as strategy A, B, C or D says."""
    recipe = survey_base(dataset, GeneralizedContrastive(margin=MARGIN), BEST[dataset]["GCL"])
    return replace(recipe, batches=replace(_BATCHES, strategy=strategy))


def gcl_binary(dataset: str) -> Recipe:
    """GCL; half of a batch's weight on pairs of one place, half on others."""
    return replace(survey_gcl(dataset), batches=replace(_BATCHES, strategy="binary", composed_by=SAME_PLACE))


def survey_cl(dataset: str) -> Recipe:
    """Binary-label counterpart: positive within 25 m and 40°, in the batches and in the loss."""
    recipe = survey_base(dataset, Contrastive(margin=MARGIN), BEST[dataset]["CL"])
    return replace(recipe, labels=SAME_PLACE, batches=replace(_BATCHES, strategy="binary"))


def survey_cl_graded(dataset: str) -> Recipe:
    """CL with batches weighted by grade; pairs with ψ of at least 0.5 are one place."""
    return survey_base(dataset, Contrastive(margin=MARGIN), BEST[dataset]["CL"])


def listwise(dataset: str) -> Recipe:
    """Each image against all others of its batch: the softmax of their similarities follows ψ² of 25 m."""
    recipe = survey_base(dataset, ListwiseSoftmax(power=2.0), BEST[dataset]["listwise"])
    return replace(recipe, labels=PHOTO_VIEWS)


def listwise_binary(dataset: str) -> Recipe:
    """Binary-label counterpart: the softmax follows 25 m and 40°."""
    recipe = survey_base(dataset, ListwiseSoftmax(), BEST[dataset]["listwise yes/no"])
    return replace(recipe, labels=SAME_PLACE, batches=replace(_BATCHES, strategy="binary"))


RECIPES.update(
    {
        "cambridge_gcl": partial(survey_gcl, "cambridge"),
        "cambridge_gcl_binary": partial(gcl_binary, "cambridge"),
        "cambridge_cl": partial(survey_cl, "cambridge"),
        "cambridge_cl_graded": partial(survey_cl_graded, "cambridge"),
        "cambridge_listwise": partial(listwise, "cambridge"),
        "cambridge_listwise_binary": partial(listwise_binary, "cambridge"),
        "racetrack_gcl": partial(survey_gcl, "racetrack"),
        "racetrack_gcl_binary": partial(gcl_binary, "racetrack"),
        "racetrack_cl": partial(survey_cl, "racetrack"),
        "racetrack_cl_graded": partial(survey_cl_graded, "racetrack"),
        "racetrack_listwise": partial(listwise, "racetrack"),
        "racetrack_listwise_binary": partial(listwise_binary, "racetrack"),
        "campus_all_pairs_gcl": partial(survey_gcl, "campus"),
        "campus_all_pairs_gcl_binary": partial(gcl_binary, "campus"),
        "campus_all_pairs_cl": partial(survey_cl, "campus"),
        "campus_all_pairs_cl_graded": partial(survey_cl_graded, "campus"),
        "campus_all_pairs_listwise": partial(listwise, "campus"),
        "campus_all_pairs_listwise_binary": partial(listwise_binary, "campus"),
    }
)

_SEEDS = 3
_WHITENED = 512
STATISTICS, YES_NO = "batch statistics alone", "CL, binary batches"
LISTS_YES_NO = "list-wise softmax, yes/no"
RATED = {"CL": survey_cl, "GCL": survey_gcl, "listwise": listwise, "listwise yes/no": listwise_binary}
"""Losses whose rate is chosen, each with its own batches."""


def at_rate(recipe: Recipe, rate: float) -> Recipe:
    """The recipe at another learning rate."""
    return replace(recipe, optimiser=replace(recipe.optimiser, learning_rate=rate))


def tried_rates(dataset: str, recipes: Mapping[str, Recipe]) -> Table:
    """Each recipe at several rates, trained on what lies apart from `train`'s held-out part, scored on that part."""
    held = (f"{dataset}_held_out",)
    rows = [
        Row(f"{name}, rate {rate:g}", replace(at_rate(recipe, rate), split=WITHOUT), held, graded=True)
        for name, recipe in recipes.items()
        for rate in RATES
    ]
    return Table(f"Rates, {dataset}, on a part held out of train", tuple(rows))


def rates(dataset: str) -> Table:
    """Every loss at several learning rates."""
    return tried_rates(dataset, {name: make(dataset) for name, make in RATED.items()})


def scored(dataset: str, label: str, recipe: Recipe) -> Row:
    """A row scored on `val`, with its figures over grades, metres and stricter radii."""
    return Row(label, recipe, campus.WEST if dataset == "campus" else (f"{dataset}_val",), fit="train", graded=True)


def survey_table1(dataset: str) -> Table:
    """Which labels weigh the batches and which enter the loss, beside what needs no training."""
    frozen = scored(dataset, "frozen", replace(survey_gcl(dataset), steps=0))
    learned = (WhiteningRule(labels="binary"), WhiteningRule(labels="graded"))
    rows = (
        frozen,
        *(replace(frozen, whiten=_WHITENED, whitening=rule) for rule in (PCA, *learned)),
        scored(dataset, STATISTICS, at_rate(survey_gcl(dataset), 1e-6)),
        scored(dataset, YES_NO, survey_cl(dataset)),
        scored(dataset, "GCL, binary batches", gcl_binary(dataset)),
        scored(dataset, "CL, graded batches", survey_cl_graded(dataset)),
        scored(dataset, GRADED, survey_gcl(dataset)),
    )
    title = f"Labels in batch and loss, all pairs, {dataset}"
    return Table(title, rows, _SEEDS, against=(STATISTICS, YES_NO), figure="gains")


def labels(dataset: str) -> Table:
    """Which grades enter the loss: the method's 50 m, or 25 m squared, which follows what looks alike; and lists."""
    rows = (
        scored(dataset, GRADED, survey_gcl(dataset)),
        scored(dataset, "GCL, 25 m squared", replace(survey_gcl(dataset), labels=PHOTO_GRADES)),
        scored(dataset, LISTS_YES_NO, listwise_binary(dataset)),
        scored(dataset, "list-wise softmax, 25 m squared", listwise(dataset)),
    )
    return Table(
        f"Grades and lists, all pairs, {dataset}", rows, _SEEDS, against=(GRADED, LISTS_YES_NO), figure="gains"
    )


def survey_table10(dataset: str) -> Table:
    """How a batch's pairs are weighed by grade: strategies A to D."""
    rows = [scored(dataset, GRADED, survey_gcl(dataset))]
    rows += [scored(dataset, f"GCL, strategy {name}", survey_gcl(dataset, name)) for name in "BCD"]
    return Table(f"Batch composition, all pairs, {dataset}", tuple(rows), _SEEDS, against=(GRADED,), figure="gains")


TABLES.update(
    {
        "cambridge_rates": partial(rates, "cambridge"),
        "cambridge_table1": partial(survey_table1, "cambridge"),
        "cambridge_labels": partial(labels, "cambridge"),
        "cambridge_table10": partial(survey_table10, "cambridge"),
        "racetrack_rates": partial(rates, "racetrack"),
        "racetrack_table1": partial(survey_table1, "racetrack"),
        "racetrack_labels": partial(labels, "racetrack"),
        "racetrack_table10": partial(survey_table10, "racetrack"),
    }
)


def listwise_stopped() -> Recipe:
    """The list-wise softmax on three of four campus walks; the others decide when to stop, or not to train at all."""
    return replace(listwise("campus"), split="known_walks", validation="campus_walks", keep_better=True)


RECIPES.register("campus_all_pairs_listwise_stopped")(listwise_stopped)


_VGG16 = ModelConfig("vgg16", "gem", (96, 96), "last1", "pretrained")
"""The method's own backbone as far as two cores train it in minutes: small images, last block, half of the steps."""
VGG16_RATES = {"CL": 1e-4, "GCL": 3e-5}
"""Loss → its best rate, by table `cambridge_vgg16_rates`."""


def with_vgg16(recipe: Recipe) -> Recipe:
    """The recipe with VGG16."""
    return replace(recipe, model=_VGG16, steps=_STEPS // 2)


@TABLES.register("cambridge_vgg16_rates")
def cambridge_vgg16_rates() -> Table:
    """Both losses at several learning rates, with VGG16."""
    return tried_rates("cambridge", {name: with_vgg16(RATED[name]("cambridge")) for name in VGG16_RATES})


@TABLES.register("cambridge_vgg16")
def cambridge_vgg16() -> Table:
    """Which labels weigh the batches and which enter the loss, with VGG16, which has no batch statistics."""
    recipes = {
        YES_NO: survey_cl("cambridge"),
        "GCL, binary batches": gcl_binary("cambridge"),
        "CL, graded batches": survey_cl_graded("cambridge"),
        GRADED: survey_gcl("cambridge"),
    }
    rows = [scored("cambridge", "frozen", replace(with_vgg16(recipes[GRADED]), steps=0))]
    for label, recipe in recipes.items():
        rate = VGG16_RATES[label.partition(",")[0]]
        rows.append(scored("cambridge", label, at_rate(with_vgg16(recipe), rate)))
    title = "Labels in batch and loss, VGG16, all pairs, cambridge"
    return Table(title, tuple(rows), _SEEDS, against=("frozen", YES_NO), figure="gains")


@TABLES.register("campus_all_pairs")
def campus_all_pairs() -> Table:
    """GCL, the list-wise softmax and their binary-label counterparts over all pairs, on photos with noisy poses."""
    rows = tuple(
        Row(label, recipe, campus.WEST, graded=True)
        for label, recipe in (
            (STATISTICS, at_rate(survey_gcl("campus"), 1e-6)),
            (YES_NO, survey_cl("campus")),
            (GRADED, survey_gcl("campus")),
            (LISTS_YES_NO, listwise_binary("campus")),
            ("list-wise softmax, 25 m squared", listwise("campus")),
            ("list-wise softmax, stopped by held-out walks", listwise_stopped()),
        )
    )
    return Table("All pairs, on the campus", rows, _SEEDS, against=(STATISTICS, YES_NO, LISTS_YES_NO), figure="gains")


def fitted_on_all() -> Recipe:
    """Clusters at several depths of MobileNetV2, fitted to campus photos, and a whitening by grades of three sets."""
    recipe = campus.depths("mobilenetv2")
    rule = WhiteningRule(labels="graded")
    return replace(recipe, dataset=JOINED, labels=PHOTO_VIEWS, steps=0, whitening=rule, start_on="campus/")


RECIPES.register("photo_sets")(fitted_on_all)
TRANSFER_VALS = ("campus_west", "cambridge_val", "racetrack_val")


@TABLES.register("transfer")
def transfer() -> Table:
    """One model for all three sets, in parts that it has not seen, beside one that was fitted on the campus alone."""
    alone = replace(campus.depths("mobilenetv2"), steps=0)
    joined = fitted_on_all()
    rows = (
        Row("fitted on the campus", alone, TRANSFER_VALS, graded=True),
        Row("whitened on all three", replace(joined, whitening=PCA), TRANSFER_VALS, graded=True),
        Row("whitened on all three by graded labels", joined, TRANSFER_VALS, graded=True),
        Row(
            "clusters and whitening by graded labels on all three",
            replace(joined, start_on=""),
            TRANSFER_VALS,
            graded=True,
        ),
    )
    return Table("One model for several places", rows, _SEEDS, against=("fitted on the campus",))


@TABLES.register("consensus")
def consensus() -> Table:
    """What the agreement of the first results' poses is worth on each set, by weights that the map itself chose."""
    plain = Row("whitened on all three by graded labels", fitted_on_all(), TRANSFER_VALS, graded=True)
    return Table("Consensus of poses", (plain, replace(plain, rerank="consensus")), against=(plain.name,))
