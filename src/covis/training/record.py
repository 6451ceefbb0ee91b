"""The record of a run: its counters, and its metrics as CSV and TensorBoard events."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from covis.core import artifacts
from covis.core.errors import Damaged
from covis.core.foreign import read_foreign

METRICS = "metrics.csv"
RESULT = "result.json"
_COLUMNS = (
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
class Counters:
    """Counters of a run."""

    step: int = 0
    images: int = 0
    """Images embedded with gradient."""
    pairs: int = 0
    composition: dict[str, int] = field(default_factory=dict)
    """Pairs that the loss saw by their ψ, after bad files were replaced."""
    redrawn: int = 0
    seconds: float = 0.0
    """Time spent training, over all stops, validation left out."""
    mining_seconds: float = 0.0
    skipped: int = 0
    """Steps in a row whose loss was not finite."""
    best: dict[str, float] = field(default_factory=dict)
    """Recall of the best validation, with its step."""
    stale: int = 0
    """Validations in a row that were not better."""
    memory_gib: float = 0.0
    """Peak memory of the first rank up to its first step: of the GPU, or of the process where there is none."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Record:
    """Metrics as CSV and TensorBoard events; those after the step that a run resumes from are dropped."""

    def __init__(self, run: Path, step: int, tensorboard: bool) -> None:
        self.path = run / METRICS
        rows = read_metrics(run)
        with self.path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, _COLUMNS)
            writer.writeheader()
            writer.writerows(row for row in rows if int(row["step"]) <= step)
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(run / "events"), purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """One row; absent columns stay empty."""
        with self.path.open("a", newline="", encoding="utf-8") as handle:
            csv.DictWriter(handle, _COLUMNS).writerow({k: row.get(k, "") for k in _COLUMNS})
        if self._events is not None:
            for key in (k for k in row if k not in _COLUMNS[:3]):  # own scalars of callbacks too
                if isinstance(row[key], (int, float)):
                    self._events.add_scalar(key, float(row[key]), int(row["step"]))

    def close(self) -> None:
        """Flushes what TensorBoard has not written."""
        if self._events is not None:
            self._events.close()


def read_metrics(run: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics without an unfinished last line; a finished run's are checked against its result."""
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
    """Whether a run wrote metrics, even if the file is gone."""
    return (run / METRICS).is_file() or _expected(run) is not None


def _expected(run: Path) -> str | None:
    """SHA-256 of the metrics of a finished run."""
    result = artifacts.read_json(run / RESULT) if (run / RESULT).is_file() else {}
    return result.get("metrics_sha256") if isinstance(result, dict) else None
