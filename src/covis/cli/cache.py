"""`covis cache`: what is cached, and clearing it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from covis.cli.options import Json
from covis.cli.output import emit, size_text, table
from covis.cli.verbs import INSTALLATION, verb
from covis.core.cache import KINDS, Entry, entries
from covis.core.errors import unknown_name
from covis.core.machine import cache_folder


@verb("cache", section=INSTALLATION, order=3)
def cache(
    clear: Annotated[str | None, Option(help=f"Delete entries of a kind ({', '.join(KINDS)}) or `all`.")] = None,
    json: Json = False,
) -> None:
    """List the cache, with sizes, or clear it. Everything in it is made again when needed.

    --json lists every entry.

    \b
    Examples:
      covis cache
      covis cache --clear features
    """
    if clear is not None and clear not in (*KINDS, "all"):
        raise unknown_name("kind of cache entry", clear, (*KINDS, "all"))
    folder = cache_folder()
    present = entries(folder)
    deleted = [entry for entry in present if clear in (entry.kind, "all")]
    for entry in deleted:
        entry.delete()
    kept = [entry for entry in present if entry not in deleted]
    data = {
        "folder": str(folder),
        "deleted": [entry.to_dict() for entry in deleted],
        "entries": [entry.to_dict() for entry in kept],
        "bytes": _size(kept),
    }
    emit(data, json, _text(folder, kept, deleted))


def _size(some: list[Entry]) -> int:
    return sum(entry.size for entry in some)


def _text(folder: Path, kept: list[Entry], deleted: list[Entry]) -> str:
    """One line per kind: the names of entries are fingerprints, which mean nothing to people."""
    rows = []
    for kind, contents in KINDS.items():
        alike = [entry for entry in kept if entry.kind == kind]
        if alike:
            days = min(entry.days for entry in alike)
            used = "today" if days < 1 else f"{days:.0f} days ago"
            size = size_text(_size(alike))
            rows.append({"kind": kind, "entries": len(alike), "size": size, "last used": used, "contents": contents})
    lines = [f"{folder}: {size_text(_size(kept))}"]
    lines += [f"deleted {len(deleted)} entries, {size_text(_size(deleted))}"] if deleted else []
    return "\n".join([*lines, *([table(rows)] if rows else [])])
