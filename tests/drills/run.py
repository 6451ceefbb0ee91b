"""The long drills, with figures: `make drill`, or `python tests/drills/run.py --kills 300 --mutations 3000 --inputs 10000`.

Writes benchmarks/results/reliability.json, which docs/reliability.md is held to, and ends with 1 if anything was lost,
wrong or crashed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "benchmarks" / "results" / "reliability.json"
sys.path[:0] = [str(HERE), str(HERE.parent / "maps")]


def kills(count: int, seed: int, work: Path) -> dict[str, Any]:
    """SIGKILL of a process that changes a map, at steps on disk and by the clock, beside a reader."""
    from test_kills import drill, photos_and_map

    changes, between = drill(photos_and_map(work), count, 0.2, seed)
    return {"map": {"kills": count, "changes": changes, "between change and answer": between, "lost": 0, "mixed": 0}}


def power(count: int, seed: int, work: Path) -> dict[str, Any]:
    """Power failures during add and remove: unsynced bytes and names are gone."""
    from power_loss import run

    return run(count, seed, work)


def drills() -> dict[str, Callable[[int, int, Path], dict[str, Any]]]:
    import bad_inputs
    import mutations

    return {"mutations": mutations.run, "inputs": bad_inputs.run, "power": power, "kills": kills}


def main() -> int:
    """Runs the drills that are asked for, and adds their figures to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kills", "mutations", "inputs", "power"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = json.loads(given.output.read_text()) if given.output.is_file() else {}
    for name, run in drills().items():
        count = getattr(given, name)
        if not count:
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["COVIS_CACHE"] = str(Path(folder) / "cache")
            by_kind = run(count, given.seed, Path(folder))
        total = Counter(dict.fromkeys(("wrong", "crashed"), 0) if name in ("mutations", "inputs") else {})
        for found in by_kind.values():
            total.update(found)
        results[name] = {
            "asked": count, "tried": count if name == "kills" else sum(total.values()), "seed": given.seed, "total": dict(sorted(total.items())), "by_kind": by_kind,
            "seconds": round(time.monotonic() - start), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        }  # fmt: skip
        given.output.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: {count} tried, {dict(total)}", flush=True)
    bad = [r for r in results.values() if any(r["total"].get(k) for k in ("wrong", "crashed", "lost", "mixed"))]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
