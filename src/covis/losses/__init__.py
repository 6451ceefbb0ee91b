"""What training minimises: frozen values that turn descriptors and similarities into one loss a pair or tuple."""

from covis.losses.base import LOSSES, Loss
from covis.losses.pairs import Contrastive, GeneralizedContrastive, PairLoss, SoftContrastive
from covis.losses.tuples import (
    LazyQuadruplet,
    LazyTriplet,
    LogRatio,
    MultiSimilarity,
    Quadruplet,
    Triplet,
    TripletHuber,
    TupleLoss,
)

__all__ = [
    "LOSSES",
    "Contrastive",
    "GeneralizedContrastive",
    "LazyQuadruplet",
    "LazyTriplet",
    "LogRatio",
    "Loss",
    "MultiSimilarity",
    "PairLoss",
    "Quadruplet",
    "SoftContrastive",
    "Triplet",
    "TripletHuber",
    "TupleLoss",
]
