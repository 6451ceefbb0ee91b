"""What the benchmarks share: CPU seconds, a table on stdout, a result file beside it."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def cpu_seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least CPU time of `repeats` calls, after one that is not counted."""
    work()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def report(topic: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any] | None = None) -> None:
    """Prints rows as a table and writes them to results/<topic>.json."""
    from covis.artifacts import versions

    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_text(row.get(n, "")) for n in names] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(names))]
    for line in cells:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())
    RESULTS.mkdir(exist_ok=True)
    told = {"topic": topic, "machine": platform.processor() or platform.machine(), "versions": versions()}
    text = json.dumps({**told, **(facts or {}), "rows": list(rows)}, indent=2, ensure_ascii=False)
    (RESULTS / f"{topic}.json").write_text(text + "\n", encoding="utf-8")


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
