"""An evaluation: its figures and the outcome of every query, so that two of them can be compared query by query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.card import card
from covis.core.errors import InputError
from covis.core.files import load_array
from covis.core.settings import JsonValues

EVALUATION_KIND = "evaluation"


class Part(NamedTuple):
    """Figures of some of the queries: those of one condition, city or surroundings."""

    queries: int
    recall: dict[int, float]
    localised: dict[str, float]


class Figures(JsonValues):
    """The figures of an evaluation, typed; as a mapping they are what `--json` prints and a manifest keeps."""

    @property
    def recall(self) -> dict[int, float]:
        """Recall@k in percent over the headline's denominator."""
        return _by_k(self["recall"])

    def recall_over(self, denominator: str) -> dict[int, float]:
        """Recall@k in percent over `all` queries or the `answerable` ones."""
        return _by_k(self[f"recall_over_{denominator}"])

    @property
    def recall_interval(self) -> dict[int, tuple[float, float]]:
        """95 % interval over queries, in percent."""
        return {int(k): (float(low), float(high)) for k, (low, high) in self["recall_interval"].items()}

    @property
    def mean_average_precision(self) -> dict[int, float]:
        """mAP@k in percent."""
        return _by_k(self["map"])

    @property
    def localised(self) -> dict[str, float]:
        """Share within each limit, in percent; empty without limits."""
        return {str(k): float(v) for k, v in self.get("localised", {}).items()}

    @property
    def breakdown(self) -> dict[str, dict[str, Part]]:
        """Label → value → figures of the queries with that value."""
        return {
            label: {value: _part(entry) for value, entry in values.items()}
            for label, values in self.get("breakdown", {}).items()
        }

    @property
    def stricter(self) -> dict[str, Part]:
        """Recall by stricter truths, such as within 5 m, each over the queries that it can answer; empty without any."""
        return {str(name): _part(entry) for name, entry in self.get("recall_stricter", {}).items()}

    def single(self, key: str) -> float | None:
        """A figure of one number, such as `median_error_m`; None where the protocol has none."""
        return None if self.get(key) is None else float(self[key])


def _by_k(values: Mapping[Any, Any]) -> dict[int, float]:
    return {int(k): float(v) for k, v in values.items()}


