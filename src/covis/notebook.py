"""How things look in a notebook: a small table of facts, and positions as dots, north up."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from covis.arrays import Floats

_SIDE = 180
_DOTS = 2000


def card(title: str, facts: Mapping[str, Any], xy: Floats | None = None) -> str:
    """HTML of a titled table of facts, beside a sketch of positions xy (N, 2) in metres if given."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(str(key))}</th><td style="text-align:left">{escape(str(value))}</td></tr>'
        for key, value in facts.items()
    )
    sketch = "" if xy is None else _sketch(xy[np.isfinite(xy).all(axis=1)])
    table = f"<table><caption><b>{escape(title)}</b></caption>{rows}</table>"
    return f'<div style="display:flex;gap:1em;align-items:center">{table}{sketch}</div>'


def _sketch(xy: Floats) -> str:
    """Positions as an SVG of one scale, with its width in metres."""
    if not len(xy):
        return ""
    xy = xy[:: max(1, len(xy) // _DOTS)]
    low, high = xy.min(axis=0), xy.max(axis=0)
    extent = max(float((high - low).max()), 1.0)
    at = 8 + (xy - (low + high) / 2 + extent / 2) / extent * (_SIDE - 16)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{_SIDE - y:.1f}" r="2"/>' for x, y in at)
    label = f'<text x="6" y="{_SIDE - 2}" font-size="10" fill="currentColor">{extent:.0f} m across</text>'
    shape = (
        f'viewBox="0 0 {_SIDE} {_SIDE}" width="{_SIDE}" height="{_SIDE}" role="img" aria-label="positions, north up"'
    )
    return f'<svg {shape}><g fill="#4051b5" fill-opacity=".6">{dots}</g>{label}</svg>'
