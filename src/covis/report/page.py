"""A self-contained HTML page that loads nothing from elsewhere; the tables of a report and of a leaderboard.

A leaderboard's times and memory are measured when it is made, one model after another on this machine, for models that
are still where they were evaluated; figures of two machines are never mixed.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from covis.core import artifacts
from covis.core.errors import InputError
from covis.core.files import write_text
from covis.core.tables import TableRow, aligned, best_row, csv_table, is_numeric, latex_table, markdown_table
from covis.evaluation import Evaluation
from covis.evaluation.compare import compare
from covis.evaluation.published import SOURCE, beside
from covis.evaluation.render import BEST_RECALL, NAMES, PLUS_MINUS, name_of, over_seeds, seeds
from covis.evaluation.render import COMPARED_KS as KS
from covis.reading.decoding import decode

EvaluationGroups = Mapping[str, Sequence[Evaluation]]
"""Evaluations by name; those under one name are seeds of one configuration."""
Runs = Mapping[str, Sequence[Path]]
"""Folders of `covis train` by name."""
Models = Mapping[str, Path]
"""Model folders by name."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; `data` is what the page's script finds under its name."""

    title: str
    body: str
    """HTML, escaped already."""
    name: str = ""
    data: Any = None

    @property
    def html(self) -> Markup:
        """The body, marked as escaped for templates."""
        return Markup(self.body)


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader("covis.report"), autoescape=True, undefined=StrictUndefined)


def rendered(template: str, **values: Any) -> str:
    """A template of this package, filled in; values that are not `Markup` are escaped."""
    return cast(str, Markup(_templates().get_template(template).render(**values)))


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section], navigation: bool = False) -> None:
    """Writes the page, with a list of its sections if `navigation`; readers never see a half-written page."""
    data = {s.name: s.data for s in sections if s.data is not None}
    # A tag or the start of a comment inside a string would change where the script element ends.
    script = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = rendered(
        "page.html",
        title=title,
        lead=Markup(lead),
        sections=sections,
        navigation=navigation,
        data=script,
        style=_asset("report.css"),
        script=_asset("report.js"),
    )
    write_text(path, page)


def html_table(rows: Sequence[TableRow], name: str, best: Mapping[str, bool] | None = None) -> str:
    """Rows of equal keys as a table that can be copied as Markdown, LaTeX or CSV.

    best: columns whose best cell is bold → whether lower is better.
    """
    if not rows:
        return cast(str, Markup("<p>none</p>"))
    head = list(rows[0])
    right = {key for key in head if is_numeric(rows, key)}
    bold = {(best_row(rows, key, lower), key) for key, lower in (best or {}).items() if key in head}
    cells = [[Cell(str(row[key]), key in right, (i, key) in bold) for key in head] for i, row in enumerate(rows)]
    copies = {"Markdown": markdown_table(rows), "LaTeX": latex_table(rows, best), "CSV": csv_table(rows)}
    headings = [Cell(key, key in right) for key in head]
    return rendered("table.html", name=name, head=headings, rows=cells, copies=copies)


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    number: bool = False
    best: bool = False


def figures_row(drawings: Sequence[str]) -> str:
    """Drawings side by side where the page is wide enough."""
    drawn = Markup("").join(figure(svg) for svg in drawings)
    return cast(str, Markup('<div class="figures">{}</div>').format(drawn))


def data_thumbnail(file: Path, pixels: int) -> str:
    """A photo as a data URL of a JPEG with a longer side of at most `pixels`; raises `Reject` as decoding does."""
    from PIL import Image

    picture = Image.fromarray(decode(file))
    picture.thumbnail((pixels, pixels))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=75)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def figure(svg: str, caption: str = "") -> str:
    """A drawing with its caption."""
    return rendered("figure.html", drawing=Markup(svg), caption=caption)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


# Tables: figures with intervals and tests, and what models cost


NOTE = Markup('<p class="note">{}</p>')
"""A remark of the page; `format` escapes what it is given."""
BEST_ON_BOARD = BEST_RECALL | {"ms per photo": True}
"""Columns of a leaderboard whose best is bold → whether lower is better."""
TIMED = range(5, 50)
"""How many times one photo is timed (least, most), after one untimed run; the quickest counts."""
_TIMED_S = 5.0
"""After the least number of runs, timing ends once they took this long."""
_AGREED, _AGREED_TIMES = 1.1, 3
"""It also ends once `_AGREED_TIMES` runs are within this factor of the quickest, not after a fixed few: on a busy
machine the first ones may all have waited for a core."""


