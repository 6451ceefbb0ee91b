"""Tables as the paper prints them: its rows and columns in its order, in LaTeX and HTML.

Cells hold what was measured here, or nothing; rows of others, whom covis does not train, are grey and as printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from covis.core.files import write_text
from covis.core.tables import latex_escaped
from covis.evaluation.published import PUBLISHED_TABLES, SOURCE, Published, printed_figures
from covis.evaluation.published import rows as printed_rows
from covis.experiments.tables import MEAN, TABLES, Outcome
from covis.web.page import rendered

_GROUPS = {
    "msls_val": "MSLS-Val", "msls_test": "MSLS-Test", "pitts30k": "Pitts30k", "pitts250k": "Pitts250k",
    "tokyo247": "Tokyo 24/7", "tokyotm": "TokyoTM", "robotcar": "RobotCar Seasons v2", "cmu": "Extended CMU Seasons",
}  # fmt: skip
_COLUMN = re.compile(r"(?:(?P<group>.+?)_)?(?P<figure>r\d+|[\d.]+m_\d+deg)")
_CAPTIONS = {"gpu_memory": "memory", "time_per_epoch": "t/epoch", "time_to_converge": "t/converge", "dim": "dim"}


@dataclass(frozen=True)
class PrintedRow:
    """One line: its cells, and whether it is others' work, cited."""

    cells: tuple[str, ...]
    cited: bool = False


@dataclass(frozen=True)
class PrintedTable:
    """A table in the paper's layout."""

    title: str
    columns: tuple[tuple[str, str], ...]
    """(group, heading) of each."""
    rows: tuple[PrintedRow, ...]
    figures: frozenset[int]
    """Which columns hold figures, whose largest is bold."""
    notes: tuple[str, ...] = ()
    by_row: bool = False
    """Whether models stand side by side, so that the best of a row is bold, not that of a column."""

    def best(self) -> set[tuple[int, int]]:
        """(row, column) of the bold cells: the largest of each column (or row) of figures, cited rows included."""
        groups: dict[int, dict[tuple[int, int], float]] = {}
        for i, row in enumerate(self.rows):
            for k in self.figures:
                if row.cells[k]:
                    groups.setdefault(i if self.by_row else k, {})[i, k] = float(row.cells[k])
        return {at for g in groups.values() if len(g) > 1 for at, value in g.items() if value == max(g.values())}


def printed_table(name: str, title: str, outcomes: Sequence[Outcome]) -> PrintedTable | None:
    """The table `name` as the paper prints it, filled in with the outcomes; None where the paper has no such table."""
    source = next((key for key in PUBLISHED_TABLES if key.startswith(f"{name}_")), "")
    if not source or TABLES[name]().cost:
        return None
    lines = printed_rows(source)
    figures = {column for line in lines for column in printed_figures(source, line)}
    trained = {p for row in TABLES[name]().rows for p in row.published}
    rows, others = [], False
    for line in lines:
        printed = printed_figures(source, line)
        rival = name == "table4" and "Ours" not in line["loss"]
        cited = rival or (name not in ("table4", "table11") and not trained.intersection(printed.values()))
        others |= cited
        rows.append(_row(line, printed, [] if rival else outcomes, cited))
    for outcome in outcomes if name == "table4" else ():
        if "Ours" not in outcome.row.label:
            line = next(line for line in lines if line["loss"] == outcome.row.label)
            own = _row(line, printed_figures(source, line), outcomes, False)
            rows.append(PrintedRow((f"{outcome.row.label}, trained here on MSLS", *own.cells[1:])))
    notes = [f"grey: others' methods, as printed by {SOURCE}"] if others else []
    return PrintedTable(
        title,
        tuple(_heading(column) for column in lines[0]),
        tuple(rows),
        frozenset(i for i, column in enumerate(lines[0]) if column in figures),
        (*notes, "empty cells were not measured here; a server that keeps the truth has not answered, or no data"),
        by_row=name in ("table10", "table11"),
    )


def _heading(column: str) -> tuple[str, str]:
    """(group, heading) of a column."""
    match = _COLUMN.fullmatch(column)
    if match is None:
        letter = re.fullmatch(r"([A-D])_r5", column)
        return "", letter[1] if letter else _CAPTIONS.get(column, column.replace("_", " "))
    figure, group = match["figure"], match["group"] or ""
    heading = f"R@{figure[1:]}" if figure.startswith("r") else figure.replace("_", "/").replace("deg", "°")
    return _GROUPS.get(group, group.replace("_", " ")), heading


