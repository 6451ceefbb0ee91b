"""What a run has come to: everything that a stop must not lose, and its record for people."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

METRICS = "metrics.csv"
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
    """The rows of a run's metrics, an unfinished last line left out."""
    path = run / METRICS
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as handle:
        return [row for row in csv.DictReader(handle) if row["recall@10"] is not None and (row["step"] or "").isdigit()]
