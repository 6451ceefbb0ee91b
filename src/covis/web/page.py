"""A self-contained HTML page that loads nothing from elsewhere, and the elements on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from covis.core.files import write_text
from covis.core.tables import TableRow, best_row, csv_table, is_numeric, latex_table, markdown_table

NOTE = Markup('<p class="note">{}</p>')
"""A remark of the page; `format` escapes what it is given."""


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
        """The body, marked as escaped for templates."""
        return Markup(self.body)


@cache
def _templates() -> Environment:
    loader = PackageLoader("covis.web")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.globals["asset"] = lambda name: Markup(asset_text(name))
    return environment


def asset_text(name: str) -> str:
    """A file of ours, or of Leaflet: text that stands in pages as it is."""
    text = resources.files("covis.web").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")
    return text.replace("//# sourceMappingURL=leaflet.js.map", "")


def rendered(template: str, **values: Any) -> str:
    """A template of this package, filled in; values that are not `Markup` are escaped."""
    return cast(str, Markup(_templates().get_template(template).render(**values)))


MAP_STYLES = ("leaflet/leaflet.css", "base.css")
MAP_SCRIPTS = ("leaflet/leaflet.js", "map.js")


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Writes a page of sections, with a list of them; readers never see a half-written page."""
    data = {s.name: s.data for s in sections if s.data is not None}
    page = rendered(
        "report.html",
        title=title,
        lead=Markup(lead),
        sections=sections,
        data=data,
        styles=(*MAP_STYLES, "report.css"),
        scripts=(*MAP_SCRIPTS, "report.js"),
    )
    write_text(path, page)


def html_table(rows: Sequence[TableRow], name: str, best: Mapping[str, bool] | None = None) -> str:
    """Rows of equal keys as a table that can be copied as Markdown, LaTeX or CSV.

    best: columns whose best cell is bold → whether lower is better.
    """
    if not rows:
        return cast(str, Markup("<p>none</p>"))
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
    drawn = Markup("").join(figure(svg) for svg in drawings)
    return cast(str, Markup('<div class="figures">{}</div>').format(drawn))


def figure(svg: str, caption: str = "") -> str:
    """A drawing with its caption."""
    return rendered("figure.html", drawing=Markup(svg), caption=caption)
