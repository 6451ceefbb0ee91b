"""A calibration that is read from a file, of a stranger perhaps: each value of its kind, or the file is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from covis.core.errors import Damaged
from covis.maps.calibration import Calibration

_KINDS: dict[str, Any] = {"int": int, "float": int | float, "str": str, "bool": bool}

_FARTHEST_M = 2.1e7
"""Half around the Earth."""


def read_calibration(record: Mapping[str, Any], source: object) -> Calibration:
    """The calibration of a record; `Damaged`, with the file or map `source`, where a value is missing or odd."""
    try:
        calibration = Calibration.from_dict(record)
        for field in fields(calibration):
            value = getattr(calibration, field.name)
            kind = _KINDS.get(str(field.type))
            if kind is not None and not (isinstance(value, kind) and (isinstance(value, str) or np.isfinite(value))):
                raise ValueError(field.name)
        if not 0 < calibration.radius_of_agreement_m < _FARTHEST_M:
            raise ValueError("radius_of_agreement_m")
        fits = (calibration.overlap, calibration.probability, calibration.others, calibration.presence)
        for fitted, sizes in zip(fits, ((), (8, 10), (7,), (9,)), strict=True):
            weights = getattr(fitted, "weights", ())
            if sizes and fitted is not None and len(weights) not in sizes:  # another version's evidence
                raise ValueError(type(fitted).__name__)
            probe = np.zeros((1, max(1, len(weights))))
            if fitted is not None and (np.size(fitted(probe)) != 1 or not np.isfinite(fitted(probe)).all()):
                raise ValueError(type(fitted).__name__)
        calibration.summary()
        calibration.radius_m(np.array([0.5]))
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, IndexError, OverflowError):
        raise Damaged(f"{source} has a calibration that cannot be read; restore it, or export the map again") from None
    return calibration
