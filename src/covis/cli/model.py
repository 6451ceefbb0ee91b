"""`covis model`, `export`, `embed`: weights in from elsewhere, models out to elsewhere, descriptors of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covis.cli.common import (
    MODEL_HELP,
    Device,
    Json,
    Workers,
    choice_of,
    emit,
    existing,
    existing_model,
    existing_weights,
    known_backbone,
    named,
)
from covis.core.errors import InputError

if TYPE_CHECKING:
    from covis.descriptors import DescriptorStore
    from covis.images import ImageSet
    from covis.models import Embedder


def embed(
    model: Annotated[Path, typer.Argument(callback=existing_model, help=MODEL_HELP)],
    images: Annotated[
        Path, typer.Argument(callback=existing, help="A folder of images, or a table (CSV, Parquet, GeoJSON).")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The store; re-run to resume.")],
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
    workers: Workers = None,
    device: Device = None,
    half: Annotated[bool | None, typer.Option("--half/--single", help="Precision (default: half on a GPU).")] = None,
    runtime: Annotated[
        str,
        typer.Option(
            callback=choice_of("--runtime", ("auto", "torch", "onnx")),
            help="auto (whichever is faster), torch or onnx.",
        ),
    ] = "auto",
    json: Json = False,
) -> None:
    """Compute the descriptors of images. If it is interrupted, re-run it to resume from the last shard.

    \b
    Examples:
      covis embed runs/quick photos/ -o photos.store
      covis embed runs/quick/model map.csv -o map.store --dtype float16
      covis embed theirs.npy photos/ -o photos.store
      torchrun --nproc-per-node 4 -m covis embed runs/r50 /data/images -o images.store
    """
    from covis.describing.describers import find_describer

    describer, image_set = find_describer(model), images_at(images)
    precision: Literal["float32", "float16"] = "float16" if dtype == "float16" else "float32"
    if describer.kind in ("store", "matrix"):
        store = _copied(model, image_set, output, precision)
    else:
        from covis.describing import embedding
        from covis.describing.describers import open_model

        on_cpu = device in (None, "cpu")
        chosen: Literal["auto", "torch", "onnx"] = (
            "onnx" if runtime == "onnx" else "auto" if runtime == "auto" and on_cpu else "torch"
        )
        store = embedding.embed(
            open_model(describer.path, chosen, len(image_set)),
            image_set,
            output,
            dtype=precision,
            batch_size=batch_size or embedding.BATCH_SIZE,
            shard_rows=shard_rows or embedding.SHARD_ROWS,
            workers=workers,
            half=half,
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
    emit(result, json, text, f"covis search build {output} -o INDEX")


def _copied(source: Path, images: ImageSet, output: Path, dtype: Literal["float32", "float16"]) -> DescriptorStore:
    """A store of descriptors that exist already: another store's, or another tool's."""
    from covis.describing.describers import open_describer
    from covis.descriptors import DescriptorStore

    describer = open_describer(source)
    vectors, lost = describer.describe(images)
    fingerprint = str(describer.facts["fingerprint"])
    facts = {"copied_from": source.name, "count": len(images)}
    store = DescriptorStore.create(output, fingerprint, vectors.shape[1], dtype, facts)
    return store.append(images.names[~lost], vectors, model=fingerprint)


def images_at(path: Path) -> ImageSet:
    """Images as `open_images` reads them; of a plain folder only the names, as descriptors need no positions."""
    import numpy as np

    from covis.core.files import walk_images
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


# `covis model` and `covis export`: weights in from elsewhere, models out to elsewhere.


def import_model(
    file: Annotated[Path, typer.Argument(callback=existing, help="A .safetensors or .pth file of weights.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The model folder to write.")],
    backbone: Annotated[
        str, typer.Option(callback=known_backbone, help="Its network: a name from `covis list backbones`.")
    ] = "",
    published: Annotated[
        str,
        typer.Option(
            callback=named("published model"),
            help="Its system, for a published checkpoint: a name from `covis list models`.",
        ),
    ] = "",
    weights_file: Annotated[
        str,
        typer.Option(
            "--weights",
            callback=existing_weights,
            help="The backbone's weights, if FILE is only a vocabulary (AnyLoc).",
        ),
    ] = "",
    pool: Annotated[str, typer.Option(callback=named("pooling"), help="Pooling on top.")] = "gem",
    image_size: Annotated[str, typer.Option(help="HEIGHTxWIDTH in pixels.")] = "480x640",
    stride_on: Annotated[str, typer.Option(help="conv1 for ResNets of 2015, else conv2.")] = "conv2",
    blocks: Annotated[int, typer.Option(help="Keep only this many leading blocks; 0 = all.")] = 0,
    licence: Annotated[str, typer.Option(help="The weights' licence, for the model card.")] = "",
    json: Json = False,
) -> None:
    """Make a model folder from weights or a published checkpoint. Code inside a .pth file is never run.

    \b
    Examples:
      covis model import mobilenetv2_100.safetensors --backbone mobilenetv2_100 -o mobilenet
      covis model import MSLS_resnet50_GeM_480_GCL.pth --backbone resnet50 --pool gem -o r50-gcl
      covis model import resnet50_MixVPR_4096.ckpt --published mixvpr_resnet50_4096 -o mixvpr
      covis model import c_centers.pt --published anyloc_vitg14 --weights dinov2_vitg14_pretrain.pth -o anyloc
      covis model import resnet50_2015.safetensors --backbone resnet50 --stride-on conv1 -o r50
    """
    from covis.models import ModelConfig, PlaceModel, weights

    values: dict[str, Any] = {"backbone": backbone, "pool": pool, "image_size": _size(image_size)}
    values |= {"stride_on": stride_on, "blocks": blocks}
    if not file.is_file():
        raise InputError(f"{file} does not exist; give a .safetensors or .pth file")
    if output.exists():
        raise InputError(f"{output} already exists; choose another output or remove it")
    if bool(backbone) == bool(published):
        raise InputError(
            f"say what {file} belongs to: --backbone NAME (covis list backbones) or --published NAME (covis list models)"
        )
    if weights_file and not published:
        raise InputError("--weights goes with --published; give the backbone's weights as FILE")
    if published:
        model = PlaceModel.from_pretrained(published, file, weights_file)
    else:
        model = PlaceModel.build(ModelConfig.from_dict(values))
        weights.fill_from_file(model, file)
    model.save(output, {"licence": licence} if licence else {})
    facts = _facts(model, output)
    emit(
        facts,
        json,
        f"{output}: {model.config.backbone} + {model.config.pool}, {model.dim} dims, fingerprint {facts['fingerprint']}",
        f"covis evaluate {output} BENCHMARK, or covis index PHOTOS -o MAP --model {output}",
    )


def show_model(
    model: Annotated[Path, typer.Argument(callback=existing_model, help=MODEL_HELP)],
    json: Json = False,
) -> None:
    """Show a model's card: data, licence, dimensions, fingerprints.

    \b
    Examples:
      covis model show runs/quick
      covis model show place.onnx
      covis model show runs/quick/model --json
    """
    from covis.describing.describers import find_describer

    describer = find_describer(model)
    if describer.kind == "model":
        facts = _card(describer.path)
    else:
        from covis.describing.describers import open_describer

        facts = {"kind": describer.kind, "path": str(describer.path), **open_describer(model).facts}
    emit(facts, json, "\n".join(nested(facts)))


def _card(folder: Path) -> dict[str, Any]:
    """What a model folder says of itself, without loading its weights."""
    from covis.core.artifacts import open_manifest, read_json

    manifest = open_manifest(folder, "model")
    return {
        "path": str(folder),
        **read_json(folder / "card.json"),
        "config": read_json(folder / "config.json"),
        "preprocessing": read_json(folder / "preprocessing.json"),
        "created": manifest["created"],
    }


def publish(
    model: Annotated[Path, typer.Argument(callback=existing, help="A model or run folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")],
    licence: Annotated[str, typer.Option(help="The weights' licence, for the card.")] = "",
    json: Json = False,
) -> None:
    """Write a model as a folder for a model hub. It holds config, safetensors and card; nothing is uploaded.

    \b
    Examples:
      covis model publish runs/quick -o town-tiny --licence MIT
    """
    from covis.describing.describers import open_place_model

    loaded = open_place_model(model)
    loaded.publish(output, {"licence": licence} if licence else {})
    files = sorted(path.name for path in output.iterdir())
    emit(_facts(loaded, output) | {"files": files}, json, f"{output}: {', '.join(files)}, {loaded.dim} dims")


def nested(facts: Mapping[str, Any], indent: str = "") -> list[str]:
    """Nested facts as indented lines, names aligned."""
    width = max((len(str(key)) for key, value in facts.items() if not _is_nested(value)), default=0)
    lines = []
    for key, value in facts.items():
        if _is_nested(value):
            lines += [f"{indent}{key}", *nested(value, f"{indent}  ")]
        else:
            lines.append(f"{indent}{key:<{width}}  {_plain(value)}")
    return lines


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None or value == {} else str(value)


def export_model(
    model: Annotated[Path, typer.Argument(callback=existing_model, help="A model or run folder, or an ONNX file.")],
    onnx: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    json: Json = False,
) -> None:
    """Write a model as one ONNX file, checked against torch. It takes uint8 RGB pixels and returns unit descriptors.

    An ONNX file is copied, checked against the checksum that it carries.

    \b
    Examples:
      covis export runs/quick --onnx place.onnx
    """
    from covis.describing.describers import open_model
    from covis.models import OnnxPlaceModel, export_onnx
    from covis.models.onnx import copy_onnx

    loaded = open_model(model)
    if isinstance(loaded, OnnxPlaceModel):
        copy_onnx(loaded, onnx)
        difference, checked = 0.0, f"the same as {model}, which is what its checksum says"
    else:
        difference = export_onnx(loaded, onnx)
        checked = f"within {difference:.1e} of torch"
    facts = _facts(loaded, onnx) | {"largest_difference": difference, "bytes": onnx.stat().st_size}
    height, width = loaded.preprocessing.image_size
    text = f"{onnx}: (batch, 3, {height}, {width}) uint8 → (batch, {loaded.dim}), {checked}"
    emit(facts, json, text, f"covis embed {onnx} PHOTOS -o STORE")


def _facts(model: Embedder, path: Path) -> dict[str, Any]:
    from covis.models import OnnxPlaceModel

    parts = model.facts if isinstance(model, OnnxPlaceModel) else model.config.to_dict()
    return {
        "path": str(path),
        "backbone": parts["backbone"],
        "pool": parts["pool"],
        "dim": model.dim,
        "image_size": list(model.preprocessing.image_size),
        "fingerprint": model.fingerprint(),
    }


def _size(text: str) -> tuple[int, int]:
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) != 2 or not all(side.strip().isdigit() for side in sides):
        raise InputError(f"--image-size is HEIGHTxWIDTH in pixels, such as 480x640, not {text!r}")
    return int(sides[0]), int(sides[1])
