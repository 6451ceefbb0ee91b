"""`covis embed`: descriptors of any number of images, into a store that resumes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covis.cli.common import Json, emit
from covis.errors import InputError

if TYPE_CHECKING:
    from covis.images import ImageSet
    from covis.models import Embedder


def embed(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    images: Annotated[Path, typer.Argument(help="A folder of images, or a table (CSV, Parquet, GeoJSON).")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The store; the same command resumes it.")],
    dtype: Annotated[str, typer.Option(help="float32, or float16 for half the disk.")] = "float32",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images through the network at once.")] = None,
    shard_rows: Annotated[int | None, typer.Option(min=1, help="Images a shard: what an interruption costs.")] = None,
    workers: Annotated[int | None, typer.Option(help="Decoding processes (default: one a core, at most 8).")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N (default: a GPU if there is one).")] = None,
    half: Annotated[bool | None, typer.Option("--half/--single", help="Precision (default: half on a GPU).")] = None,
    runtime: Annotated[str, typer.Option(help="auto (the fastest that pays), torch or onnx.")] = "auto",
    json: Json = False,
) -> None:
    """Compute the descriptors of images. Stopped at any point, the same command goes on at the last shard.

    \b
    Examples:
      covis embed runs/quick/model photos/ -o photos.store
      covis embed runs/quick/model map.csv -o map.store --dtype float16
      torchrun --nproc-per-node 4 -m covis embed runs/r50/model /data/images -o images.store
    """
    from covis.describing import embedding

    if dtype not in ("float32", "float16"):
        raise InputError(f"--dtype is float32 or float16, not {dtype}")
    found = images_at(images)
    store = embedding.embed(
        _load(model, len(found), runtime, device), found, output, dtype="float16" if dtype == "float16" else "float32",
        batch_size=batch_size or embedding.BATCH_SIZE, shard_rows=shard_rows or embedding.SHARD_ROWS, workers=workers, device=device, half=half,
    )  # fmt: skip
    left_out = store.facts["count"] - len(store)
    result = {
        "store": str(output), "rows": len(store), "dim": store.dim, "dtype": store.dtype.name, "model": store.model,
        "left_out": left_out, "fingerprint": store.fingerprint(),
    }  # fmt: skip
    emit(result, json, f"{output}: {len(store)} × {store.dim} {store.dtype.name}, {left_out} images left out")


def _load(model: Path, images: int, runtime: str, device: str | None) -> Embedder:
    from covis.models import OnnxPlaceModel, PlaceModel, load_fast

    if runtime not in ("auto", "torch", "onnx"):
        raise InputError(f"--runtime is auto, torch or onnx, not {runtime}")
    if runtime == "torch" or (runtime == "auto" and device not in (None, "cpu")):
        return PlaceModel.load(model)
    loaded = load_fast(model, images if runtime == "auto" else None)
    if runtime == "onnx" and not isinstance(loaded, OnnxPlaceModel):
        raise InputError(
            "--runtime onnx is for convolutional networks on a CPU, with ONNX Runtime (pip install 'covis[onnx]'); "
            "use --runtime torch"
        )
    return loaded


def images_at(path: Path) -> ImageSet:
    """The images of a table or of any posed source, or all below a folder (whose positions are then unknown)."""
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
