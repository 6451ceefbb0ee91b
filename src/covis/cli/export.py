"""`covis export`: a model for other programs, as an ONNX file or a folder for a model hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from covis.cli.model import model_facts
from covis.cli.options import Json, existing_model
from covis.cli.output import emit
from covis.cli.verbs import STEPS, verb
from covis.core.errors import InputError


@verb("export", section=STEPS, order=5)
def export(
    model: Annotated[Path, Argument(callback=existing_model, help="A model or run folder, or an ONNX file.")],
    onnx: Annotated[Path | None, Option(help="The ONNX file to write.")] = None,
    hub: Annotated[Path | None, Option(help="A folder for a model hub to write; nothing is uploaded.")] = None,
    licence: Annotated[str, Option(help="hub: the weights' licence, for the card.")] = "",
    json: Json = False,
) -> None:
    """Write a model for other programs. One ONNX file, checked against torch, or a folder for a model hub.

    The ONNX file takes uint8 RGB pixels and returns unit descriptors. An ONNX file is copied, checked against the
    checksum that it carries. The folder has configuration, safetensors and card.

    \b
    Examples:
      covis export runs/quick --onnx place.onnx
      covis export runs/quick --hub town-tiny --licence MIT
    """
    if hub is not None and onnx is None:
        from covis.describing.describers import open_place_model

        loaded = open_place_model(model)
        loaded.publish(hub, {"licence": licence} if licence else {})
        files = sorted(path.name for path in hub.iterdir())
        emit(model_facts(loaded, hub) | {"files": files}, json, f"{hub}: {', '.join(files)}, {loaded.dim} dimensions")
    elif onnx is not None and hub is None:
        _export_onnx(model, onnx, json)
    else:
        raise InputError(f"say what to write of {model}: --onnx FILE or --hub FOLDER")


def _export_onnx(model: Path, target: Path, json: bool) -> None:
    from covis.describing.describers import open_model
    from covis.models import OnnxPlaceModel, export_onnx
    from covis.models.onnx import copy_onnx

    loaded = open_model(model)
    if isinstance(loaded, OnnxPlaceModel):
        copy_onnx(loaded, target)
        difference, checked = 0.0, f"the same as {model}, by its checksum"
    else:
        difference = export_onnx(loaded, target)
        checked = f"within {difference:.1e} of torch"
    facts: dict[str, Any] = {"largest_difference": difference, "bytes": target.stat().st_size}
    height, width = loaded.preprocessing.image_size
    text = f"{target}: (batch, 3, {height}, {width}) uint8 → (batch, {loaded.dim}), {checked}"
    emit(model_facts(loaded, target) | facts, json, text, f"covis embed {target} PHOTOS -o STORE")
