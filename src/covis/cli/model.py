"""`covis model`: model folders from weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from covis.cli.options import Json, existing, existing_weights, known_backbone, named
from covis.cli.output import emit
from covis.cli.verbs import STEPS, group, verb
from covis.core.errors import InputError

if TYPE_CHECKING:
    from covis.models import Embedder

group("model", "Make a model folder from weights.", section=STEPS, order=4)


@verb("model import")
def import_model(
    file: Annotated[Path, Argument(callback=existing, help="A .safetensors or .pth file of weights.")],
    output: Annotated[Path, Option("-o", "--out", help="The model folder to write.")],
    backbone: Annotated[str, Option(callback=known_backbone, help="Its network, of `covis list backbones`.")] = "",
    published: Annotated[
        str,
        Option(
            callback=named("published model"), help="Its system, for a published checkpoint: of `covis list models`."
        ),
    ] = "",
    weights: Annotated[
        str, Option(callback=existing_weights, help="The backbone's weights, if FILE is only a vocabulary (AnyLoc).")
    ] = "",
    pool: Annotated[str, Option(callback=named("pooling"), help="Pooling on top.")] = "gem",
    set_: Annotated[
        list[str] | None,
        Option("--set", help="A field of the network, repeatable: image_size=480,640, stride_on=conv1, …"),
    ] = None,
    licence: Annotated[str, Option(help="The weights' licence, for the model card.")] = "",
    json: Json = False,
) -> None:
    """Make a model folder from weights or a published checkpoint. Code inside a .pth file is never run.

    \b
    Examples:
      covis model import mobilenetv2_100.safetensors --backbone mobilenetv2_100 -o mobilenet
      covis model import MSLS_resnet50_GeM_480_GCL.pth --backbone resnet50 --pool gem -o r50-gcl
      covis model import resnet50_MixVPR_4096.ckpt --published mixvpr_resnet50_4096 -o mixvpr
      covis model import c_centers.pt --published anyloc_vitg14 --weights dinov2_vitg14_pretrain.pth -o anyloc
      covis model import resnet50_2015.safetensors --backbone resnet50 --set stride_on=conv1 -o r50
    """
    if not file.is_file():
        raise InputError(f"{file} is not a file; give a .safetensors or .pth file")
    if output.exists():
        raise InputError(f"{output} already exists; choose another output or remove it")
    if bool(backbone) == bool(published):
        ways = "--backbone NAME (covis list backbones) or --published NAME (covis list models)"
        raise InputError(f"say what {file} belongs to: {ways}")
    if weights and not published:
        raise InputError("--weights goes with --published; give the backbone's weights as FILE")
    if set_ and published:
        raise InputError("--set goes with --backbone; a published model has its own fields")
    from covis.core.settings import build_value
    from covis.models import ModelConfig, PlaceModel
    from covis.models.weights import fill_from_file

    if published:
        model = PlaceModel.from_pretrained(published, file, weights)
    else:
        values: dict[str, Any] = {"backbone": backbone, "pool": pool, "image_size": (480, 640), "weights": None}
        model = PlaceModel.build(build_value(ModelConfig, values, set_ or []))
        fill_from_file(model, file)
    model.save(output, {"licence": licence} if licence else {})
    facts = model_facts(model, output)
    made = f"{facts['backbone']} + {facts['pool']}, {model.dim} dimensions, fingerprint {facts['fingerprint']}"
    then = f"covis evaluate {output} BENCHMARK, or covis index PHOTOS -o MAP --model {output}"
    emit(facts, json, f"{output}: {made}", then)


def model_facts(model: Embedder, path: Path) -> dict[str, Any]:
    """What `covis model import` and `covis export` print of a model."""
    from covis.models import OnnxPlaceModel

    parts = model.facts if isinstance(model, OnnxPlaceModel) else model.config.to_dict()
    return {
        "path": str(path), "backbone": parts["backbone"], "pool": parts["pool"], "dim": model.dim,
        "image_size": list(model.preprocessing.image_size), "fingerprint": model.fingerprint(),
    }  # fmt: skip
