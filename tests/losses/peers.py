"""Other libraries' losses, to compare with. `from losses.peers import sentence_losses`."""

import importlib
from types import ModuleType

import pytest


def sentence_losses() -> ModuleType:
    """The losses of sentence-transformers under either of their names; skips where it is not installed."""
    pytest.importorskip("transformers")
    from covis.models import backbones

    backbones.import_timm()
    try:
        return importlib.import_module("sentence_transformers.sentence_transformer.losses")
    except ModuleNotFoundError as missing:
        if missing.name == "sentence_transformers":
            pytest.skip("sentence-transformers is not installed")
        return importlib.import_module("sentence_transformers.losses")
