"""What training minimises: frozen values that turn descriptors and similarities into one loss a pair or tuple."""

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

LOSSES: dict[str, type[PairLoss] | type[TupleLoss]] = {
    "contrastive": Contrastive,
    "generalized_contrastive": GeneralizedContrastive,
    "soft_contrastive": SoftContrastive,
    "triplet": Triplet,
    "triplet_huber": TripletHuber,
    "lazy_triplet": LazyTriplet,
    "quadruplet": Quadruplet,
    "lazy_quadruplet": LazyQuadruplet,
    "log_ratio": LogRatio,
    "multi_similarity": MultiSimilarity,
}
"""Names of losses in recipes, manifests and on the command line; every one has defaults for all its fields."""

__all__ = [
    "LOSSES",
    "Contrastive",
    "GeneralizedContrastive",
    "LazyQuadruplet",
    "LazyTriplet",
    "LogRatio",
    "MultiSimilarity",
    "PairLoss",
    "Quadruplet",
    "SoftContrastive",
    "Triplet",
    "TripletHuber",
    "TupleLoss",
]
