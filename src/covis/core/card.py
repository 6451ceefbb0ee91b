"""Facts as a card in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # text tables are printed by commands that import nothing heavy
    from covis.core.arrays import Floats


_SIDE = 180
_DOTS = 2000


def card(title: str, facts: Mapping[str, Any], xy: Floats | None = None, pictures: Sequence[str] = ()) -> str:
    """HTML of a titled table of facts, beside pictures (addresses) and a sketch of positions xy (N, 2) in metres if given."""
    from jinja2 import Environment

    dots, extent = ([], 0.0) if xy is None else _sketch(xy)
    template = Environment(autoescape=True).from_string(_CARD)
    return template.render(title=title, facts=facts, dots=dots, extent=extent, side=_SIDE, pictures=pictures)


_CARD = """\
<div style="display:flex;gap:1em;align-items:center"><table><caption><b>{{ title }}</b></caption>
{%- for key, value in facts.items() %}
<tr><th scope="row" style="text-align:left">{{ key }}</th><td style="text-align:left">{{ value }}</td></tr>
{%- endfor %}</table>
{%- for picture in pictures %}<img src="{{ picture }}" alt="" style="max-height:180px">{% endfor %}
{%- if dots %}
<svg viewBox="0 0 {{ side }} {{ side }}" width="{{ side }}" height="{{ side }}" role="img" aria-label="positions, north up">
<g fill="#4051b5" fill-opacity=".6">
{%- for x, y in dots %}<circle cx="{{ x }}" cy="{{ y }}" r="2"/>{% endfor -%}
</g><text x="6" y="{{ side - 2 }}" font-size="10" fill="currentColor">{{ "%.0f" | format(extent) }} m across</text></svg>
{%- endif %}</div>"""


def _sketch(xy: Floats) -> tuple[list[tuple[float, float]], float]:
    """Positions as points of a square drawing, and its width in metres."""
    import numpy as np

    xy = xy[np.isfinite(xy).all(axis=1)]
    if not len(xy):
        return [], 0.0
    xy = xy[:: max(1, len(xy) // _DOTS)]
    low, high = xy.min(axis=0), xy.max(axis=0)
    extent = max(float((high - low).max()), 1.0)
    at = 8 + (xy - (low + high) / 2 + extent / 2) / extent * (_SIDE - 16)
    return [(round(float(x), 1), round(float(_SIDE - y), 1)) for x, y in at], extent
