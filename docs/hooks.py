"""Hooks of mkdocs: pages of the API reference from the packages themselves, and pictures that follow dark mode."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src" / "covis"
_LEFT_OUT = ("__init__", "__main__", "cli")
"""The front door is described on api.md, the command line by `covis --help`."""
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]+)">\s*</picture>'
)


def _parts() -> list[Path]:
    """Modules and packages directly below covis."""
    found = (path for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file())
    return sorted((path for path in found if path.stem not in _LEFT_OUT), key=lambda path: path.stem)


def _modules(part: Path) -> list[str]:
    files = [part] if part.suffix == ".py" else sorted(part.rglob("*.py"))
    names = [".".join(("covis", *file.relative_to(SOURCE).with_suffix("").parts)) for file in files]
    return sorted(name.removesuffix(".__init__") for name in names)


def _summary(part: Path) -> str:
    file = part if part.suffix == ".py" else part / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def _page(part: Path) -> str:
    sections = "\n\n".join(
        f"## {name}\n\n::: {name}\n    options:\n      show_root_heading: false" for name in _modules(part)
    )
    return f"# covis.{part.stem}\n\n{_summary(part)}\n\n{sections}\n"


def on_config(config: Any) -> Any:
    """Puts a page of each package into the navigation, below the front door's."""
    pages = [{f"covis.{part.stem}": f"api/{part.stem}.md"} for part in _parts()]
    for entry in config.nav:
        if "API reference" in entry:
            entry["API reference"] = ["api.md", *pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages."""
    from mkdocs.structure.files import File

    for part in _parts():
        files.append(File.generated(config, f"api/{part.stem}.md", content=_page(part)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with two pictures for each `<picture>`, of which the theme shows the one of its colour scheme."""
    return _PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)", markdown)
