"""Damage of every kind of artefact and cache: it is refused, or it changes no answer."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from outcomes import Outcome, asked, silent

Ask = Callable[[Path], str]


@dataclass(frozen=True)
class Subject:
    """An artefact, and a question whose answer its damage must not change."""

    name: str
    folder: Path
    ask: Ask


def digest(*arrays) -> str:
    """A short name for the content of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def mutate(content: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """`content` with one kind of damage."""
    data = bytearray(content)
    at = int(rng.integers(0, max(1, len(data))))
    if kind == "cut":
        return bytes(data[:at])
    if kind == "longer":
        return bytes(data) + rng.bytes(int(rng.integers(1, 64)))
    if kind == "empty" or not data:
        return b""
    if kind == "bit":
        data[at] ^= 1 << int(rng.integers(0, 8))
    elif kind == "digit":
        digits = [i for i, c in enumerate(data[:200_000]) if 48 <= c <= 57]
        at = digits[int(rng.integers(0, len(digits)))] if digits else at
        data[at] = 48 + (data[at] - 48 + 1) % 10 if digits else data[at] ^ 1
    elif kind == "block":
        data[at : at + 64] = rng.bytes(len(data[at : at + 64]))
    elif kind == "zeros":
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    elif kind == "swap" and len(data) > 400:
        one, other = (int(rng.integers(128, len(data) - 128)) for _ in range(2))
        data[one : one + 64], data[other : other + 64] = data[other : other + 64], data[one : one + 64]
    return bytes(data)


KINDS = ("bit", "bit", "bit", "digit", "block", "zeros", "swap", "cut", "longer", "empty", "gone")


def drill(subject: Subject, count: int, seed: int, work: Path) -> Counter[str]:
    """Damages a copy `count` times, one file at a time, and counts what became of it."""
    rng = np.random.default_rng((seed, len(subject.name)))
    copy = work / subject.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(subject.folder, copy, symlinks=True)
    files = sorted(p for p in copy.rglob("*") if p.is_file() and p.name not in (".lock", "rejects.csv"))
    with silent():
        truth = subject.ask(copy)
    found: Counter[str] = Counter()
    for i in range(count):
        file = files[i % len(files)]
        kind = KINDS[int(rng.integers(0, len(KINDS)))]
        whole = file.read_bytes()
        damaged = mutate(whole, kind, rng)
        if kind == "gone":
            file.unlink()
        elif damaged == whole:
            found["same"] += 1
            continue
        else:
            file.write_bytes(damaged)
        outcome = asked(lambda: subject.ask(copy), truth)
        found[outcome.kind] += 1
        if outcome.kind in Outcome.BAD:
            print(
                f"{outcome.kind}: {subject.name} {file.relative_to(copy)} {kind} seed {seed} number {i}: {outcome.line}"
            )
        shutil.rmtree(copy) if not file.parent.is_dir() else None
        file.write_bytes(whole)
    return found


# What is damaged


def subjects(work: Path, only: Collection[str] = ()) -> list[Subject]:
    """One artefact of each kind, small; `only` those, if any are named."""
    import artefacts

    made = artefacts.make(work, only)
    return [
        Subject(name, folder, getattr(artefacts, f"ask_{name.replace('-', '_')}")(work))
        for name, folder in made.items()
    ]


def run(count: int, seed: int, work: Path, only: Collection[str] = ()) -> dict[str, dict[str, int]]:
    """`count` mutations over all subjects; their outcomes by subject."""
    made = subjects(work, only)
    weights = {s.name: SHARES.get(s.name, 1.0) for s in made}
    share = count / sum(weights.values())
    return {
        s.name: dict(sorted(drill(s, math.ceil(share * weights[s.name]), seed, work / "copies").items())) for s in made
    }


SHARES = {"onnx-cache": 0.1, "town": 0.2, "training": 0.2, "carried": 0.5}
"""Subjects that take long: exported, rendered or trained again, which takes seconds."""


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), Path(folder), sys.argv[3:]), indent=1))
