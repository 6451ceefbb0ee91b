"""A self-contained HTML page: sections in, one file out, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from covis.files import write_text
from covis.reading.decoding import decode


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; `data` is what the page's script finds under its name."""

    title: str
    body: str
    name: str = ""
    data: Any = None


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section], navigation: bool = False) -> None:
    """Writes the page, with a list of its sections if asked; a reader of an older one never sees half of the new."""
    data = {s.name: s.data for s in sections if s.data is not None}
    # A tag or the start of a comment inside a string would change where the script element ends.
    script = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    body = "\n".join(f'<section id="{s.name}"><h2>{text(s.title)}</h2>\n{s.body}\n</section>' for s in sections)
    links = "".join(f'<a href="#{s.name}">{text(s.title)}</a>' for s in sections) if navigation else ""
    page = _PAGE.format(
        title=text(title), lead=lead, links=links and f"<nav>{links}</nav>", body=body, data=script,
        style=_asset("report.css"), script=_asset("report.js"),
    )  # fmt: skip
    write_text(path, page)


def text(value: object) -> str:
    """Escaped for HTML."""
    return html.escape(str(value))


def table(rows: Sequence[dict[str, Any]], name: str) -> str:
    """Rows of equal keys as a table that can be copied as Markdown, LaTeX or CSV."""
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{text(key)}</th>" for key in rows[0])
    lines = "".join("<tr>" + "".join(_cell(v) for v in row.values()) + "</tr>" for row in rows)
    buttons = "".join(f'<button data-copy="{kind}">{kind}</button>' for kind in ("Markdown", "LaTeX", "CSV"))
    return (
        f'<div class="copyable" id="table-{text(name)}"><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f'<tbody>{lines}</tbody></table></div><p class="copy">copy as {buttons}</p></div>'
    )


def _cell(value: object) -> str:
    number = re.match(r"[-+−–]?\d|–", str(value))
    return f"<td{' class=number' if number else ''}>{text(value)}</td>"


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
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{below}</figure>"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<header><h1>{title}</h1>
{lead}
{links}</header>
<main>
{body}
</main>
<script type="application/json" id="data">{data}</script>
<script>
{script}
</script>
</body>
</html>
"""
