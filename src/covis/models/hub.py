"""A model as model hubs know one: a folder of `config.json`, `model.safetensors` and a card, `README.md`.

Written for an upload (`covis model publish`), read back from a folder or, by `hub:OWNER/NAME@REVISION`, from a hub. The
weights' SHA-256 stands in the config, so that other weights than were published are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialise
from torch import Tensor

from covis import artifacts
from covis.errors import Damaged, InputError
from covis.files import first_line, read_json, sha256, write_bytes, write_json, write_text
from covis.models import weights
from covis.models.config import ModelConfig, Preprocessing
from covis.whitening import Whitening

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY = "covis"
PREFIX = "hub:"
_WHITENING = "whitening."
_ADDRESS = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:@([\w.-]+))?")


@dataclass(frozen=True)
class HubModel:
    """What such a folder holds."""

    config: ModelConfig
    preprocessing: Preprocessing
    state: dict[str, Tensor]
    whitening: Whitening | None
    card: dict[str, Any]


def is_hub_folder(path: Path) -> bool:
    """Whether the folder is of this layout and not one of covis's own artefacts."""
    return (path / WEIGHTS).is_file() and (path / CONFIG).is_file() and not (path / artifacts.MANIFEST).exists()


def write(path: Path, model: HubModel) -> None:
    """Writes the folder; an existing one is refused."""
    if path.exists():
        raise InputError(f"{path} exists already; choose another output or remove it")
    path.mkdir(parents=True)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state.items()}
    if model.whitening is not None:
        for part in ("mean", "projection"):
            state[_WHITENING + part] = torch.from_numpy(np.ascontiguousarray(getattr(model.whitening, part)))
    write_bytes(path / WEIGHTS, serialise(state))
    config = {
        "library_name": LIBRARY,
        "model": model.config.to_dict(),
        "preprocessing": asdict(model.preprocessing),
        "whitening": None if model.whitening is None else dict(model.whitening.facts),
        "card": model.card,
        "sha256": sha256(path / WEIGHTS),
    }
    write_text(path / CARD, _readme(path.name, model))
    write_json(path / CONFIG, config, sealed=False)  # last: where it is, the folder is whole


def read(path: Path) -> HubModel:
    """Reads the folder; weights that are not those of its config are refused."""
    config = read_json(path / CONFIG, "download it again")
    if not isinstance(config, Mapping) or config.get("library_name") != LIBRARY:
        raise InputError(f"{path / CONFIG} is not of a covis model; import others with: covis model import FILE")
    if sha256(path / WEIGHTS) != config.get("sha256"):
        raise Damaged(f"{path / WEIGHTS} is not the file that {CONFIG} names (SHA-256 differs); download it again")
    try:
        state = load_file(path / WEIGHTS)
        whitening = None
        if config["whitening"] is not None:
            mean, projection = (state.pop(_WHITENING + part).numpy() for part in ("mean", "projection"))
            whitening = Whitening(mean, projection, facts=config["whitening"])
        preprocessing = Preprocessing(**config["preprocessing"])
        return HubModel(ModelConfig.from_dict(config["model"]), preprocessing, state, whitening, dict(config["card"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path / CONFIG} is incomplete ({first_line(error)}); download it again") from None


def fetch(address: str) -> Path:
    """The folder of `hub:OWNER/NAME[@REVISION]`: from the hub's cache, else fetched into it."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise InputError(f"{address} is no model of a hub; write hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
    name, revision = found.groups()
    try:
        weights.fetch_revision(name, WEIGHTS, revision)
        return weights.fetch_revision(name, CONFIG, revision).parent
    except OSError as error:
        raise InputError(
            f"{address} cannot be fetched here ({error}); download its {CONFIG} and {WEIGHTS} elsewhere into a folder "
            "and give that"
        ) from None


def _readme(name: str, model: HubModel) -> str:
    """The card: what people and hubs read."""
    card, p = model.card, model.preprocessing
    head = {
        "library_name": LIBRARY,
        "tags": ["visual-place-recognition", "image-retrieval", model.config.backbone],
        "pipeline_tag": "image-feature-extraction",
        **({"license_name": card["licence"], "license": "other"} if card.get("licence") else {}),
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
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value)
    use = f'from covis import PlaceModel\n\nmodel = PlaceModel.from_pretrained("{name}")  # this folder, or hub:OWNER/NAME'
    return f"---\n{front}\n---\n\n# {name}\n\n| | |\n| --- | --- |\n{rows}\n\n```python\n{use}\n```\n"


def _recall(told: Any) -> str:
    if not isinstance(told, Mapping) or not told.get("recall"):
        return ""
    figures = ", ".join(f"@{k} {v:.1f}" for k, v in told["recall"].items())
    return f"{figures} on {told.get('benchmark', '')} (protocol {told.get('fingerprint', '')})"
