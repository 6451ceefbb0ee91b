"""The long drills, with figures: `make drill`, or `python tests/drills/run.py --kills 100 --points 200 --mutations 3000`.

Adds to benchmarks/results/reliability.json, which docs/reliability.md is held to (a drill's figures are the sum of its
runs, each with its seed; `--anew` forgets the earlier ones), and ends with 1 if anything was lost, wrong or crashed.
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
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "maps"), str(HERE.parent / "service")]


def kills(count: int, seed: int, work: Path) -> dict[str, Any]:
    """SIGKILL of a process that changes a map, at steps on disk and by the clock, beside a reader."""
    from test_kills import drill, photos_and_map

    changes, between = drill(photos_and_map(work), count, 0.2, seed)
    return {"map": {"kills": count, "changes": changes, "between change and answer": between, "lost": 0, "mixed": 0}}


def points(count: int, seed: int, work: Path) -> dict[str, Any]:
    """SIGKILL at steps on disk of index, add and remove; the same call then finishes."""
    from killing import map_kills

    return map_kills(count, seed, work)


def imports(count: int, seed: int, work: Path) -> dict[str, Any]:
    """SIGKILL at steps on disk of `map import`; the same command then finishes."""
    from killing import import_kills

    return import_kills(count, seed, work)


def engine(count: int, seed: int, work: Path) -> dict[str, Any]:
    """SIGKILL of the process that holds Milvus Lite, at steps of load, upsert and delete."""
    from killing import map_kills

    return map_kills(count, seed, work, "milvus")


def postgres(count: int, seed: int, work: Path) -> dict[str, Any]:
    """SIGKILL of PostgreSQL itself and of its client, at steps of load, upsert and delete."""
    from killing import postgres_kills

    return postgres_kills(count, seed, work)


def ranks(count: int, seed: int, work: Path) -> dict[str, Any]:
    """SIGKILL of one of two ranks, while they train and while they embed."""
    from killing import rank_kills

    trained = rank_kills(count // 2, seed, work / "training", "training", hamlet(work))
    return trained | rank_kills(count - count // 2, seed, work / "embedding", "embedding")


def torchrun(count: int, seed: int, work: Path) -> dict[str, Any]:
    """The same under the real launcher."""
    from killing import launcher_kills

    trained = launcher_kills(count // 2, seed, work / "training", "training", hamlet(work))
    return trained | launcher_kills(count - count // 2, seed, work / "embedding", "embedding")


def hamlet(work: Path) -> Path:
    """A small town to train on."""
    from covis.town.config import TownConfig
    from covis.town.dataset import load

    for split in ("train", "val", "test"):
        load(work / "hamlet", split, TownConfig.small())
    return work / "hamlet"


def power(count: int, seed: int, work: Path) -> dict[str, Any]:
    """Power failures during add and remove: unsynced bytes and names are gone."""
    from power_loss import run

    return run(count, seed, work)


def services(count: int, seed: int, work: Path) -> dict[str, Any]:
    """Services that are killed, engines that die under them, and a map of many photos."""
    from services import run

    return run(count, seed, work)


def drills() -> dict[str, Callable[[int, int, Path], dict[str, Any]]]:
    import bad_inputs
    import mutations

    killed = {
        "kills": kills,
        "points": points,
        "imports": imports,
        "engine": engine,
        "postgres": postgres,
        "ranks": ranks,
    }
    killed["torchrun"] = torchrun
    damaged = {"mutations": mutations.run, "inputs": bad_inputs.run, "sources": bad_inputs.run_sources}
    return {**damaged, "power": power, "services": services, **killed}


def main() -> int:
    """Runs the drills that are asked for, and adds their figures to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in NAMES:
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = _results(given.output)
    for name, run in drills().items():
        count = getattr(given, name)
        if not count:
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["COVIS_CACHE"] = str(Path(folder) / "cache")
            by_kind = run(count, given.seed, Path(folder))
        found = {
            "command": f"--{name} {count} --seed {given.seed}", "by_kind": by_kind,
            "seconds": round(time.monotonic() - start), "peak_mb": _peak_mb(),
        }  # fmt: skip
        results = _results(given.output)  # another drill may have written meanwhile
        results[name] = [*([] if given.anew else results.get(name, ())), found]
        given.output.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: {count} asked, {dict(total(name, [found]))}", flush=True)
    bad = [name for name, runs in results.items() if any(total(name, runs)[kind] for kind in BAD)]
    return 1 if bad else 0


def _results(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.is_file() else {}


BAD = ("wrong", "crashed", "hung", "lost", "mixed")
NAMES = (
    "kills",
    "points",
    "imports",
    "engine",
    "postgres",
    "ranks",
    "torchrun",
    "mutations",
    "inputs",
    "sources",
    "power",
    "services",
)


def total(name: str, runs: list[dict[str, Any]]) -> Counter[str]:
    """The sum of the figures of runs of one drill."""
    summed = Counter(dict.fromkeys(BAD[:3] if name in ("mutations", "inputs", "sources") else (), 0))
    for found in runs:
        for figures in found["by_kind"].values():
            summed.update(figures)
    return summed


def _peak_mb() -> int:
    """The most memory that this process or one of its children held."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) >> 10


if __name__ == "__main__":
    sys.exit(main())
