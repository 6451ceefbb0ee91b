"""`covis embed`: descriptors of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from covis.cli.options import MODEL_HELP, Checkpoint, Json, choice_of, existing, existing_model
from covis.cli.output import emit
from covis.cli.verbs import STEPS, verb

if TYPE_CHECKING:
    from covis.descriptors import DescriptorStore
    from covis.images import ImageSet


@verb("embed", section=STEPS, order=2)
def embed(
    model: Annotated[Path, typer.Argument(callback=existing_model, help=MODEL_HELP)],
    images: Annotated[
        Path, typer.Argument(callback=existing, help="A folder of images, or a table (CSV, Parquet, GeoJSON).")
    ],
    output: Annotated[Path, typer.Option("-o", "--out", help="The store; re-run to resume.")],
    dtype: Annotated[
        str,
        typer.Option(
            callback=choice_of("--dtype", ("float32", "float16")), help="float32, or float16 for half the disk."
        ),
    ] = "float32",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images per forward pass.")] = None,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="Images per shard; an interrupted shard is recomputed.")
    ] = None,
    weights: Checkpoint = None,
    json: Json = False,
) -> None:
    """Compute the descriptors of images. If it is interrupted, re-run it to resume from the last shard.

    \b
    Examples:
      covis embed runs/quick photos/ -o photos.store
      covis embed runs/quick/model map.csv -o map.store --dtype float16
      covis embed theirs.npy photos/ -o photos.store
      covis embed megaloc photos/ -o photos.store
      torchrun --nproc-per-node 4 -m covis embed runs/r50 /data/images -o images.store
    """
    from covis.describing.describers import find_describer
    from covis.describing.named import named_model
    from covis.reading.sources import list_images

    describer, image_set = find_describer(named_model(model, weights)), list_images(images)
    precision: Literal["float32", "float16"] = "float16" if dtype == "float16" else "float32"
    if describer.kind in ("store", "matrix"):
        store = _copy_descriptors(model, image_set, output, precision)
    else:
        from covis.describing import embedding
        from covis.describing.describers import open_model

        store = embedding.embed(
            open_model(describer.path, len(image_set)),
            image_set,
            output,
            dtype=precision,
            batch_size=batch_size or embedding.BATCH_SIZE,
            shard_rows=shard_rows or embedding.SHARD_ROWS,
        )
    result = {
        "store": str(output),
        "rows": len(store),
        "dim": store.dim,
        "dtype": store.dtype.name,
        "model": store.model,
        "left_out": len(image_set) - len(store),
        "fingerprint": store.fingerprint(),
    }
    text = f"{output}: {len(store)} × {store.dim} {store.dtype.name}, {len(image_set) - len(store)} images left out"
    emit(result, json, text)


def _copy_descriptors(
    source: Path, images: ImageSet, output: Path, dtype: Literal["float32", "float16"]
) -> DescriptorStore:
    """A store of descriptors that exist already: another store's, or another tool's."""
    from covis.describing.describers import open_describer
    from covis.descriptors import DescriptorStore

    describer = open_describer(source)
    vectors, lost = describer.describe(images)
    fingerprint = str(describer.facts["fingerprint"])
    facts = {"copied_from": source.name, "count": len(images)}
    store = DescriptorStore.create(output, fingerprint, vectors.shape[1], dtype, facts)
    return store.append(images.names[~lost], vectors, model=fingerprint)
