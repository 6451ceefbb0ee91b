"""What training minimises: frozen values that turn descriptors and similarities into one loss per pair or tuple."""

from covis.core.registry import import_modules
from covis.losses.lists import (
    AveragePrecision,
    BatchMultiSimilarity,
    ListLoss,
    ListwiseSoftmax,
    RelaxedContrastive,
    SoftSupervisedContrastive,
)
from covis.losses.pairs import (
    LOSSES,
    Contrastive,
    GeneralizedContrastive,
    Loss,
    OverlapRegression,
    PairLoss,
    SoftContrastive,
)
from covis.losses.tuples import (
    LazyQuadruplet,
    LazyTriplet,
    LogRatio,
    MultiSimilarity,
    Quadruplet,
    Sare,
    Triplet,
    TripletHuber,
    TupleLoss,
)

__all__ = [
    "LOSSES",
    "AveragePrecision",
    "BatchMultiSimilarity",
    "Contrastive",
    "GeneralizedContrastive",
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
    "RelaxedContrastive",
    "Sare",
    "SoftContrastive",
    "SoftSupervisedContrastive",
    "Triplet",
    "TripletHuber",
    "TupleLoss",
]

import_modules(__name__, __path__)
