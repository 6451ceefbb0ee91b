"""Answers as one self-contained page: each photo beside its matches, and a sketch of where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from covis.images import ImageSet
from covis.maps.answers import Answer, Match, printable, where
from covis.reading.decoding import Reject
from covis.report.page import Section, text, thumbnail, write_page

_THUMB = 220
_SKETCH = 260
_PLACES = 1500
"""Photos of the map that a sketch shows at most."""


def write_answers(path: Path, answers: Sequence[Answer], images: ImageSet, lead: str = "") -> None:
    """Writes the page."""
    sure = sum(a.confident for a in answers)
    head = (
        f"<p>{len(answers)} photos, {sure} with a confident match, in a map of {len(images)} photos. {text(lead)}</p>"
    )
    sections = [Section(printable(a.photo), _body(a, images), f"photo-{i}") for i, a in enumerate(answers)]
    write_page(path, "Where these photos were taken", head + _STYLE, sections)


def _body(answer: Answer, images: ImageSet) -> str:
    verdict = text(answer.lines()[0].split(": ", 1)[-1])
    colour = "sure" if answer.confident else "unsure"
    own = f'<figure class="own">{_thumbnail(answer.photo)}<figcaption>the photo</figcaption></figure>'
    cells = "".join(_cell(rank, match) for rank, match in enumerate(answer.matches, 1))
    return f'<p class="{colour}">{verdict}</p><div class="answer">{own}{_sketch(answer, images)}{cells}</div>'


def _cell(rank: int, match: Match) -> str:
    facts = [where(match.place), f"distance {match.distance:.3f}"]
    facts += [] if match.place.heading is None else [f"heading {match.place.heading:.0f}°"]
    facts += [] if match.overlap is None else [f"overlap {match.overlap:.0%}"]
    facts += [] if match.probability is None else [f"right with {match.probability:.1%}"]
    caption = "<br>".join(text(line) for line in [f"{rank}. {match.image}", *facts])
    return f"<figure>{_thumbnail(match.file)}<figcaption>{caption}</figcaption></figure>"


def _thumbnail(file: Path) -> str:
    """A small picture inside the page; a box where the file is not there any more."""
    try:
        return f'<img alt="" src="{thumbnail(file, _THUMB)}">'
    except Reject as reject:
        return f'<div class="gone">{text(reject.reason)}</div>'


def _sketch(answer: Answer, images: ImageSet) -> str:
    """The map's photos as dots around the matches, north up, with the position and its radius."""
    if answer.position is None:
        return ""
    centre = answer.position.place
    shown = np.array([(m.place.x, m.place.y) for m in answer.matches])
    reach = float(np.abs(shown - (centre.x, centre.y)).max(initial=0.0))
    half = max(60.0, 1.2 * reach, 1.2 * (answer.position.radius_m or 0.0))
    near = images.poses.xy - (centre.x, centre.y)
    near = near[(np.abs(near) <= half).all(axis=1)]
    scale = _SKETCH / (2 * half)
    dots = [_dot(x, y, scale, "place") for x, y in near[:: max(1, len(near) // _PLACES)]]
    dots += [_dot(x, y, scale, "match") for x, y in shown - (centre.x, centre.y)]
    if answer.position.radius_m is not None:
        dots.append(
            f'<circle class="radius" cx="{_SKETCH / 2}" cy="{_SKETCH / 2}" r="{answer.position.radius_m * scale:.1f}"/>'
        )
    dots.append(_dot(0.0, 0.0, scale, "spot"))
    svg = f'<svg viewBox="0 0 {_SKETCH} {_SKETCH}" width="{_SKETCH}" height="{_SKETCH}">{"".join(dots)}</svg>'
    return f"<figure>{svg}<figcaption>{2 * half:.0f} m across, north up</figcaption></figure>"


def _dot(x: float, y: float, scale: float, kind: str) -> str:
    size = {"place": 1.5, "match": 4, "spot": 5}[kind]
    return f'<circle class="{kind}" cx="{_SKETCH / 2 + x * scale:.1f}" cy="{_SKETCH / 2 - y * scale:.1f}" r="{size}"/>'


_STYLE = """<style>
.answer{display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start}
.answer figure{margin:0;max-width:260px;font-size:.85em;overflow-wrap:anywhere}
.answer .own img{outline:3px solid #4051b5}
.answer svg{border:1px solid #8886}
.gone{width:220px;height:140px;display:grid;place-items:center;border:1px dashed #888}
.sure{font-weight:600;color:#2a7d32}.unsure{font-weight:600;color:#b26a00}
circle.place{fill:#8888}circle.match{fill:#b26a00}circle.spot{fill:#4051b5}
circle.radius{fill:#4051b522;stroke:#4051b5}
</style>"""
