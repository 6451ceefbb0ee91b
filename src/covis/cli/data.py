"""`covis data`: look after datasets and one's own photos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from covis.cli.common import Json, emit, table
from covis.errors import InputError


def check(
    name: Annotated[str, typer.Argument(help="Dataset, as `covis list datasets` names it.")],
    path: Annotated[Path, typer.Argument(help="Its folder, in the official layout.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for rejects.csv and report.json. [default: check-NAME]"),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Look at each file's beginning and end only, decode nothing.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. [default: all processors]")] = None,
    json: Json = False,
) -> None:
    """Examine a dataset: what is there, what is missing, what looks wrong, its terms of use.

    The same command goes on where it was interrupted.

    \b
    Examples:
      covis data check msls /data/msls
      covis data check pitts30k /data/pitts --quick --json
    """
    from covis.datasets.doctor import check as examine

    report = examine(name, path, output or Path(f"check-{name}"), quick=quick, workers=workers)
    emit(report, json, _report_text(report))


def import_(
    photos: Annotated[Path, typer.Argument(help="Folder of photos; folders inside it become groups.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Table to write: .csv or .parquet.")],
    track: Annotated[
        Path | None,
        typer.Option(
            help="Positions by image name or by time: .csv, .parquet, .geojson or .gpx. [default: the one in the folder]"
        ),
    ] = None,
    utc_offset: Annotated[
        str | None, typer.Option(help="The camera clock's offset where photos do not say it, such as +02:00.")
    ] = None,
    panoramas: Annotated[bool, typer.Option(help="Keep full panoramas, which have no one heading.")] = False,
    json: Json = False,
) -> None:
    """Turn a folder of photos into a table with positions and headings from EXIF.

    \b
    Examples:
      covis data import photos/ -o set.csv
      covis data import photos/ -o set.csv --track walk.gpx --utc-offset +02:00
    """
    from collections import Counter

    import numpy as np

    from covis.reading.photos import import_photos, write_table
    from covis.reading.screening import REJECTS, write_rejects

    if output.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{output} must end in .csv or .parquet")
    imported = import_photos(photos, track, utc_offset_s=_offset_s(utc_offset), panoramas=panoramas, output=output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_table(imported, output)
    if imported.rejects:
        write_rejects(output.parent / REJECTS, imported.rejects)
    data: dict[str, Any] = {
        "table": str(output),
        "photos": len(imported.names),
        "positions": int((~np.isnan(imported.lat)).sum()),
        "headings": int((~np.isnan(imported.heading)).sum()),
        "magnetic_headings": imported.reference.count("magnetic"),
        "turned": int((imported.orientation != 1).sum()),
        "groups": len(set(imported.group)),
        "frame": imported.poses.frame,
        "rejects": dict(Counter(r.reason for r in imported.rejects)),
        "rejects_file": str(output.parent / REJECTS) if imported.rejects else None,
    }
    emit(data, json, _import_text(data))


def _offset_s(text: str | None) -> float | None:
    """`+02:00` → 7200."""
    if text is None:
        return None
    sign, rest = text[:1], text[1:].split(":")
    if sign not in "+-" or len(rest) != 2 or not all(part.isdigit() for part in rest):
        raise InputError(f"--utc-offset {text!r} is not an offset; expected one like +02:00")
    seconds = 3600.0 * int(rest[0]) + 60.0 * int(rest[1])
    return -seconds if sign == "-" else seconds


def _import_text(data: dict[str, Any]) -> str:
    lines = [
        f"{data['table']}: {data['photos']} photos, {data['positions']} with a position, {data['headings']} with a heading"
    ]
    if data["rejects"]:
        kinds = ", ".join(f"{n} {reason}" for reason, n in data["rejects"].items())
        lines.append(f"left out: {kinds} (see {data['rejects_file']})")
    return "\n".join(lines)


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
