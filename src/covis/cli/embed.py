"""`covis embed`: descriptors of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from covis.cli.options import MODEL_HELP, Checkpoint, Json, existing, existing_model
from covis.cli.output import emit
from covis.cli.verbs import STEPS, verb

if TYPE_CHECKING:
    from covis.descriptors import DescriptorStore
    from covis.images import ImageSet


@verb("embed", section=STEPS, order=2)
def embed(
    model: Annotated[Path, Argument(callback=existing_model, help=MODEL_HELP)],
    images: Annotated[Path, Argument(callback=existing, help="A folder, or a table (CSV, Parquet, GeoJSON).")],
    output: Annotated[Path, Option("-o", "--out", help="The store; re-run to resume.")],
    dtype: Annotated[Literal["float32", "float16"], Option(help="float16 takes half the disk.")] = "float32",
    batch_size: Annotated[int | None, Option(min=1, help="Images per forward pass.")] = None,
    shard_rows: Annotated[int | None, Option(min=1, help="Images per shard; an interrupted one is recomputed.")] = None,
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
    if describer.kind in ("store", "matrix"):
        store = _copy_descriptors(model, image_set, output, dtype)
    else:
        from covis.describing import embedding
        from covis.describing.describers import open_model

        store = embedding.embed(
            open_model(describer.path, len(image_set)),
            image_set,
            output,
            dtype=dtype,
            batch_size=batch_size or embedding.BATCH_SIZE,
            shard_rows=shard_rows or embedding.SHARD_ROWS,
        )
    left_out = len(image_set) - len(store)
    facts = {"store": str(output), "rows": len(store), "dim": store.dim, "dtype": store.dtype.name}
    facts |= {"model": store.model, "left_out": left_out, "fingerprint": store.fingerprint()}
    emit(facts, json, f"{output}: {len(store)} × {store.dim} {store.dtype.name}, {left_out} images left out")


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