def _part(entry: Mapping[str, Any]) -> Part:
    localised = {str(k): float(v) for k, v in entry.get("localised", {}).items()}
    return Part(int(entry["queries"]), _by_k(entry.get("recall", {})), localised)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Figures in percent unless a name says otherwise; arrays (Q, …) keep the order of the benchmark's queries.

    >>> import covis
    >>> model = covis.PlaceModel.build(covis.models.ModelConfig("tiny", image_size=(32, 32)))
    >>> found = covis.evaluate(model, "town_val")
    >>> 0 <= found.recall[1] <= found.recall[5] <= 100
    True
    """

    figures: Figures
    """What `--json` prints: benchmark, fingerprint, queries, database, recall and the rest."""
    protocol: Mapping[str, Any]
    """The benchmark as plain values (`Benchmark.facts`)."""
    arrays: Mapping[str, NDArray[Any]]
    """`ids`, `distances`, `psi` (Q, K) of the settled ranking; `first_hit`, `relevant`, `error_m`, `error_deg` (Q,);
    names, positions and headings of both sides (`query_*`, `map_*`); sampled pairs (`pair_*`) where ψ is graded."""
    subject: Mapping[str, Any] = field(default_factory=dict)
    """What was evaluated: model, weights, preprocessing, whitening, dimension, as far as known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", Figures(self.figures))
        for name in ("protocol", "arrays", "subject"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __repr__(self) -> str:
        recall = ", ".join(f"Recall@{k} {value:.1f} %" for k, value in list(self.recall.items())[:3])
        return f"Evaluation({self.label!r} on {self.benchmark!r}, {self.figures['queries']} queries: {recall})"

    def _repr_html_(self) -> str:
        recall = {f"Recall@{k}": f"{value:.1f} %" for k, value in self.recall.items()}
        facts = {"subject": self.label, "queries": self.figures["queries"], "map images": self.figures["database"],
                 **recall, "protocol": self.fingerprint}  # fmt: skip
        return card(f"Evaluation on {self.benchmark}", facts)

    @property
    def benchmark(self) -> str:
        """The protocol's name."""
        return str(self.figures["benchmark"])

    @property
    def fingerprint(self) -> str:
        """The protocol's fingerprint: figures can be compared only where it is the same."""
        return str(self.figures["fingerprint"])

    @property
    def recall(self) -> dict[int, float]:
        """Recall@k in percent, over the headline's denominator."""
        return self.figures.recall

    @property
    def label(self) -> str:
        """A short name of what was evaluated."""
        return str(self.subject.get("label") or self.subject.get("model") or "ranking")

    @property
    def counted(self) -> NDArray[np.bool_]:
        """(Q,) the queries in the headline's denominator."""
        if self.protocol.get("denominator") == "all":
            return np.ones(len(self.arrays["relevant"]), bool)
        return np.asarray(self.arrays["relevant"] > 0)

    def hits(self, k: int) -> NDArray[np.bool_]:
        """(Q,) whether a relevant image is among the first k."""
        first = self.arrays["first_hit"]
        return np.asarray((first > 0) & (first <= k))

    def json(self) -> dict[str, Any]:
        """Everything but the arrays, as printed by `--json`."""
        return {**self.figures, "protocol": dict(self.protocol), "subject": dict(self.subject)}

    def save(self, path: Path | str, *, replace: bool = False, config: Mapping[str, Any] | None = None) -> None:
        """Writes the evaluation as an artefact directory; `config` is what a repeated command is checked against."""
        facts = {**self.json(), "config": dict(config or {}), "command": artifacts.command(), "code": artifacts.code()}
        with artifacts.create(path, EVALUATION_KIND, facts, replace=replace) as draft:
            for name, array in self.arrays.items():
                np.save(draft.path / f"{name}.npy", array, allow_pickle=False)

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = True) -> Evaluation:
        """Opens a saved evaluation, arrays memory-mapped."""
        path = Path(path)
        manifest = artifacts.open_manifest(path, EVALUATION_KIND, facts=_FACTS, verify=verify)
        names = [Path(f).stem for f in manifest["files"] if f.endswith(".npy")]
        arrays = {name: load_array(path / f"{name}.npy", mapped=True, remedy=f"make {path} again") for name in names}
        apart = {*_MANIFEST_KEYS, "protocol", "subject"}
        made_by = {"versions": manifest["versions"], "code": manifest.get("code")}
        subject = {**manifest["subject"], **made_by, "path": str(path)}
        figures = Figures({k: v for k, v in manifest.items() if k not in apart})
        return cls(figures, manifest["protocol"], arrays, subject)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A key that sorts 64 before 1024."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


_FACTS = {"benchmark": str, "fingerprint": str, "protocol": dict, "subject": dict, "versions": dict}
_MANIFEST_KEYS = ("kind", "schema", "created", "versions", "files", "config", "command", "code")


def find_evaluations(path: Path | str) -> list[Path]:
    """The evaluations at `path`: the folder itself, or those anywhere below it, such as in a run or a sweep."""
    path = Path(path)
    if (path / artifacts.MANIFEST).is_file() and _is_evaluation(path):
        return [path]
    below = sorted((p.parent for p in path.rglob(artifacts.MANIFEST)), key=_natural)
    evaluations = [folder for folder in below if _is_evaluation(folder)]
    if not evaluations:
        what = "does not exist" if not path.exists() else "holds no evaluation"
        is_run = (path / "run.json").is_file()
        model, target = (path, path / "evals" / "BENCHMARK") if is_run else ("MODEL", "FOLDER")
        raise InputError(f"{path} {what}; make one with: covis evaluate {model} BENCHMARK -o {target}")
    return evaluations


def _is_evaluation(folder: Path) -> bool:
    record = folder / artifacts.MANIFEST
    manifest = artifacts.read_json(record) if record.is_file() else None
    return isinstance(manifest, dict) and manifest.get("kind") == EVALUATION_KIND
