"""What training minimises: frozen values that turn descriptors and similarities into one loss per pair or tuple."""

from covis.core.registry import import_modules
from covis.losses.pairs import (
    LOSSES,
    Contrastive,
    GeneralizedContrastive,
    Loss,
    OverlapRegression,
    PairLoss,
    RelocNet,
    SoftContrastive,
)
from covis.losses.tuples import (
    AveragePrecision,
    ClassLoss,
    LargeMarginCosine,
    LazyQuadruplet,
    LazyTriplet,
    ListLoss,
    ListwiseSoftmax,
    LogRatio,
    MultiSimilarity,
    Quadruplet,
    RegionLoss,
    RegionSimilarity,
    RelaxedContrastive,
    Sare,
    SoftSupervisedContrastive,
    Triplet,
    TripletHuber,
    TupleLoss,
)

__all__ = [
    "LOSSES",
    "AveragePrecision",
    "ClassLoss",
    "Contrastive",
    "GeneralizedContrastive",
    "LargeMarginCosine",
    "LazyQuadruplet",
    "LazyTriplet",
    "ListLoss",
    "ListwiseSoftmax",
    "LogRatio",
    "Loss",
    "MultiSimilarity",
    "OverlapRegression",
    "PairLoss",
    "Quadruplet",
    "RegionLoss",
    "RegionSimilarity",
    "RelaxedContrastive",
    "RelocNet",
    "Sare",
    "SoftContrastive",
    "SoftSupervisedContrastive",
    "Triplet",
    "TripletHuber",
    "TupleLoss",
]

import_modules(__name__, __path__)