@dataclass(frozen=True)
class DescribingCost:
    """What describing a photo takes, without decoding it."""

    ms_per_photo: float
    """Wall time of the network, one photo at a time, on as many cores as torch uses."""
    parameters_m: float | None
    """None for an ONNX file, which does not say."""
    model_mb: float


def model_cost(path: Path) -> DescribingCost:
    """The cost of the model in a folder, or of an ONNX file."""
    import torch

    from covis.describing.describers import open_model
    from covis.models import PlaceModel

    model = open_model(path).eval()
    pixels = torch.zeros((1, 3, *model.preprocessing.image_size), dtype=torch.uint8)
    with torch.inference_mode():
        least_ms = 1000 * quickest(lambda: model(model.normalise(pixels)))
    if not isinstance(model, PlaceModel):
        return DescribingCost(least_ms, None, model.path.stat().st_size / 1e6)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    return DescribingCost(least_ms, sum(p.numel() for p in model.parameters()) / 1e6, size / 1e6)


def quickest(work: Callable[[], object]) -> float:
    """The least seconds of several calls, after one that is not counted; repeated until some of them agree."""
    work()
    taken: list[float] = []
    while len(taken) < TIMED.start or (
        len(taken) < TIMED.stop and sum(taken) < _TIMED_S and sorted(taken)[_AGREED_TIMES - 1] > _AGREED * min(taken)
    ):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


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
    path = _model_path(subject)
    cost = None
    if path is not None and timed:
        key = f"{subject['fingerprint']} {'onnx' if path.is_file() else 'torch'}"
        if key not in costs:
            costs[key] = model_cost(path)
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
        "licence": _licence(subject, path),
    }


def _model_path(subject: Mapping[str, Any]) -> Path | None:
    """The model's folder or ONNX file, if it is still there and still the model that was evaluated."""
    from covis.describing.describers import open_model

    path = Path(str(subject.get("folder") or ""))
    record = path / artifacts.MANIFEST
    if not subject.get("folder"):
        return None
    if record.is_file():
        fingerprint = artifacts.read_json(record).get("fingerprint")
    else:
        try:
            fingerprint = open_model(path).fingerprint()
        except InputError:  # moved away, or another file since
            return None
    return path if fingerprint == subject.get("fingerprint") else None


def _licence(subject: Mapping[str, Any], path: Path | None) -> str:
    """The licence of the weights, else of the data that the model was trained on, as its card says."""
    card = artifacts.read_json(path / "card.json") if path is not None and path.is_dir() else subject
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
        cost = row["cost"] or {}
        cells |= {
            "dims": _cell(row["dim"], "d"),
            "kB per map photo": _cell(row["map_kb_per_photo"], ".1f"),
            "image": "×".join(map(str, row["image_size"])),
            "ms per photo": _cell(cost.get("ms_per_photo"), ".1f"),
            "re-rank ms per query": _cell(row["rerank_ms_per_query"], ".1f"),
            "parameters (M)": _cell(cost.get("parameters_m"), ".1f"),
            "model (MB)": _cell(cost.get("model_mb"), ".1f"),
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
            NOTE.format(heading(board)) + html_table(protocol_rows(board), f"board{i}", best=BEST_ON_BOARD),
        )
        for i, board in enumerate(standings["boards"])
    ]
    lead = "<p>In brackets: 95 % intervals. Times are of this machine, one photo at a time, without decoding.</p>"
    write_page(path, title, lead, parts, navigation=len(parts) > 1)


# Tables of a report
def recall_table(evaluations: EvaluationGroups, drawings: list[str]) -> Section:
    """Recall@k with its interval or spread over runs, tested against the first name; curves below."""
    tests = _tests(evaluations)
    rows = []
    for name, group in evaluations.items():
        row: dict[str, Any] = {"model": name, "seeds": seeds(group), "dims": group[0].figures.dim or ""}
        for k in KS:
            value = over_seeds([e.recall[k] for e in group])
            row[name_of(f"recall@{k}").heading] = value + _interval(group[0], k, len(group))
        rows.append(row | tests.get(name, {}))
    notes = [f"{PLUS_MINUS}; bands are the range over seeds"] if _repeated(evaluations) else []
    notes += [f"in brackets: {group[0].figures['interval']}" for group in list(evaluations.values())[:1]]
    notes += ["* significant at 5 % (paired test, Holm over the models)"] if tests else []
    note = NOTE.format("; ".join(notes))
    return Section(
        "Recall",
        html_table(rows, "recall", best=BEST_RECALL) + note + figures_row(drawings),
        "recall",
    )


