"""`covis list` and `covis data check`: what there is, by kind, and whether a dataset is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from covis.cli.common import Json, emit, existing, table
from covis.errors import unknown_name


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
        published = [
            {"count": r["count"], "published": f"{'' if r['exact'] else '≥ '}{r['published']}", "found": r["found"]}
            for r in report["published"]
        ]
        lines += [table(published), ""]
    lines += [f"{f['level']}: {f['text']}" for f in report["findings"]] or ["nothing looks wrong"]
    bad = sum(report["rejects"].values())
    lines.append(
        f"{report['images']} files {'looked at' if report['quick'] else 'decoded'}, {bad} rejected: {report['rejects_file']}"
    )
    return "\n".join(lines)


# `covis list`: what there is, by kind.


def list_names(
    kind: Annotated[str | None, typer.Argument(help="What to list. [default: the kinds themselves]")] = None,
    match: Annotated[str, typer.Option(help="Only names that contain this.")] = "",
    json: Json = False,
) -> None:
    """List what covis knows by name.

    \b
    Examples:
      covis list
      covis list recipes
      covis list backbones --match dinov2
    """
    if kind is None:
        emit({name: about for name, (about, _) in KINDS.items()}, json, _kinds())
        return
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    listed = {name: about for name, about in KINDS[kind][1]().items() if match in name}
    emit(list(listed), json, _described(listed))


def _kinds() -> str:
    return table([{"kind": name, "covis list KIND shows": about} for name, (about, _) in KINDS.items()])


def _described(listed: dict[str, str]) -> str:
    width = min(40, max((len(name) for name in listed), default=0))
    return "\n".join(f"{name:<{width}}  {about}".rstrip() for name, about in listed.items())


def _datasets() -> dict[str, str]:
    from covis.datasets import DATASETS

    return {name: f"splits: {', '.join(_some(DATASETS[name].splits))}" for name in DATASETS}


def _benchmarks() -> dict[str, str]:
    from covis.evaluation import BENCHMARKS

    return {name: _first_line(BENCHMARKS[name]) for name in BENCHMARKS}


def _recipes() -> dict[str, str]:
    """Recipes by dataset, those to start with first."""
    from covis.experiments import RECIPES, get

    made = {name: get(name) for name in RECIPES}
    first = [name for name in START_WITH if name in made]
    rest = sorted((name for name in made if name not in first), key=lambda name: (made[name].dataset, name))
    return {
        name: f"{recipe.dataset}: {recipe.model.backbone}, {recipe.model.pool}, {type(recipe.loss).__name__}"
        + (f" ({START_WITH[name]})" if name in START_WITH else "")
        for name in (*first, *rest)
        for recipe in [made[name]]
    }


def _backbones() -> dict[str, str]:
    from covis.models import backbone_names

    return dict.fromkeys(backbone_names(), "")


def _rules() -> dict[str, str]:
    import covis.labels
    import covis.town  # which brings a rule of its own

    return {name: _first_line(covis.labels.RULES[name]) for name in covis.labels.RULES}


def _batches() -> dict[str, str]:
    from covis.sampling import BATCHES

    return {name: _first_line(BATCHES[name]) for name in BATCHES}


def _losses() -> dict[str, str]:
    from covis.losses import LOSSES

    return {name: _first_line(LOSSES[name]) for name in sorted(LOSSES)}


def _pools() -> dict[str, str]:
    from covis.models import POOLS

    return {name: _first_line(POOLS[name]) for name in POOLS}


def _models() -> dict[str, str]:
    from covis.models.published import PUBLISHED

    return {
        name: f"{entry.config.backbone}, {entry.config.pool}: {entry.paper} ({entry.licence})"
        for name in PUBLISHED
        for entry in [PUBLISHED[name]]
    }


def _tables() -> dict[str, str]:
    from covis.experiments import TABLES

    return {name: _first_line(TABLES[name]) for name in TABLES}


def _first_line(thing: Any) -> str:
    """The first line of a registered thing's docstring."""
    function = getattr(thing, "func", thing)
    return (function.__doc__ or "").strip().split("\n")[0]


def _some(names: Sequence[str], most: int = 8) -> list[str]:
    return [*names[:most], "…"] if len(names) > most else list(names)


START_WITH = {
    "town_quick": "start here: a minute, no data needed",
    "own_photos": "start here: your own photos, best",
    "own_photos_small": "start here: your own photos, small and fast",
    "msls_vgg16_gem_gcl": "start here: the method's main experiment",
}
"""Recipes that are listed first, and why."""
KINDS: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "datasets": ("datasets that covis reads, with their splits", _datasets),
    "benchmarks": ("named evaluation protocols", _benchmarks),
    "recipes": ("training recipes, by dataset", _recipes),
    "backbones": ("networks to build a model on", _backbones),
    "rules": ("label rules", _rules),
    "models": ("models that others published, to import", _models),
    "batches": ("how training batches are put together", _batches),
    "losses": ("training losses", _losses),
    "pools": ("poolings of feature maps into a descriptor", _pools),
    "tables": ("tables and figures that covis reproduce makes", _tables),
}
