"""`covis data check`: examine a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from covis.cli.common import Json, emit, existing, table


def check(
    name: Annotated[str, typer.Argument(help="Dataset, as `covis list datasets` names it.")],
    path: Annotated[Path, typer.Argument(callback=existing, help="Its folder, in the official layout.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for rejects.csv and report.json. [default: check-NAME]"),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Look at each file's beginning and end only, decode nothing.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. [default: all processors]")] = None,
    json: Json = False,
) -> None:
    """Examine a dataset: what is there, what is missing, what looks wrong, its terms of use.

    Re-run an interrupted check to resume it. Exit code 2 where an error was found.

    \b
    Examples:
      covis data check msls /data/msls
      covis data check pitts30k /data/pitts --quick --json
    """
    from covis.datasets.doctor import check as examine

    report = examine(name, path, output or Path(f"check-{name}"), quick=quick, workers=workers)
    emit(report, json, _report_text(report))
    if any(finding["level"] == "error" for finding in report["findings"]):
        raise typer.Exit(2)


def _report_text(report: dict[str, Any]) -> str:
    rows = []
    for split, facts in report["splits"].items():
        for side in ("queries", "database"):
            if side in facts:
                counts = {k: facts[side][k] for k in ("images", "groups", "positions", "headings")}
                rows.append({"split": split, "side": "one set" if facts["one_set"] else side, **counts})
    lines = [f"{report['dataset']} at {report['path']}", f"terms: {report['licence']}", "", table(rows), ""]
    if report["published"]:
        lines += [table(report["published"]), ""]
    lines += [f"{f['level']}: {f['text']}" for f in report["findings"]] or ["nothing looks wrong"]
    bad = sum(report["rejects"].values())
    lines.append(
        f"{report['images']} files {'looked at' if report['quick'] else 'decoded'}, {bad} rejected: {report['rejects_file']}"
    )
    return "\n".join(lines)
