"""A model in the layout of model hubs: a folder of `config.json`, `model.safetensors` and a card, `README.md`.

Written for an upload (`covis model publish`), read back from a folder or, by `hub:OWNER/NAME@REVISION`, from a hub. The
config holds the weights' SHA-256, so that weights other than those published are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialise

from covis.core import artifacts, files
from covis.core.errors import Damaged, InputError
from covis.core.files import read_json, sha256, write_bytes, write_json, write_text
from covis.core.foreign import first_line
from covis.core.tables import markdown_lines
from covis.models.config import ModelConfig, Preprocessing
from covis.models.hub import fetch_revision
from covis.models.parts import ModelParts
from covis.whitening import Whitening

CONFIG, _WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY = "covis"
_WHITENING = "whitening."
_ADDRESS = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:@([\w.-]+))?")


def is_hub_folder(path: Path) -> bool:
    """Whether the folder is of this layout and not one of covis's own artefacts."""
    return (path / _WEIGHTS).is_file() and (path / CONFIG).is_file() and not (path / artifacts.MANIFEST).exists()


def write_hub_folder(path: Path, model: ModelParts) -> None:
    """Writes the folder, all of it or nothing; an existing one is refused."""
    if path.exists():
        raise InputError(f"{path} already exists; choose another output or remove it")
    with files.draft_folder(path) as draft:
        _write_parts(draft, path.name, model)
        files.replace_folder(draft, path)


def _write_parts(path: Path, name: str, model: ModelParts) -> None:
    state = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state.items()}
    if model.whitening is not None:
        for part in ("mean", "projection"):
            state[_WHITENING + part] = torch.from_numpy(np.ascontiguousarray(getattr(model.whitening, part)))
    write_bytes(path / _WEIGHTS, serialise(state))
    config = {
        "library_name": LIBRARY,
        "model": model.config.to_dict(),
        "preprocessing": asdict(model.preprocessing),
        "whitening": None if model.whitening is None else dict(model.whitening.facts),
        "card": model.card,
        "sha256": sha256(path / _WEIGHTS),
    }
    write_text(path / CARD, _readme(name, model))
    write_json(path / CONFIG, config)


def read_hub_folder(path: Path) -> ModelParts:
    """Reads the folder; weights that are not those of its config are refused."""
    config = read_json(path / CONFIG, "download it again")
    if not isinstance(config, Mapping) or config.get("library_name") != LIBRARY:
        raise InputError(f"{path / CONFIG} is not of a covis model; import others with: covis model import FILE")
    if sha256(path / _WEIGHTS) != config.get("sha256"):
        raise Damaged(f"{path / _WEIGHTS} is not the file that {CONFIG} names (SHA-256 differs); download it again")
    try:
        state = load_file(path / _WEIGHTS)
        whitening = None
        if config["whitening"] is not None:
            mean, projection = (state.pop(_WHITENING + part).numpy() for part in ("mean", "projection"))
            whitening = Whitening(mean, projection, facts=config["whitening"])
        preprocessing = Preprocessing(**config["preprocessing"])
        return ModelParts(ModelConfig.from_dict(config["model"]), preprocessing, state, whitening, dict(config["card"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path / CONFIG} is incomplete ({first_line(error)}); download it again") from None


def fetch_from_hub(address: str) -> Path:
    """The folder of `hub:OWNER/NAME[@REVISION]`: from the hub's cache, else fetched into it."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InputError(
            f"{address} is not the address of a hub model; write hub:OWNER/NAME or hub:OWNER/NAME@REVISION"
        )
    name, revision = match.groups()
    try:
        fetch_revision(name, _WEIGHTS, revision)
        return fetch_revision(name, CONFIG, revision).parent
    except OSError as error:
        raise InputError(
            f"{address} cannot be fetched here ({error}); download its {CONFIG} and {_WEIGHTS} elsewhere into a folder "
            "and give that"
        ) from None


def _readme(name: str, model: ModelParts) -> str:
    """The card: what people and hubs read."""
    card, p = model.card, model.preprocessing
    head = {
        "library_name": LIBRARY,
        "tags": ["visual-place-recognition", "image-retrieval", model.config.backbone],
        "pipeline_tag": "image-feature-extraction",
        **_licence(card.get("licence") or ""),
    }
    front = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items())
    dim = model.whitening.dim if model.whitening is not None else card.get("dim", "")
    facts = {
        "Backbone, pooling": f"{model.config.backbone}, {model.config.pool}",
        "Descriptor": f"{dim} dims, unit length",
        "Images": f"{p.image_size[0]} × {p.image_size[1]} pixels (height × width)",
        "Licence": card.get("licence") or "not stated",
        "Paper": card.get("paper", ""),
        "Recall": _recall(card.get("recalls")),
        "Fingerprint": card.get("fingerprint", ""),
    }
    rows = markdown_lines([("", ""), *((key, str(value)) for key, value in facts.items() if value)], (False, False))
    use = f'from covis import PlaceModel\n\nmodel = PlaceModel.from_pretrained("{name}")  # this folder, or hub:OWNER/NAME'
    return f"---\n{front}\n---\n\n# {name}\n\n{rows}\n\n```python\n{use}\n```\n"


_LICENCES = ("mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "cc-by-4.0", "cc-by-nc-4.0")
"""Licences that hubs know by these names."""


def _licence(stated: str) -> dict[str, str]:
    """A licence as hubs read it: by the hub's name for it, or as `other` with its own name."""
    if stated.lower() in _LICENCES:
        return {"license": stated.lower()}
    return {"license": "other", "license_name": stated} if stated else {}


def _recall(recalls: Any) -> str:
    if not isinstance(recalls, Mapping) or not recalls.get("recall"):
        return ""
    figures = ", ".join(f"@{k} {v:.1f}" for k, v in recalls["recall"].items())
    return f"{figures} on {recalls.get('benchmark', '')} (protocol {recalls.get('fingerprint', '')})"
