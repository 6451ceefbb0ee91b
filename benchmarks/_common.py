"""What the benchmarks share: CPU seconds, a table on stdout, a result file beside it."""

from __future__ import annotations

import json
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PRODUCT_SIDE = 2048
PRODUCT_OPERATIONS = 2 * _PRODUCT_SIDE**3
"""Multiplications and additions of one `matrix_product`, which takes a fifth of a second on one core."""


def cpu_seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least CPU time of `repeats` calls, after one that is not counted."""
    work()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def versus(
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    rounds: int = 3,
    apart: Apart | None = None,
    product: Callable[[], Any] | None = None,
) -> dict[str, float]:
    """CPU seconds of both sides, and how many times faster ours is.

    Each of `rounds` rounds measures both in turn, after a first round that is not counted. The ratio is the median over
    rounds, with its minimum and maximum; `system_share` is the share of our time that is spent in the kernel.
    apart: the peer in a process without covis, measured in the same rounds.
    product: the work of `matrix_product`, measured in the same rounds; `ours_product_GFLOP` and `peer_product_GFLOP`
    are what it would have computed in the time of each side.
    """
    ours(), peer(), apart and apart.spent(), product and product()
    rows = [
        (*seconds(ours), seconds(product)[0] if product else 0.0, seconds(peer)[0], apart.spent() if apart else 0.0)
        for _ in range(rounds)
    ]
    mine, systems, products, theirs, alone = map(list, zip(*rows, strict=True))
    figures = {"ours_s": statistics.median(mine), "peer_s": statistics.median(theirs), **_ratio(theirs, mine)}
    figures |= {"system_share": statistics.median(s / m for s, m in zip(systems, mine, strict=True)), "rounds": rounds}
    if product:
        for name, spent in (("ours", mine), ("peer", theirs)):
            times = statistics.median(s / p for s, p in zip(spent, products, strict=True))
            figures[f"{name}_product_GFLOP"] = times * PRODUCT_OPERATIONS / 1e9
    return figures if not apart else figures | _ratio(alone, mine, " without covis")


def _ratio(theirs: list[float], ours: list[float], what: str = "") -> dict[str, float]:
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    return {f"ratio{what}": statistics.median(ratios), f"low{what}": min(ratios), f"high{what}": max(ratios)}


class Apart:
    """A peer as a program without covis runs it: in its own process, with the C library's default memory allocation.

    `maker` is a function of a benchmark that takes strings and returns the work.
    """

    def __init__(self, maker: Callable[..., Callable[[], Any]], *arguments: str) -> None:
        name = Path(maker.__code__.co_filename).stem
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("apart.py")), name, maker.__name__, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(60)

    def spent(self) -> float:
        """CPU seconds of a call."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        print(file=to, flush=True)
        return float(back.readline())


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of a call, finished children included, and the part of them spent in the kernel."""
    before = _used()
    work()
    user, system = (b - a for a, b in zip(before, _used(), strict=True))
    return max(user + system, 1e-9), system


def _used() -> tuple[float, float]:
    """CPU seconds so far, in the program and in the kernel, of this process and its finished children."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime for one in both), sum(one.ru_stime for one in both)


def peak_mb() -> float:
    """Peak memory of this program; the figure of getrusage would include the process that started it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def matrix_product() -> Callable[[], Any]:
    """A matrix product in single precision (`PRODUCT_OPERATIONS`): no network on this machine can compute faster."""
    import torch

    matrix = torch.rand(_PRODUCT_SIDE, _PRODUCT_SIDE)
    return lambda: matrix @ matrix


def operations(work: Callable[[], Any]) -> int:
    """Multiplications and additions of a call's convolutions and matrix products, computed directly."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def command() -> str:
    """How this benchmark was started, from the top of the repository, without paths of this machine."""
    script = Path(sys.argv[0])
    start = f"-m evidence.{script.stem}" if script.parent.name == "evidence" else f"benchmarks/{script.name}"
    return " ".join(["python", start, *map(_portable, sys.argv[1:])])


def _portable(argument: str) -> str:
    """An argument with absolute paths made relative to the repository, or cut to their last part outside it."""
    top = RESULTS.parents[1].resolve()

    def shortened(match: re.Match[str]) -> str:
        path = Path(match[0])
        if path.is_relative_to(top):
            return str(path.relative_to(top))
        return (
            str(Path("..", path.relative_to(top.parent))) if path.is_relative_to(top.parent / "shared") else path.name
        )

    return re.sub(r"(?<![\w.])/[^\s=+,:]+", shortened, argument)


def report(
    topic: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any] | None = None, results: Path | None = None
) -> None:
    """Prints rows as a table and writes them to results/<topic>.json, or into another folder."""
    from covis.core.artifacts import versions

    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_text(row.get(n, "")) for n in names] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(names))]
    for line in cells:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())
    folder = results or RESULTS
    folder.mkdir(exist_ok=True)
    header = {
        "topic": topic,
        "machine": platform.processor() or platform.machine(),
        "versions": versions(),
        "command": command(),
    }
    text = json.dumps({**header, **(facts or {}), "rows": list(rows)}, indent=2, ensure_ascii=False)
    (folder / f"{topic}.json").write_text(text + "\n", encoding="utf-8")


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
