"""Checkpoints: the state of a run on disk, everything that an exact resume needs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from covis.core import artifacts
from covis.core.errors import InputError
from covis.core.progress import warn

CHECKPOINT = "checkpoint"
KEPT_CHECKPOINTS = 2
"""How many are kept: if the newest is damaged, the one before it still serves."""


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Writes `tensors` (nested dicts of tensors and numbers) and `facts` (JSON) as the checkpoint of `step`."""
    path = folder / f"step-{step:09d}"
    try:
        with artifacts.create(path, CHECKPOINT, {"step": step, "facts": dict(facts)}, replace=True) as draft:
            torch.save(dict(tensors), draft.path / "state.pt")
    except OSError as error:
        raise OSError(
            error.errno, f"the checkpoint of step {step} could not be saved ({error.strerror})", str(path)
        ) from error
    for old in _steps(folder)[:-KEPT_CHECKPOINTS]:
        shutil.rmtree(old)
    return path


def latest_checkpoint(folder: Path) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """(step, tensors, facts) of the newest intact checkpoint, or None."""
    for path in reversed(_steps(folder)):
        try:
            manifest = artifacts.open_manifest(path, CHECKPOINT)
        except InputError as error:
            warn(f"{error}; resuming from the checkpoint before it")
            continue
        tensors = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        return int(manifest["step"]), tensors, manifest["facts"]
    return None


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []
