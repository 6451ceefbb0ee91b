"""What training minimises: frozen values that turn descriptors and similarities into one loss a pair or tuple."""

from covis.losses.lists import (
    AveragePrecision,
    ClassLoss,
    LargeMarginCosine,
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
    RelocNet,
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
    "RelaxedContrastive",
    "RelocNet",
    "Sare",
    "SoftContrastive",
    "SoftSupervisedContrastive",
    "Triplet",
    "TripletHuber",
    "TupleLoss",
]
