"""Writes measured figures into the pages: `python docs/measured.py` after a benchmark, `--check` to compare alone.

A figure stands between two comments, which no reader sees: <!-- FILE PATH FORMAT -->12.3<!-- / -->, where FILE is
benchmarks/results/FILE.json, PATH leads to the value (keys and positions joined by dots) and FORMAT is Python's.
<!-- NUMBER / FILE PATH FORMAT --> is a number (or a quotient of two) divided by the value.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
_FIGURE = re.compile(r"(<!-- (?:([\d/]+) / )?(\w+) ([\w.-]+) (\S+) -->)(.*?)(<!-- / -->)")


def value(file: str, path: str) -> Any:
    """What stands at `path` of a result file."""
    found = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


def _figure(match: re.Match[str]) -> str:
    before, dividend, file, path, form, _, after = match.groups()
    number = value(file, path)
    if dividend:
        first, *others = map(float, dividend.split("/"))
        for other in others:
            first /= other
        number = first / number
    return f"{before}{number:{form}}{after}"


def written(markdown: str) -> str:
    """A page with its figures as the results have them now."""
    return _FIGURE.sub(_figure, markdown)


def main(arguments: list[str]) -> int:
    """Rewrites the pages; with `--check` only names those that differ from the results."""
    stale = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = written(text)
        if new != text:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(new, encoding="utf-8")
    print(f"{'out of date' if '--check' in arguments else 'rewritten'}: {', '.join(stale) or 'none'}")
    return int("--check" in arguments and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
