"""The state of a run on disk: everything that an exact resume needs."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from covis import artifacts
from covis.errors import Damaged, InputError
from covis.files import read_foreign
from covis.progress import warn

METRICS = "metrics.csv"
RESULT = "result.json"
COLUMNS = (
    "step",
    "images",
    "pairs",
    "loss",
    "learning_rate",
    "redrawn",
    "seconds",
    "mining_seconds",
    "recall@1",
    "recall@5",
    "recall@10",
)


@dataclass
class Progress:
    """Counters of a run."""

    step: int = 0
    images: int = 0
    """Images embedded with gradient."""
    pairs: int = 0
    redrawn: int = 0
    seconds: float = 0.0
    """Time spent training, over all stops, validation left out."""
    mining_seconds: float = 0.0
    skipped: int = 0
    """Steps in a row whose loss was not finite."""
    best: dict[str, float] = field(default_factory=dict)
    """Recall of the best validation, with its step."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Record:
    """Metrics as CSV and TensorBoard events; what lies beyond the step that a run resumes from is cut off."""

    def __init__(self, run: Path, step: int, tensorboard: bool) -> None:
        self.path = run / METRICS
        rows = read_metrics(run)
        with self.path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, COLUMNS)
            writer.writeheader()
            writer.writerows(row for row in rows if int(row["step"]) <= step)
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(run / "events"), purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """One row; absent columns stay empty."""
        with self.path.open("a", newline="", encoding="utf-8") as handle:
            csv.DictWriter(handle, COLUMNS).writerow({k: row.get(k, "") for k in COLUMNS})
        if self._events is not None:
            for key in COLUMNS[3:]:
                if key in row:
                    self._events.add_scalar(key, float(row[key]), int(row["step"]))

    def close(self) -> None:
        """Flushes what TensorBoard has not written."""
        if self._events is not None:
            self._events.close()


def read_metrics(run: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics, an unfinished last line left out; those of a finished run are read against its result."""
    path, expected = run / METRICS, _expected(run)
    if not path.exists():
        if expected is not None:
            raise Damaged(f"{path} is missing, and {run / RESULT} names it; copy the run again")
        return []
    content = read_foreign(path)
    if expected not in (None, sha256(content).hexdigest()):
        raise Damaged(f"{path} is damaged or was edited (its SHA-256 differs from {RESULT}); copy the run again")
    rows = csv.DictReader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    return [row for row in rows if row.get("recall@10") is not None and (row.get("step") or "").isdigit()]


def has_metrics(run: Path) -> bool:
    """Whether a run wrote metrics, also where they are gone."""
    return (run / METRICS).is_file() or _expected(run) is not None


def _expected(run: Path) -> str | None:
    """SHA-256 of the metrics of a finished run."""
    told = artifacts.read_json(run / RESULT) if (run / RESULT).is_file() else {}
    return told.get("metrics_sha256") if isinstance(told, dict) else None


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