def _row(
    line: Mapping[str, str], printed: Mapping[str, Published], outcomes: Sequence[Outcome], cited: bool
) -> PrintedRow:
    cells = []
    for column, text in line.items():
        if column not in printed or cited:
            known = column not in printed and (_COLUMN.fullmatch(column) is None or cited)
            cells.append(text if known or cited else "")
        else:
            value = _measured(printed[column], outcomes)
            scale, digits = (0.01, 3) if printed[column].table == "table11_7scenes_ap" else (1.0, 1)
            cells.append("" if value is None else f"{scale * value:.{digits}f}")
    return PrintedRow(tuple(cells), cited)


def _measured(figure: Published, outcomes: Sequence[Outcome]) -> float | None:
    """What was measured here for a printed figure."""
    for outcome in outcomes:
        for p in outcome.row.published:
            mean = p.benchmark == MEAN and (p.table, p.value) == (figure.table, figure.value) and not figure.benchmark
            if p == figure or mean:
                return _figure(outcome, p.benchmark, p.key)
        if outcome.row.label == figure.method and not outcome.row.published:
            return _figure(outcome, outcome.row.benchmarks[0], figure.key)
    return None


def _figure(outcome: Outcome, benchmark: str, key: str) -> float | None:
    values = outcome.figures.get(benchmark, {}).get(key)
    return float(np.mean(values)) if values else None


def cost_layout(title: str, entries: Sequence[Mapping[str, Any]]) -> PrintedTable:
    """Table 5 as the paper prints it, of what was measured here."""
    rows = []
    for e in entries:
        if "missing" in e:
            rows.append(PrintedRow((e["row"], "", "", "", "")))
            continue
        best, hours = e.get("epochs_to_best"), e["hours_per_epoch"]
        epochs = f"{e['epochs']}" + ("" if best is None else f" ({best:.2g})")
        converged = "" if best is None else f"{hours * best:.1f} h"
        rows.append(PrintedRow((e["row"], f"{e['peak_gib']:.2f} GiB", epochs, f"{hours:.1f} h", converged)))
    columns = tuple(("", heading) for heading in ("model", "memory", "epochs", "t/epoch", "t/converge"))
    return PrintedTable(title, columns, tuple(rows), frozenset(), ("four images in memory; measured on this machine",))


def write_printed(table: PrintedTable, path: Path) -> list[Path]:
    """Writes `path` as .tex (a file to \\input, with booktabs, graphicx and xcolor) and as .html."""
    files = [path.with_suffix(".tex"), path.with_suffix(".html")]
    for file, text in zip(files, (latex(table), html(table)), strict=True):
        write_text(file, text + "\n")
    return files


def latex(table: PrintedTable) -> str:
    """The table as LaTeX."""
    groups = [(group, len(list(part))) for group, part in groupby(group for group, _ in table.columns)]
    bold = table.best()
    lines = [f"% {note}" for note in table.notes] + ["\\begin{table*}", "\\centering", "\\resizebox{\\textwidth}{!}{%"]
    lines.append(
        f"\\begin{{tabular}}{{{''.join('c' if i in table.figures else 'l' for i in range(len(table.columns)))}}}"
    )
    lines.append("\\toprule")
    if any(group for group, _ in groups):
        heads = [f"\\multicolumn{{{n}}}{{c}}{{{latex_escaped(group)}}}" for group, n in groups]
        lines.append(" & ".join(heads) + " \\\\")
    lines.append(" & ".join(latex_escaped(heading) for _, heading in table.columns) + " \\\\")
    lines.append("\\midrule")
    for i, row in enumerate(table.rows):
        cells = [latex_escaped(cell) for cell in row.cells]
        cells = [f"\\textbf{{{cell}}}" if (i, k) in bold else cell for k, cell in enumerate(cells)]
        lines.append(" & ".join(f"\\textcolor{{gray}}{{{c}}}" if row.cited and c else c for c in cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}}", f"\\caption{{{latex_escaped(table.title)}}}", "\\end{table*}"]
    return "\n".join(lines)


def html(table: PrintedTable) -> str:
    """The table as a page."""
    groups = [(group, len(list(part))) for group, part in groupby(group for group, _ in table.columns)]
    return rendered("printed.html", table=table, groups=groups, best=table.best())
