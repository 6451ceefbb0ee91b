"""Array types, one name each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Descriptors = NDArray[np.float32]
"""(N, dim), one unit vector per image."""
Ids = NDArray[np.int64]
Bools = NDArray[np.bool_]
