"""Writes measured tables into the pages: `python docs/measured.py` after a benchmark, `--check` to only compare.

<!-- table FILE OPTION… --> and <!-- gains FILE OPTION… --> stand before a whole table of `covis reproduce`, and
<!-- /table --> after it: its figures, or the differences of its rows. Options are `skip=PATTERN` and `only=PATTERN` (of
rows, with spaces as _), `against=ROW`, `on=BENCHMARK`, `figures=A,B,…` (all unless given).

<!-- bench FILE columns=A,B,… only=COLUMN:PATTERN --> stands before the table of a benchmark's rows, with the command
that made them below it; PATTERN may be several patterns, with | between them. A ratio is shown with its minimum and
maximum, and column A with A_low and A_high where the row has them; `rows=NAME` takes another list of the file than its
rows.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = (DOCS.parent / "benchmarks" / "results", DOCS.parent / "evidence" / "results")


def results_of(file: str) -> dict[str, Any]:
    """What a benchmark or a table of `covis reproduce` left behind."""
    path = next(path for folder in RESULTS if (path := folder / f"{file}.json").is_file())
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


_TABLE = re.compile(r"(<!-- (table|gains|bench) (\w+)((?: [^ >]+)*) -->\n).*?(<!-- /table -->)", re.DOTALL)
_HEADINGS = {
    "recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "ndcg@10": "nDCG@10", "median_error_m": "median m",
    "spearman_psi_distance_similar": "ρ, ψ > 0", "r1": "R@1", "r5": "R@5", "r10": "R@10", "gain r1": "gain at rank 1",
    "consensus r1": "R@1 by consensus", "gain consensus r1": "gain by consensus",
}  # fmt: skip


def _table(match: re.Match[str]) -> str:
    before, kind, file, given, after = match.groups()
    options = dict(option.split("=", 1) for option in given.split())
    results = results_of(file)
    lines = {"table": _figures, "gains": _gains, "bench": _rows}[kind](results, options)
    below = f"\n\nBy `{results['command']}`." if kind == "bench" and "command" in results else ""
    return before + "\n".join(f"| {' | '.join(line)} |" for line in lines) + below + f"\n{after}"


def _rows(results: dict[str, Any], options: dict[str, str]) -> list[list[str]]:
    """The named columns of a benchmark's rows."""
    names = [name.replace("_", " ") for name in options["columns"].split(",")]
    column, _, pattern = options.get("only", ":*").partition(":")
    patterns = pattern.replace("_", " ").split("|")
    rows = [row for row in results[options.get("rows", "rows")] if _matches(str(_cell(row, column)), patterns)]
    numbers = [any(isinstance(_cell(row, name), int | float) for row in rows) for name in names]
    lines = [[_HEADINGS.get(name, name) for name in names], ["---:" if number else "---" for number in numbers]]
    return lines + [[_shown(row, name) for name in names] for row in rows]


def _matches(text: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def _cell(row: dict[str, Any], name: str) -> Any:
    """The value of a row under a name, which may be written with _ in the result."""
    return row.get(name, row.get(name.replace(" ", "_"), ""))


def _shown(row: dict[str, Any], name: str) -> str:
    content = _cell(row, name)
    of = name.removeprefix("ratio")
    if name.startswith("ratio") and f"low{of}" in row:
        return f"**{_number(content)}** ({_number(row[f'low{of}'])} to {_number(row[f'high{of}'])})"
    low, high = (_cell(row, f"{name} {end}") for end in ("low", "high"))
    if low != "":
        return _gain({"difference": content, "low": low, "high": high}, 1)
    return _number(content) if isinstance(content, int | float) else str(content)


def _number(value: float) -> str:
    """Three significant figures, or all digits of a whole number."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _wanted(row: str, options: dict[str, str]) -> bool:
    skip, only = (options.get(key, default).replace("_", " ") for key, default in (("skip", ""), ("only", "*")))
    return fnmatch.fnmatchcase(row, only) and not fnmatch.fnmatchcase(row, skip)


def _figures(results: dict[str, Any], options: dict[str, str]) -> list[list[str]]:
    """Means, with the half-width of their interval over seeds."""
    rows = [row for row in results["rows"] if _wanted(row["row"], options)]
    shown = [row["figures"][options["on"]] if "on" in options else next(iter(row["figures"].values())) for row in rows]
    keys = _wanted_figures(dict.fromkeys(key for figures in shown for key in figures), options)
    lines = [["", *map(_heading, keys)], ["---", *("---:" for _ in keys)]]
    for row, figures in zip(rows, shown, strict=True):
        lines.append([row["row"], *(_mean(figures[key], _digits(key)) if key in figures else "" for key in keys)])
    return lines


def _gains(results: dict[str, Any], options: dict[str, str]) -> list[list[str]]:
    """Differences with their intervals; bold where the interval leaves out 0."""
    against = options["against"].replace("_", " ")
    rows = [row for row in results["differences"] if row["against"] == against and _wanted(row["row"], options)]
    rows = [row for row in rows if row["benchmark"] == options.get("on", row["benchmark"])]
    keys = _wanted_figures(rows[0]["figures"], options)
    lines = [[f"less {against}", *map(_heading, keys)], ["---", *("---:" for _ in keys)]]
    return lines + [[row["row"], *(_gain(row["figures"][key], _digits(key)) for key in keys)] for row in rows]


def _wanted_figures(keys: Iterable[str], options: dict[str, str]) -> list[str]:
    wanted = options.get("figures", "").replace("_", " ").split(",")
    return [key for key in keys if wanted == [""] or key.replace("_", " ") in wanted]


def _heading(key: str) -> str:
    return _HEADINGS.get(key) or key.replace("recall@1 ", "R@1, ").replace("m_40deg", " m")


def _digits(key: str) -> int:
    return 3 if key.startswith("spearman") else 1


def _mean(figure: dict[str, Any], digits: int) -> str:
    text = f"{figure['mean']:.{digits}f}"
    return text if figure["half"] is None else f"{text} ± {figure['half']:.{digits}f}"


def _gain(figure: dict[str, float], digits: int) -> str:
    low, high = figure["low"], figure["high"]
    text = f"{figure['difference']:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    return text if low <= 0 <= high else f"**{text}**"


def written(markdown: str) -> str:
    """A page with its figures as the results have them now."""
    return _TABLE.sub(_table, markdown)


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
