"""`covis search`: an index over a store of descriptors, and its results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.options import IndexKind, Json, MaxRam, existing
from covis.cli.output import emit, table
from covis.cli.verbs import STEPS, group, verb
from covis.core.errors import InputError

if TYPE_CHECKING:
    from covis.descriptors import DescriptorStore
    from covis.ranking import Ranking
    from covis.search import Index

group("search", "Build an index over descriptors, and query it.", section=STEPS, order=3)


@verb("search build")
def build(
    store: Annotated[Path, typer.Argument(callback=existing, help="A store of descriptors (covis embed).")],
    output: Annotated[Path, typer.Option("-o", "--out", help="The index; it refers to the store.")],
    kind: IndexKind = "auto",
    max_ram: MaxRam = "",
    positions: Annotated[
        Path | None, typer.Option(callback=existing, help="A table of the images, for searches in an area.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(callback=existing, help="A store of real queries to tune and measure with.")
    ] = None,
    target_recall: Annotated[float | None, typer.Option(help="Share of the exact nearest neighbours to find.")] = None,
    json: Json = False,
) -> None:
    """Build an index, tuned and measured against exact search.

    \b
    Examples:
      covis search build map.store -o map.index
      covis search build map.store -o map.index --kind hnsw-sq8 --max-ram 2G --positions map.csv
    """
    from covis import search
    from covis.descriptors import DescriptorStore
    from covis.search.kinds import parse_size

    if output.exists():
        raise InputError(f"{output} already exists; choose another output or remove it")
    opened = DescriptorStore.open(store)
    index, measured = search.build_index(
        opened, kind, xy=_positions(opened, positions), max_ram=parse_size(max_ram) if max_ram else None,
        target_recall=search.TARGET_RECALL if target_recall is None else target_recall, queries=DescriptorStore.open(queries) if queries else None,
    )  # fmt: skip
    index.save(output, store=opened)
    emit(
        {"index": str(output), **measured.to_dict()},
        json,
        f"{output}: {measured.line()}",
        f"covis search query {output} QUERIES.store",
    )


@verb("search query")
def query(
    where: Annotated[Path, typer.Argument(callback=existing, help="A store (searched exactly) or an index.")],
    queries: Annotated[
        Path, typer.Argument(callback=existing, help="A store of query descriptors, of the same model.")
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Results per query.")] = 10,
    around: Annotated[str, typer.Option(help="X,Y,RADIUS: only images this near, in metres; needs an index.")] = "",
    inside: Annotated[str, typer.Option(help="Only images in a polygon: 'X,Y X,Y X,Y …' or a GeoJSON file.")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--out", help="CSV: query,rank,image,distance.")] = None,
    json: Json = False,
) -> None:
    """Find the nearest map images of each query.

    \b
    Examples:
      covis search query map.store queries.store -k 5
      covis search query map.index queries.store --around 312400,4763100,300 -o found.csv
    """
    from covis.cli.locate import read_area
    from covis.descriptors import DescriptorStore

    index, store = _open_searchable(where)
    asked = DescriptorStore.open(queries)
    rows = _result_rows(index.search(asked, k, area=read_area(around, inside, option="--around")), asked, store)
    if output:
        import csv

        from covis.core.files import replacing

        with (
            replacing(output) as partial,
            partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle,
        ):
            writer = csv.DictWriter(handle, ["query", "rank", "image", "distance"])
            writer.writeheader()
            writer.writerows(rows)
    text = f"{output}: {len(rows)} results" if output else table(rows)
    emit(rows, json, text)


def _open_searchable(path: Path) -> tuple[Index, DescriptorStore]:
    """A store as an exact index over itself, or a saved index with the store that it refers to."""
    from covis.core.artifacts import MANIFEST, read_json
    from covis.descriptors import DescriptorStore
    from covis.search import Exact, open_index

    if (path / MANIFEST).is_file() and read_json(path / MANIFEST).get("kind") == "index":
        index = open_index(path)
        (store,) = index.vectors.parts
        if not isinstance(store, DescriptorStore):
            raise InputError(f"{path} names no store, so its images have no names; build it with covis search build")
        return index, store
    store = DescriptorStore.open(path)
    exact = Exact(store.dim)
    exact.add(range(len(store)), store)
    return exact, store


def _positions(store: DescriptorStore, path: Path | None) -> Any:
    """(N, 2) positions of a store's images by name; NaN where the table has none."""
    if path is None:
        return None
    import numpy as np

    from covis.reading.table import read_table

    images = read_table(path)
    rows = store.rows(images.names)
    xy = np.full((len(store), 2), np.nan)
    xy[rows[rows >= 0]] = images.poses.xy[rows >= 0]
    if not (rows >= 0).any():
        raise InputError(f"{path} names none of the images of {store.path}; give the table they were embedded from")
    return xy


def _result_rows(ranking: Ranking, queries: DescriptorStore, store: DescriptorStore) -> list[dict[str, Any]]:
    return [
        {"query": queries.name(q), "rank": rank + 1, "image": store.name(i), "distance": round(float(d), 6)}
        for q in range(len(ranking))
        for rank, (i, d) in enumerate(zip(*ranking.row(q), strict=True))
    ]
