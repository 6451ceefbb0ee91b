"""What training minimises: frozen values that turn descriptors and similarities into one loss a pair or tuple."""

from covis.losses.pairs import Contrastive, GeneralizedContrastive, PairLoss

LOSSES: dict[str, type[PairLoss]] = {"contrastive": Contrastive, "generalized_contrastive": GeneralizedContrastive}
"""Names of losses in recipes and manifests."""

__all__ = ["LOSSES", "Contrastive", "GeneralizedContrastive", "PairLoss"]
