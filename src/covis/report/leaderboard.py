"""A leaderboard: evaluations of many models, protocol by protocol, with what each model costs and may be used for.

Time and memory are measured here and now, one model after another on this machine, where a model still lies where it was
evaluated; figures of two machines are never mixed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covis import artifacts
from covis.errors import InputError
from covis.evaluation import Evaluation
from covis.evaluation.render import COMPARED_KS as KS
from covis.evaluation.render import name_of
from covis.report.page import Section, table, text, write_page

TIMED = 3
"""Images that are timed, after one that is not; the quickest counts."""


@dataclass(frozen=True)
class DescribingCost:
    """What describing a photo takes, without decoding it."""

    ms_per_photo: float
    """Wall time of the network, one photo at a time, on as many cores as torch uses."""
    parameters_m: float
    model_mb: float


def measure(folder: Path) -> DescribingCost:
    """The cost of the model in a folder."""
    import torch

    from covis.models import PlaceModel

    model = PlaceModel.load(folder).eval()
    pixels = torch.zeros((1, 3, *model.preprocessing.image_size), dtype=torch.uint8)
    taken = []
    with torch.inference_mode():
        for _ in range(1 + TIMED):
            started = time.perf_counter()
            model(model.normalise(pixels))
            taken.append(time.perf_counter() - started)
    tensors = list(model.state_dict().values())
    size = sum(t.nbytes for t in tensors)
    return DescribingCost(1000 * min(taken[1:]), sum(p.numel() for p in model.parameters()) / 1e6, size / 1e6)


def leaderboard(evaluations: Sequence[Evaluation], *, timed: bool = True) -> dict[str, Any]:
    """For each protocol its evaluations, best Recall@1 first, with dims, costs and licence."""
    if not evaluations:
        raise InputError("a leaderboard needs at least one evaluation; give folders of covis evaluate")
    costs: dict[str, DescribingCost | None] = {}
    boards: dict[str, list[dict[str, Any]]] = {}
    protocols: dict[str, dict[str, Any]] = {}
    for evaluation in evaluations:
        boards.setdefault(evaluation.fingerprint, []).append(_entry(evaluation, costs, timed))
        protocols[evaluation.fingerprint] = _protocol(evaluation)
    return {
        "boards": [
            {**protocols[key], "rows": sorted(rows, key=lambda row: (-row["recall"]["1"], row["model"]))}
            for key, rows in boards.items()
        ]
    }


def _protocol(evaluation: Evaluation) -> dict[str, Any]:
    figures = evaluation.figures
    return {
        "benchmark": evaluation.benchmark,
        "fingerprint": evaluation.fingerprint,
        "queries": figures.queries,
        "database": figures.database,
        "rule": str(evaluation.protocol.get("rule", "")),
    }


def _entry(evaluation: Evaluation, costs: dict[str, DescribingCost | None], timed: bool) -> dict[str, Any]:
    subject, figures = evaluation.subject, evaluation.figures
    folder = _model_folder(subject)
    cost = None
    if folder is not None and timed:
        key = str(subject["fingerprint"])
        if key not in costs:
            costs[key] = measure(folder)
        cost = costs[key]
    rerank = figures.get("rerank_cost") or {}
    return {
        "model": evaluation.label,
        "recall": {str(k): evaluation.recall[k] for k in KS},
        "interval": {str(k): list(figures.recall_interval[k]) for k in KS},
        "dim": figures.dim,
        "map_kb_per_photo": None if figures.dim is None else 4 * figures.dim / 1000,
        "image_size": list((subject.get("preprocessing") or {}).get("image_size", ())),
        "cost": None if cost is None else asdict(cost),
        "rerank_ms_per_query": rerank.get("cpu_ms_per_query"),
        "licence": _licence(subject, folder),
    }


def _model_folder(subject: Mapping[str, Any]) -> Path | None:
    """Where the model still lies, if it is the one that was evaluated."""
    folder = Path(str(subject.get("folder") or ""))
    record = folder / artifacts.MANIFEST
    if not subject.get("folder") or not record.is_file():
        return None
    return folder if artifacts.read_json(record).get("fingerprint") == subject.get("fingerprint") else None


def _licence(subject: Mapping[str, Any], folder: Path | None) -> str:
    """Of the weights, else of the data that a model learned from, as its card says."""
    card = artifacts.read_json(folder / "card.json") if folder is not None else subject
    data = card.get("data")
    of_data = f"data: {data['licence']}" if isinstance(data, Mapping) and data.get("licence") else ""
    return str(card.get("licence") or of_data)


def rows(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of one protocol, for people."""
    shown = []
    for place, row in enumerate(board["rows"], 1):
        told: dict[str, Any] = {"": place, "model": row["model"]}
        for k in KS:
            low, high = row["interval"][str(k)]
            told[name_of(f"recall@{k}").heading] = f"{row['recall'][str(k)]:.1f} [{low:.1f}, {high:.1f}]"
        cost = row["cost"] or {}
        told |= {
            "dims": _cell(row["dim"], "d"),
            "kB per map photo": _cell(row["map_kb_per_photo"], ".1f"),
            "image": "×".join(map(str, row["image_size"])),
            "ms per photo": _cell(cost.get("ms_per_photo"), ".1f"),
            "re-rank ms per query": _cell(row["rerank_ms_per_query"], ".1f"),
            "parameters (M)": _cell(cost.get("parameters_m"), ".1f"),
            "model (MB)": _cell(cost.get("model_mb"), ".1f"),
            "licence": row["licence"] or "–",
        }
        shown.append(told)
    return shown


def _cell(value: Any, form: str) -> str:
    return "–" if value is None else format(value, form)


def heading(board: Mapping[str, Any]) -> str:
    """A protocol in one line."""
    rule = f", {board['rule']}" if board["rule"] else ""
    return (
        f"{board['benchmark']}: {board['queries']} queries, {board['database']} map photos{rule}, "
        f"protocol {board['fingerprint']}"
    )


def write_leaderboard(path: Path, found: Mapping[str, Any], title: str = "Leaderboard") -> None:
    """The page: a table for each protocol."""
    best = {name_of(f"recall@{k}").heading: False for k in KS} | {"ms per photo": True}
    parts = [
        Section(
            board["benchmark"],
            f'<p class="note">{text(heading(board))}</p>' + table(rows(board), f"board{i}", best=best),
        )
        for i, board in enumerate(found["boards"])
    ]
    lead = "<p>In brackets: 95 % intervals. Times are of this machine, one photo at a time, without decoding.</p>"
    write_page(path, title, lead, parts, navigation=len(parts) > 1)
