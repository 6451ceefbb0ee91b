"""`covis search`: build an index over a store, ask a store or an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.common import Json, emit, table
from covis.errors import InputError

if TYPE_CHECKING:
    from covis.descriptors import DescriptorStore
    from covis.ranking import Ranking
    from covis.search import Index


def build(
    store: Annotated[Path, typer.Argument(help="A store of descriptors (covis embed).")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The index; it refers to the store.")],
    kind: Annotated[str, typer.Option(help="auto | exact | hnsw | hnsw-sq8 | scalar | ivfpq | binary")] = "auto",
    max_ram: Annotated[str, typer.Option(help="Memory that the index may take, such as 500M or 2G.")] = "",
    positions: Annotated[Path | None, typer.Option(help="A table of the images, for searches in an area.")] = None,
    queries: Annotated[Path | None, typer.Option(help="A store of real queries to tune and measure with.")] = None,
    target_recall: Annotated[float | None, typer.Option(help="Share of the exact nearest to find.")] = None,
    json: Json = False,
) -> None:
    """Build an index, tuned and measured against exact search; its loss is printed.

    \b
    Examples:
      covis search build map.store -o map.index
      covis search build map.store -o map.index --kind binary --max-ram 200M --positions map.csv
    """
    from covis import search
    from covis.descriptors import DescriptorStore
    from covis.search.index import parse_size

    if output.exists():
        raise InputError(f"{output} exists already; choose another output or remove it")
    opened = DescriptorStore.open(store)
    index, measured = search.build_index(
        opened, kind, xy=_positions(opened, positions), max_ram=parse_size(max_ram) if max_ram else None,
        target_recall=search.TARGET_RECALL if target_recall is None else target_recall, queries=DescriptorStore.open(queries) if queries else None,
    )  # fmt: skip
    index.save(output, store=opened)
    emit({"index": str(output), **measured.to_dict()}, json, f"{output}: {measured.line()}")


def load(
    store: Annotated[Path, typer.Argument(help="A store of descriptors (covis embed).")],
    engine: Annotated[str, typer.Argument(help="Milvus: http://HOST:19530, or FILE.db for Milvus Lite.")],
    collection: Annotated[str, typer.Argument(help="The collection; made if it is not there.")],
    structure: Annotated[str, typer.Option(help="The engine's index: AUTOINDEX, HNSW, DISKANN, …")] = "AUTOINDEX",
    positions: Annotated[Path | None, typer.Option(help="A table of the images, for searches in an area.")] = None,
    token: Annotated[str, typer.Option(envvar="COVIS_MILVUS_TOKEN", help="USER:PASSWORD or an API key.")] = "",
    json: Json = False,
) -> None:
    """Load a store into Milvus, where one machine is not enough. Stopped at any point, the same command goes on.

    \b
    Examples:
      covis search load map.store http://milvus:19530 city --positions map.csv
      covis search load map.store local.db city
    """
    from covis.descriptors import DescriptorStore
    from covis.search.engines.milvus import MilvusIndex

    opened = DescriptorStore.open(store)
    index = MilvusIndex(engine, collection, opened.dim, opened.model, token=token, structure=structure)
    index.load(opened, _positions(opened, positions))
    result = {"engine": engine, "collection": collection, "rows": len(index), "dim": index.dim, "model": index.model}
    index.close()
    emit(result, json, f"{engine}, {collection}: {result['rows']} × {result['dim']}")


def query(
    where: Annotated[Path, typer.Argument(help="A store (searched exactly) or an index.")],
    queries: Annotated[Path, typer.Argument(help="A store of query descriptors, of the same model.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Results a query.")] = 10,
    around: Annotated[str, typer.Option(help="X,Y,RADIUS: only images this near, in metres; needs an index.")] = "",
    inside: Annotated[str, typer.Option(help="Only images in a polygon: 'X,Y X,Y X,Y …' or a GeoJSON file.")] = "",
    engine: Annotated[str, typer.Option(help="Ask Milvus instead, where the store WHERE was loaded.")] = "",
    collection: Annotated[str, typer.Option(help="The engine's collection.")] = "",
    token: Annotated[str, typer.Option(envvar="COVIS_MILVUS_TOKEN", help="USER:PASSWORD or an API key.")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="CSV: query,rank,image,distance.")] = None,
    json: Json = False,
) -> None:
    """Find the nearest map images of each query.

    \b
    Examples:
      covis search query map.store queries.store -k 5
      covis search query map.index queries.store --around 312400,4763100,300 -o found.csv
      covis search query map.store queries.store --engine http://milvus:19530 --collection city
    """
    from covis.cli.maps import read_area
    from covis.descriptors import DescriptorStore

    index, store = _engine(where, engine, collection, token) if engine else _searchable(where)
    asked = DescriptorStore.open(queries)
    rows = _rows(index.search(asked, k, area=read_area(around, inside, option="--around")), asked, store)
    if output:
        import csv

        from covis.files import replacing

        with (
            replacing(output) as partial,
            partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle,
        ):
            writer = csv.DictWriter(handle, ["query", "rank", "image", "distance"])
            writer.writeheader()
            writer.writerows(rows)
    text = f"{output}: {len(rows)} results" if output else table(rows)
    emit(rows, json, text)


def _searchable(path: Path) -> tuple[Index, DescriptorStore]:
    """A store as an exact index over itself, or a saved index with the store that it refers to."""
    from covis.artifacts import MANIFEST, read_json
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


def _engine(path: Path, engine: str, collection: str, token: str) -> tuple[Index, DescriptorStore]:
    """A collection of Milvus, and the store that names its images."""
    from covis.descriptors import DescriptorStore
    from covis.search.engines.milvus import MilvusIndex

    if not collection:
        raise InputError("--engine needs --collection; give the name that the store was loaded under")
    store = DescriptorStore.open(path)
    return MilvusIndex(engine, collection, store.dim, store.model, token=token), store


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


def _rows(ranking: Ranking, queries: DescriptorStore, store: DescriptorStore) -> list[dict[str, Any]]:
    return [
        {"query": queries.name(q), "rank": rank + 1, "image": store.name(i), "distance": round(float(d), 6)}
        for q in range(len(ranking))
        for rank, (i, d) in enumerate(zip(*ranking.row(q), strict=True))
    ]
