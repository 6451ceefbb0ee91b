"""The result of a training run."""

from __future__ import annotations

from pathlib import Path

from covis.core import artifacts
from covis.core.settings import JsonValues
from covis.training.record import RESULT


class Trained(JsonValues):
    """The result of a run, typed; as a mapping it is what `RUN/result.json` holds and `--json` prints."""

    @classmethod
    def open(cls, run: Path) -> Trained:
        """The result of a finished run."""
        return cls(artifacts.read_json(run / RESULT))

    def __repr__(self) -> str:
        return f"Trained({str(self.model)!r}, {self.dim} dims, {self.steps} steps, {self.pairs} pairs)"

    @property
    def model(self) -> Path:
        """Folder of the best model by validation, or of the last one without validation."""
        return Path(self["model"])

    @property
    def dim(self) -> int:
        """Dimension of its descriptors."""
        return int(self["dim"])

    @property
    def steps(self) -> int:
        """Steps of the optimiser."""
        return int(self["step"])

    @property
    def pairs(self) -> int:
        """Pairs (or tuples) that the loss saw."""
        return int(self["pairs"])

    @property
    def shares(self) -> dict[str, float]:
        """Percent of the pairs by ψ, as counted: positive, less, none."""
        counts = self["composition"]
        return {name: 100 * count / max(1, sum(counts.values())) for name, count in counts.items()}

    @property
    def recall(self) -> dict[int, float]:
        """Recall@k in percent of the best validation; empty without validation."""
        return {int(k): float(v) for k, v in self["best"].items() if k != "step"}

    @property
    def best_step(self) -> int | None:
        """Step of the best validation (0 = the network as it was before training); None without validation."""
        step = self["best"].get("step")
        return None if step is None else int(step)
