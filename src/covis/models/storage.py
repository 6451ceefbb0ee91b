"""A saved model: a directory of weights, configuration, preprocessing, whitening and a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file
from safetensors.torch import save as serialise

from covis import artifacts
from covis.errors import InputError
from covis.models.config import ModelConfig, Trainable
from covis.models.place_model import PlaceModel
from covis.models.preprocessing import Preprocessing

KIND = "model"
WEIGHTS = "weights.safetensors"
WHITENING = "whitening.safetensors"


def save(model: PlaceModel, path: Path, card: Mapping[str, Any], *, replace: bool = False) -> None:
    """Writes `model` at `path`, all or nothing."""
    identity = model.fingerprint()
    facts = {"fingerprint": identity, "dim": model.dim}
    with artifacts.create(path, KIND, facts, replace=replace) as draft:
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        (draft.path / WEIGHTS).write_bytes(serialise(state))
        config = replace_fields(model.config, weights=None)  # they are here now; where they came from is on the card
        artifacts.write_json(draft.path / "config.json", config.to_dict())
        artifacts.write_json(draft.path / "preprocessing.json", asdict(model.preprocessing))
        if model.whitening is not None:
            model.whitening.save(draft.path / WHITENING)
        artifacts.write_json(draft.path / "card.json", _card(model, card) | {"fingerprint": identity})


def _card(model: PlaceModel, card: Mapping[str, Any]) -> dict[str, Any]:
    whitening = model.whitening
    own = {
        "backbone": model.config.backbone,
        "pool": model.config.pool,
        "dim": model.dim,
        "whitening": None if whitening is None else {"dim": whitening.dim, **whitening.facts},
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    return {**model.card, **card, **own}


def load(path: Path, trainable: str | None = None) -> PlaceModel:
    """Reads the model at `path`."""
    from covis.models.whitening import Whitening

    manifest = artifacts.open_manifest(path, KIND)
    config = ModelConfig.from_dict(artifacts.read_json(path / "config.json"))
    if trainable is not None:
        config = replace_fields(config, trainable=cast(Trainable, trainable))
    model = PlaceModel.skeleton(config)
    try:
        model.load_state_dict(load_file(path / WEIGHTS))
    except RuntimeError as error:
        raise InputError(
            f"{path / WEIGHTS} does not fit its config.json ({_first_line(error)}); make it again"
        ) from None
    model.set_preprocessing(Preprocessing(**artifacts.read_json(path / "preprocessing.json")))
    model.card = artifacts.read_json(path / "card.json")
    if (path / WHITENING).is_file():
        model.whiten(Whitening.open(path / WHITENING))
    if model.fingerprint() != manifest["fingerprint"]:
        raise InputError(f"{path} gives another fingerprint than it was saved with; make it again with this version")
    return model.eval()


def fill(model: PlaceModel, path: Path) -> None:
    """Gives `model` the weights of the model at `path`: backbone, and pooling where it is the same."""
    other = load(path)
    if other.config.backbone != model.config.backbone:
        raise InputError(f"{path} holds backbone {other.config.backbone}, not {model.config.backbone}")
    model.backbone.load_state_dict(other.backbone.state_dict())
    if other.config.pool == model.config.pool:
        model.pool.load_state_dict(other.pool.state_dict())
    model.set_preprocessing(replace_fields(other.preprocessing, image_size=model.config.image_size))
    model.card["weights"] = {"model": path.name, "fingerprint": other.fingerprint()}


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
