"""`covis map …`: looking after a map."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from covis.cli.options import Json, MapPath, PicturesOption, TilesOption, existing
from covis.cli.output import emit
from covis.cli.verbs import LOCALISE, group, verb
from covis.core.errors import InputError
from covis.core.tables import counted

group("map", "Show, check, repair, export and import maps.", section=LOCALISE, order=6)


@verb("map check")
def check(map_path: MapPath, json: Json = False) -> None:
    """Check every byte of a map against its checksums. Damaged parts are listed.

    \b
    Examples:
      covis map check town.map
    """
    from covis.maps.care import check_map

    problems = check_map(map_path)
    data = {"map": str(map_path), "problems": [{"part": p.part, "cause": p.cause} for p in problems]}
    emit(data, json, "\n".join(f"{p.part}: {p.cause}" for p in problems) or f"{map_path}: no damage found")
    if problems:
        hint = f"drop what is damaged and rebuild the rest with: covis map repair {map_path}"
        raise InputError(f"{map_path} has {counted(len(problems), 'damaged part')}; {hint}")


@verb("map repair")
def repair(map_path: MapPath, json: Json = False) -> None:
    """Repair a damaged map. Drops what is damaged, lists the photos lost with it, rebuilds the index.

    \b
    Examples:
      covis map repair town.map
    """
    from covis.maps.care import DROPPED, repair_map

    outcome = repair_map(map_path)
    lines = [f"{map_path}: no damage found; nothing changed"]
    if outcome["repaired"]:
        count = len(outcome["dropped"])
        lines = [f"dropped {name}" for name in outcome["dropped"][:20]]
        lines += [f"… and {count - 20} more"] if count > 20 else []
        listed = f", listed in {map_path / DROPPED}; add them again with covis add" if count else ""
        lines.append(f"{map_path} is repaired, with {counted(outcome['photos'], 'photo')}; {count} dropped{listed}")
    emit(outcome, json, "\n".join(lines), f"covis map check {shlex.quote(str(map_path))}")


_RUNTIMES = {
    "onnx": "ONNX Runtime",
    "torch": "torch",
    "": "nothing: it has descriptors alone (locate --descriptors)",
}


@verb("map show")
def show(
    map_path: MapPath,
    output: Annotated[Path | None, Option("-o", "--out", help="Write a page with the map: map.html.")] = None,
    tiles: TilesOption = "",
    pictures: PicturesOption = None,
    json: Json = False,
) -> None:
    """Show what is in a map, or write a page to look at it.

    \b
    Examples:
      covis map show town.map
      covis map show town.map -o map.html
    """
    from covis.cli.index import promise_of
    from covis.maps.map import Map

    opened = Map.open(map_path)
    facts = {
        "photos": len(opened), "version": opened.version, "groups": len(set(opened.images.group.tolist())),
        "model": f"{opened.network.backbone}, {opened.dim} dimensions", "fingerprint": opened.model_fingerprint,
        "search": opened.index_kind, "runs in": _RUNTIMES[opened.network.kind],
        "positions": "on Earth" if opened.frame else "metres", "full poses": _count_known(opened.images.poses.rotation),
        "cameras": _count_known(opened.images.intrinsics), "promise": promise_of(opened),
    }  # fmt: skip
    emit({"map": str(map_path), **facts}, json, "\n".join(f"{key:12} {value}" for key, value in facts.items()))
    if output is not None:
        from covis.core.progress import say
        from covis.maps.page import write_map

        write_map(output, opened.images, map_path.name, facts, tiles=tiles, pictures=pictures or ())
        say(f"wrote {output}")


def _count_known(values: Any) -> int:
    """Photos that an array has a value for."""
    return 0 if values is None else int((values == values).reshape(len(values), -1).any(axis=1).sum())


@verb("map export")
def export(
    map_path: MapPath,
    target: Annotated[Path, Argument(metavar="FILE", help="The file to write: town.covis.")],
    json: Json = False,
) -> None:
    """Write a map as one file to send to others. It has model, descriptors, positions and calibration, not the photos.

    \b
    Examples:
      covis map export town.map town.covis
    """
    from covis.maps.archive import export_map
    from covis.maps.map import Map

    size = export_map(Map.open(map_path), target)
    then = f"covis map import {shlex.quote(str(target))} -o MAP, on any machine"
    emit({"file": str(target), "bytes": size}, json, f"{target}: {size / 1e6:.1f} MB", then)


@verb("map import")
def import_(
    source: Annotated[Path, Argument(callback=existing, metavar="FILE", help="A file of covis map export.")],
    output: Annotated[Path, Option("-o", "--out", help="The map to make.")],
    photos: Annotated[Path | None, Option(callback=existing, help="Folder of the photos on this machine.")] = None,
    json: Json = False,
) -> None:
    """Make a map from an exported file. Every byte is checked, and nothing in it is executed.

    \b
    Examples:
      covis map import town.covis -o town.map
      covis map import town.covis -o town.map --photos photos/
    """
    from covis.cli.index import report_map
    from covis.maps.archive import import_map

    report_map(import_map(source, output, photos=photos), json, {})
