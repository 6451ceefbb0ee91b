"""A leaderboard: for each protocol its evaluations, best first, as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covis.core import artifacts
from covis.core.errors import InputError
from covis.evaluation import Evaluation
from covis.evaluation.render import BEST_RECALL, name_of
from covis.evaluation.render import COMPARED_KS as KS
from covis.web.page import NOTE, Section, html_table, write_page


def leaderboard(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """For each protocol its evaluations, best Recall@1 first, with dimensions and licence."""
    if not evaluations:
        raise InputError("a leaderboard needs at least one evaluation; give folders of covis evaluate")
    boards: dict[str, list[dict[str, Any]]] = {}
    protocols: dict[str, dict[str, Any]] = {}
    for evaluation in evaluations:
        boards.setdefault(evaluation.fingerprint, []).append(_entry(evaluation))
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


def _entry(evaluation: Evaluation) -> dict[str, Any]:
    subject, figures = evaluation.subject, evaluation.figures
    rerank = figures.get("rerank_cost") or {}
    return {
        "model": evaluation.label,
        "recall": {str(k): evaluation.recall[k] for k in KS},
        "interval": {str(k): list(figures.recall_interval[k]) for k in KS},
        "dim": figures.dim,
        "map_kb_per_photo": None if figures.dim is None else 4 * figures.dim / 1000,
        "image_size": list((subject.get("preprocessing") or {}).get("image_size", ())),
        "rerank_ms_per_query": rerank.get("cpu_ms_per_query"),
        "licence": _licence(subject),
    }


def _licence(subject: Mapping[str, Any]) -> str:
    """The licence of the weights, else of the data that the model was trained on, as the card of the model says."""
    card = subject
    folder = Path(str(subject.get("folder") or ""))
    manifest = folder / artifacts.MANIFEST
    if subject.get("folder") and manifest.is_file():
        same = artifacts.read_json(manifest).get("fingerprint") == subject.get("fingerprint")
        card = artifacts.read_json(folder / "card.json") if same and (folder / "card.json").is_file() else subject
    data = card.get("data")
    of_data = f"data: {data['licence']}" if isinstance(data, Mapping) and data.get("licence") else ""
    return str(card.get("licence") or of_data)


def protocol_rows(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of one protocol, for people."""
    shown = []
    for place, row in enumerate(board["rows"], 1):
        cells: dict[str, Any] = {"": place, "model": row["model"]}
        for k in KS:
            low, high = row["interval"][str(k)]
            cells[name_of(f"recall@{k}").heading] = f"{row['recall'][str(k)]:.1f} [{low:.1f}, {high:.1f}]"
        cells |= {
            "dimensions": _cell(row["dim"], "d"),
            "kB per map photo": _cell(row["map_kb_per_photo"], ".1f"),
            "image": "×".join(map(str, row["image_size"])),
            "re-rank ms per query": _cell(row["rerank_ms_per_query"], ".1f"),
            "licence": row["licence"] or "–",
        }
        shown.append(cells)
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


def write_leaderboard(path: Path, standings: Mapping[str, Any], title: str = "Leaderboard") -> None:
    """The page: a table for each protocol."""
    parts = [
        Section(
            board["benchmark"],
            NOTE.format(heading(board)) + html_table(protocol_rows(board), f"board{i}", best=BEST_RECALL),
        )
        for i, board in enumerate(standings["boards"])
    ]
    lead = "<p>In brackets: 95 % intervals.</p>"
    write_page(path, title, lead, parts, navigation=len(parts) > 1)
