"""A hook of mkdocs: a `<picture>` of a page, which repositories show unchanged, follows the site's dark-mode switch."""

from __future__ import annotations

import re
from typing import Any

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]+)">\s*</picture>'
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with two pictures for each `<picture>`, of which the theme shows the one of its colour scheme."""
    return _PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)", markdown)
