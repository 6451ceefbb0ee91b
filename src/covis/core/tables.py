"""Tables of rows with equal keys: as text, Markdown, LaTeX and CSV, numbers to the right, the best in bold."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from covis.core.errors import visible


def counted(number: int, noun: str) -> str:
    """`1 photo`, `2 photos`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_text(count: float) -> str:
    """A number of bytes for people: `12.3 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


TableRow = Mapping[str, Any]


def aligned(rows: Sequence[TableRow], absent: str = "–") -> list[dict[str, Any]]:
    """Rows that all have the same keys, in the order in which they first appear."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key, absent) for key in keys} for row in rows]


def text_table(rows: Sequence[TableRow]) -> str:
    """For a terminal or a log; a row is a line, also if a name in it has line ends."""
    if not rows:
        return "(none)"
    head = list(rows[0])
    cells = [[visible(str(row.get(key, ""))) for key in head] for row in rows]
    widths = [max(len(key), *(len(line[i]) for line in cells)) for i, key in enumerate(head)]
    right = [is_numeric(rows, key) for key in head]
    lines = [head, ["─" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            c.rjust(w) if to_right else c.ljust(w) for c, w, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown_table(rows: Sequence[TableRow], best: Mapping[str, bool] | None = None) -> str:
    """For a page or a pull request; `best` as for LaTeX."""
    if not rows:
        return "(none)"
    head = list(rows[0])
    right = [is_numeric(rows, key) for key in head]
    bold = _best_cells(rows, best)
    cells = [
        [f"**{row.get(key, '')}**" if (i, key) in bold else str(row.get(key, "")) for key in head]
        for i, row in enumerate(rows)
    ]
    return markdown_lines([head, *cells], right)


def markdown_lines(lines: Sequence[Sequence[str]], right: Sequence[bool] | None = None) -> str:
    """Lines of cells, the first of them headings; `right`: which columns align right (all but the first if None)."""
    to_right = [i > 0 for i in range(len(lines[0]))] if right is None else right
    rule = ["---:" if is_right else "---" for is_right in to_right]
    head, *body = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))


def latex_table(rows: Sequence[TableRow], best: Mapping[str, bool] | None = None) -> str:
    """For a paper, with booktabs; `best`: columns whose best cell is bold → whether lower is better."""
    if not rows:
        return "% (none)"
    head = list(rows[0])
    bold = _best_cells(rows, best)
    spec = "".join("r" if is_numeric(rows, key) else "l" for key in head)
    lines = [" & ".join(latex_escaped(key) for key in head)]
    for i, row in enumerate(rows):
        cells = [latex_escaped(str(row.get(key, ""))) for key in head]
        lines.append(
            " & ".join(f"\\textbf{{{c}}}" if (i, key) in bold else c for key, c in zip(head, cells, strict=True))
        )
    body = " \\\\\n".join(lines[1:])
    return f"\\begin{{tabular}}{{{spec}}}\n\\toprule\n{lines[0]} \\\\\n\\midrule\n{body} \\\\\n\\bottomrule\n\\end{{tabular}}"


def csv_table(rows: Sequence[TableRow]) -> str:
    """For a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(list(rows[0]) if rows else [])
    writer.writerows([[row[key] for key in row] for row in rows])
    return out.getvalue().rstrip("\n")


_NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?")


def is_numeric(rows: Sequence[TableRow], key: str) -> bool:
    """Whether every filled cell of a column begins with a number."""
    cells = [str(row.get(key, "")) for row in rows]
    filled = [cell for cell in cells if cell.strip() not in ("", "–")]
    return bool(filled) and all(_NUMBER.match(cell) for cell in filled)


def best_row(rows: Sequence[TableRow], key: str, lower_is_better: bool = False) -> int:
    """Which row's cell begins with the best number; −1 where fewer than two have one."""
    numbers = [(float(m[0].replace("−", "-")), i) for i, row in enumerate(rows) if (m := _NUMBER.match(str(row[key])))]
    if len(numbers) < 2:
        return -1
    return (min(numbers) if lower_is_better else max(numbers, key=lambda pair: (pair[0], -pair[1])))[1]


def _best_cells(rows: Sequence[TableRow], best: Mapping[str, bool] | None) -> set[tuple[int, str]]:
    """(row, column) of the bold cells."""
    return {(best_row(rows, key, lower), key) for key, lower in (best or {}).items() if key in rows[0]}


_LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "ψ": r"$\psi$", "ρ": r"$\rho$", "Δ": r"$\Delta$", "τ": r"$\tau$",
          "°": r"$^\circ$", "–": "--", "−": "$-$", "→": r"$\rightarrow$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}  # fmt: skip


def latex_escaped(cell: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(c, f"\\{c}" if c in "%&_#${}" else c) for c in cell)
