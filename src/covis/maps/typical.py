"""Probabilities of maps that are too small to test themselves: those of other small maps.

Fitted to 45 maps of 10 to 49 photos of the campus (`train`, MobileNetV2, no whitening), each asked with photos of other
walks at its places, with photos of places over 75 m away, and with the bank. On small maps of `west` the calibration
error over half of photos from elsewhere is 3.2 points.
"""

from covis.logistic import Logistic

TYPICAL_RIGHT = Logistic(
    weights=(0.0, 0.0, 0.0, 0.717, 0.156, 0.097, 0.0, 0.0),
    bias=0.153,
    mean=(0.0, 0.0, 0.0, 0.302, -0.804, 0.751, 0.0, 0.0),
    scale=(1.0, 1.0, 1.0, 1.168, 0.389, 0.616, 1.0, 1.0),
)
"""P of the first match given that the map has the place, from `Evidence.first`: shares of matches and votes, and walks."""
TYPICAL_PRESENCE = Logistic(
    weights=(-0.195, 0.0, 0.0, -0.044, 0.014, -0.051, 0.0, 0.0, 2.917),
    bias=-0.808,
    mean=(1.34, 0.0, 0.0, 0.317, -0.804, 0.74, 0.0, 0.0, -0.044),
    scale=(0.04, 1.0, 1.0, 1.176, 0.39, 0.612, 1.0, 1.0, 0.178),
)
"""Probability that the map has the place, from `Evidence.presence`."""
