"""Puts measured figures into pages: {{ FILE PATH FORMAT }} is a value of benchmarks/results/FILE.json when a site is built.

{{ NUMBER / FILE PATH FORMAT }} is a number (or a quotient of two) divided by the value.
"""

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
_FIGURE = re.compile(r"\{\{ (?:([\d/]+) / )?(\w+) ([\w.]+) (\S+) \}\}")


def value(file: str, path: str) -> Any:
    """What stands at `path` (keys and positions joined by dots) of a result file."""
    found = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


def _figure(match: re.Match[str]) -> str:
    dividend, file, path, form = match.groups()
    number = value(file, path)
    if dividend:
        first, *others = map(float, dividend.split("/"))
        for other in others:
            first /= other
        number = first / number
    return f"{number:{form}}"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The hook that mkdocs calls for every page."""
    return _FIGURE.sub(_figure, markdown)
