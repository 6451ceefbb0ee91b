"""`covis map …`: looking after a map."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covis.cli.common import Json, emit
from covis.errors import InputError

MapPath = Annotated[Path, typer.Argument(metavar="MAP", help="A map (covis index).")]


def check(map_path: MapPath, json: Json = False) -> None:
    """Read every byte of a map against its checksums, and name the damaged parts.

    \b
    Examples:
      covis map check town.map
    """
    from covis.maps.repair import check_map

    problems = check_map(map_path)
    emit(
        {"map": str(map_path), "problems": [{"part": p.part, "cause": p.cause} for p in problems]}, json,
        "\n".join(f"{p.part}: {p.cause}" for p in problems) or f"{map_path} is whole",
    )  # fmt: skip
    if problems:
        raise InputError(
            f"{map_path} has {len(problems)} damaged parts; drop them and build the rest anew with: covis map repair {map_path}"
        )


def repair(map_path: MapPath, json: Json = False) -> None:
    """Make a damaged map whole again: drop what is damaged, list the photos that went with it, rebuild the index.

    \b
    Examples:
      covis map repair town.map
    """
    from covis.maps.repair import DROPPED, repair_map

    outcome = repair_map(map_path)
    lines = [f"{map_path} was whole; nothing changed"]
    if outcome["repaired"]:
        count = len(outcome["dropped"])
        lines = [f"dropped {name}" for name in outcome["dropped"][:20]]
        lines += [f"… and {count - 20} more"] if count > 20 else []
        listed = f", listed in {map_path / DROPPED}; add them again with covis add" if count else ""
        lines.append(f"{map_path} is whole again with {outcome['photos']} photos; {count} dropped{listed}")
    emit(outcome, json, "\n".join(lines))
