"""A self-contained HTML page: sections in, one file out, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from covis.files import write_text
from covis.reading.decoding import decode
from covis.tables import Row, best_row, csv_table, is_numeric, latex_table, markdown_table


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; `data` is what the page's script finds under its name."""

    title: str
    body: str
    """HTML, escaped already."""
    name: str = ""
    data: Any = None

    @property
    def html(self) -> Markup:
        """The body, as templates take what is escaped."""
        return Markup(self.body)


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader("covis.report"), autoescape=True, undefined=StrictUndefined)


def rendered(template: str, **values: Any) -> str:
    """A template of this package, filled; whatever is no `Markup` is escaped."""
    return str(_templates().get_template(template).render(**values))


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section], navigation: bool = False) -> None:
    """Writes the page, with a list of its sections if asked; a reader of an older one never sees half of the new."""
    data = {s.name: s.data for s in sections if s.data is not None}
    # A tag or the start of a comment inside a string would change where the script element ends.
    script = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = rendered(
        "page.html",
        title=title,
        lead=Markup(lead),
        sections=sections,
        navigation=navigation,
        data=script,
        style=_asset("report.css"),
        script=_asset("report.js"),
    )
    write_text(path, page)


def text(value: object) -> str:
    """Escaped for HTML."""
    return str(escape(value))


def table(rows: Sequence[Row], name: str, best: Mapping[str, bool] | None = None) -> str:
    """Rows of equal keys as a table that can be copied as Markdown, LaTeX or CSV.

    best: columns whose best cell is bold → whether lower is better.
    """
    if not rows:
        return "<p>none</p>"
    head = list(rows[0])
    right = {key for key in head if is_numeric(rows, key)}
    bold = {(best_row(rows, key, lower), key) for key, lower in (best or {}).items() if key in head}
    cells = [[Cell(str(row[key]), key in right, (i, key) in bold) for key in head] for i, row in enumerate(rows)]
    copies = {"Markdown": markdown_table(rows), "LaTeX": latex_table(rows, best), "CSV": csv_table(rows)}
    headings = [Cell(key, key in right) for key in head]
    return rendered("table.html", name=name, head=headings, rows=cells, copies=copies)


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    number: bool = False
    best: bool = False


def figures_row(drawings: Sequence[str]) -> str:
    """Drawings side by side where the page is wide enough."""
    return f'<div class="figures">{"".join(figure(svg) for svg in drawings)}</div>'


def thumbnail(file: Path, pixels: int) -> str:
    """A photo as a data address of a JPEG whose longer side has so many pixels; raises `Reject` as decoding does."""
    from PIL import Image

    picture = Image.fromarray(decode(file))
    picture.thumbnail((pixels, pixels))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=75)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def figure(svg: str, caption: str = "") -> str:
    """A drawing with its caption."""
    return rendered("figure.html", drawing=Markup(svg), caption=caption)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
