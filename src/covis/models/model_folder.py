"""A model as a folder: weights, config, preprocessing, whitening and card, under one manifest."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file
from safetensors.torch import save as serialise

from covis.core import artifacts
from covis.core.errors import InputError
from covis.models.config import MODEL_KIND, ModelConfig, Preprocessing
from covis.models.parts import ModelParts
from covis.runtime import ONNX_FILE, WEIGHTS_FILE
from covis.whitening import Whitening

_WHITENING = "whitening.safetensors"


def write_model_folder(path: Path, parts: ModelParts, fingerprint: str, *, replace: bool = False) -> None:
    """Writes a model at `path`, all or nothing."""
    facts = {"fingerprint": fingerprint, "dim": parts.card["dim"]}
    with artifacts.create(path, MODEL_KIND, facts, replace=replace) as draft:
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in parts.state.items()}
        (draft.path / WEIGHTS_FILE).write_bytes(serialise(state))
        artifacts.write_json(draft.path / "config.json", parts.config.to_dict())
        artifacts.write_json(draft.path / "preprocessing.json", asdict(parts.preprocessing))
        if parts.whitening is not None:
            parts.whitening.save(draft.path / _WHITENING)
        artifacts.write_json(draft.path / "card.json", parts.card)


def read_model_folder(path: Path) -> tuple[ModelParts, str]:
    """The model at `path`, checked against its manifest, and the fingerprint that it was saved with."""
    manifest = artifacts.open_manifest(path, MODEL_KIND)
    if WEIGHTS_FILE not in manifest["files"]:
        what = f"its network as {ONNX_FILE}" if ONNX_FILE in manifest["files"] else "no network, only what it is called"
        raise InputError(f"{path} holds {what}; give the folder of a model with weights")
    parts = ModelParts(
        config=ModelConfig.from_dict(artifacts.read_json(path / "config.json")),
        preprocessing=Preprocessing(**artifacts.read_json(path / "preprocessing.json")),
        state=load_file(path / WEIGHTS_FILE),
        whitening=Whitening.open(path / _WHITENING) if (path / _WHITENING).is_file() else None,
        card=artifacts.read_json(path / "card.json"),
    )
    return parts, str(manifest["fingerprint"])
