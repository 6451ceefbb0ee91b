"""Checkpoints: each one an atomic, checksummed artefact; the newest whole one is where a run goes on."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from covis import artifacts
from covis.errors import InputError
from covis.progress import warn

KIND = "checkpoint"
KEPT = 2
"""So many are kept: should the newest be damaged, the one before it still serves."""


def save(folder: Path, step: int, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Writes `tensors` (nested dicts of tensors and numbers) and `facts` (JSON) as the checkpoint of `step`."""
    path = folder / f"step-{step:09d}"
    try:
        with artifacts.create(path, KIND, {"step": step, "facts": dict(facts)}, replace=True) as draft:
            torch.save(dict(tensors), draft.path / "state.pt")
    except OSError as error:
        raise OSError(
            error.errno, f"the checkpoint of step {step} could not be saved ({error.strerror})", str(path)
        ) from error
    for old in _steps(folder)[:-KEPT]:
        shutil.rmtree(old)
    return path


def latest(folder: Path) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """(step, tensors, facts) of the newest checkpoint that is whole, or None."""
    for path in reversed(_steps(folder)):
        try:
            manifest = artifacts.open_manifest(path, KIND)
        except InputError as error:
            warn(f"{error}; going on from the checkpoint before it")
            continue
        tensors = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        return int(manifest["step"]), tensors, manifest["facts"]
    return None


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []
