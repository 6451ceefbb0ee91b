"""What mkdocs does beside building: a `<picture>` of a page, which repositories show as it is, follows the site's own switch."""

from __future__ import annotations

import re
from typing import Any

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]+)">\s*</picture>'
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Two pictures, of which the theme shows the one of its scheme."""
    return _PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)", markdown)