def _interval(evaluation: Evaluation, k: int, runs: int) -> str:
    return "" if runs > 1 else " [{:.1f}, {:.1f}]".format(*evaluation.figures.recall_interval[k])


def _repeated(evaluations: EvaluationGroups) -> bool:
    return any(len(group) > 1 for group in evaluations.values())


def _tests(evaluations: EvaluationGroups) -> dict[str, dict[str, str]]:
    """Cells with the difference of each name to the first; empty unless each name has one evaluation."""
    if len(evaluations) < 2 or _repeated(evaluations):
        return {}
    names = list(evaluations)
    [compared] = compare([group[0] for group in evaluations.values()])["comparisons"]
    column = f"Δ Recall@{KS[0]} against {names[0]}"
    cells = {names[0]: {column: ""}}
    for name, row in zip(names[1:], compared["rows"][1:], strict=True):
        test = row["against_first"][str(KS[0])]
        mark = "*" if test["significant"] else ""
        cells[name] = {column: f"{test['difference']:+.1f} (p = {test['p_value']:.2g}){mark}"}
    return cells


def further(evaluations: EvaluationGroups) -> Section:
    """Every other figure: of rankings, of poses, of accepted matches, of graded similarity."""
    rows: list[dict[str, Any]] = []
    for name, group in evaluations.items():
        columns: dict[str, Callable[[Evaluation], Any]] = {f"map@{k}": _map(k) for k in KS}
        columns |= {key: _plain(key) for key in NAMES}
        columns |= {f"localised@{limit}": _within(limit) for limit in group[0].figures.localised}
        values = {key: [read(e) for e in group] for key, read in columns.items()}
        cells = {name_of(key).heading: over_seeds(v, name_of(key).digits) for key, v in values.items() if None not in v}
        rows.append({"model": name, **cells})
    best = {name.heading: name.lower_is_better for name in NAMES.values()}
    return Section("Other metrics", html_table(aligned(rows), "figures", best=best), "figures")


def _map(k: int) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.mean_average_precision.get(k)


def _plain(key: str) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.single(key)


def _within(limit: str) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.localised.get(limit)


def parts(evaluations: EvaluationGroups) -> Section | None:
    """Figures by condition, city or surroundings, one table per label."""
    first = next(iter(evaluations.values()))[0].figures.breakdown
    if not first:
        return None
    body = "".join(html_table(_part_rows(evaluations, label), f"parts-{label}") for label in first)
    return Section(f"By {' and '.join(first)}", body, "parts")


def _part_rows(evaluations: EvaluationGroups, label: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part in next(iter(evaluations.values()))[0].figures.breakdown[label]:
        for name, group in evaluations.items():
            entries = [e.figures.breakdown[label][part] for e in group]
            row: dict[str, Any] = {label: part or "(unknown)", "queries": entries[0].queries, "model": name}
            row |= {
                name_of(f"recall@{k}").heading: over_seeds([entry.recall[k] for entry in entries])
                for k in entries[0].recall
                if k in KS
            }
            row |= {
                name_of(f"localised@{limit}").heading: over_seeds([entry.localised[limit] for entry in entries])
                for limit in entries[0].localised
            }
            rows.append(row)
    return aligned(rows)


def published_table(evaluations: EvaluationGroups) -> Section | None:
    """The method's published figures beside ours, where the protocol is the same: one row per published method."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    caveats: list[str] = []
    for name, group in evaluations.items():
        for entry in beside(group[0]):
            facts = {"ours": name, "published": entry["method"], "of": entry["part"] or "all", **_made(entry)}
            row = rows.setdefault(tuple(facts.values()), facts)
            cell = f"{entry['published']:g} → {entry['ours']:.1f} ({entry['difference']:+.1f})"
            row[_FIGURE.get(entry["figure"].partition("@")[0], "") + entry["figure"].partition("@")[2]] = cell
            caveats += [c for c in entry["caveats"] if c not in caveats]
    if not rows:
        return None
    body = html_table(aligned(list(rows.values())), "published")
    notes = Markup("").join(Markup("<li>{}</li>").format(c) for c in caveats)
    lead = NOTE.format(f"published → ours (difference), percent; {SOURCE}")
    note = Markup('<ul class="note">{}</ul>').format(notes)
    return Section("Published, ours, difference", lead + body + note, "published")


_FIGURE = {"recall": "Recall@", "localised": "within ", "average_precision": "average precision"}


def _made(entry: Mapping[str, Any]) -> dict[str, Any]:
    whitened = {None: "", True: "whitened", False: "plain"}[entry["whitened"]]
    return {"dims": entry["dim"] or "", "made": whitened, "source": entry["source"]}
