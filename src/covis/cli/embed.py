"""`covis embed`: descriptors of any number of images, into a store that resumes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from covis.cli.common import MODEL_HELP, WORKERS_HELP, Json, emit, existing
from covis.errors import InputError

if TYPE_CHECKING:
    from covis.descriptors import DescriptorStore
    from covis.images import ImageSet


def embed(
    model: Annotated[Path, typer.Argument(help=MODEL_HELP)],
    images: Annotated[
        Path, typer.Argument(callback=existing, help="A folder of images, or a table (CSV, Parquet, GeoJSON).")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The store; re-run to resume.")],
    dtype: Annotated[str, typer.Option(help="float32, or float16 for half the disk.")] = "float32",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images through the network at once.")] = None,
    shard_rows: Annotated[int | None, typer.Option(min=1, help="Images per shard: what an interruption costs.")] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N (default: a GPU if there is one).")] = None,
    half: Annotated[bool | None, typer.Option("--half/--single", help="Precision (default: half on a GPU).")] = None,
    runtime: Annotated[str, typer.Option(help="auto (the fastest that pays), torch or onnx.")] = "auto",
    json: Json = False,
) -> None:
    """Compute the descriptors of images. Re-run the same command to resume at the last shard.

    \b
    Examples:
      covis embed runs/quick photos/ -o photos.store
      covis embed runs/quick/model map.csv -o map.store --dtype float16
      covis embed theirs.npy photos/ -o photos.store
      torchrun --nproc-per-node 4 -m covis embed runs/r50 /data/images -o images.store
    """
    from covis.describing.describers import find_describer

    if dtype not in ("float32", "float16"):
        raise InputError(f"--dtype is float32 or float16, not {dtype}")
    if runtime not in ("auto", "torch", "onnx"):
        raise InputError(f"--runtime is auto, torch or onnx, not {runtime}")
    found, wanted = find_describer(model), images_at(images)
    precision: Literal["float32", "float16"] = "float16" if dtype == "float16" else "float32"
    if found.kind in ("store", "matrix"):
        store = _copied(model, wanted, output, precision)
    else:
        from covis.describing import embedding
        from covis.describing.describers import open_model

        on_cpu = device in (None, "cpu")
        chosen: Literal["auto", "torch", "onnx"] = (
            "onnx" if runtime == "onnx" else "auto" if runtime == "auto" and on_cpu else "torch"
        )
        store = embedding.embed(
            open_model(found.path, chosen, len(wanted)),
            wanted,
            output,
            dtype=precision,
            batch_size=batch_size or embedding.BATCH_SIZE,
            shard_rows=shard_rows or embedding.SHARD_ROWS,
            workers=workers,
            device=device,
            half=half,
        )
    result = {
        "store": str(output),
        "rows": len(store),
        "dim": store.dim,
        "dtype": store.dtype.name,
        "model": store.model,
        "left_out": len(wanted) - len(store),
        "fingerprint": store.fingerprint(),
    }
    text = f"{output}: {len(store)} × {store.dim} {store.dtype.name}, {len(wanted) - len(store)} images left out"
    emit(result, json, text)


def _copied(source: Path, images: ImageSet, output: Path, dtype: Literal["float32", "float16"]) -> DescriptorStore:
    """A store of descriptors that are there already: another store's, or another tool's."""
    from covis.describing.describers import open_describer
    from covis.descriptors import DescriptorStore

    describer = open_describer(source)
    vectors, lost = describer.describe(images)
    fingerprint = str(describer.facts["fingerprint"])
    facts = {"copied_from": source.name, "count": len(images)}
    store = DescriptorStore.create(output, fingerprint, vectors.shape[1], dtype, facts)
    return store.append(images.names[~lost], vectors, model=fingerprint)


def images_at(path: Path) -> ImageSet:
    """What `open_images` opens; of a plain folder of photos the names alone, for a descriptor needs no position."""
    import numpy as np

    from covis.files import walk_images
    from covis.images import ImageSet
    from covis.poses import Poses
    from covis.reading.sources import open_images, open_posed

    if not path.is_dir():
        return open_images(path)
    posed = open_posed(path)
    if posed is not None:
        return posed
    names = walk_images(path)
    if not names:
        raise InputError(f"{path} holds no images; expected files such as {path}/photo.jpg")
    nowhere = np.full((len(names), 2), np.nan)
    return ImageSet.of(path, names, Poses(nowhere, nowhere[:, 0]))
