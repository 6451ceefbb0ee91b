"""A learned whitening of a million descriptors on disk: CPU time and peak memory.

Images stand along the streets of a city, in drives of forty, one every two metres of street. Descriptors are smooth
functions of place and direction, plus a part for the light of a drive and one for the single image, in half precision.
Labels are ψ of 25 m, squared, between different drives. Each step runs in a process of its own: making the labels, PCA
whitening, and learned whitening.

    python benchmarks/bench_whitening.py [--rows N] [--dims D] [--folder DIR]; needs 2 GB of disk for a while
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import peak_mb, report

DIM, DRIVE, BLOCK = 128, 40, 50_000


def city(rows: int) -> Any:
    """Images along streets, in drives."""
    from bench_labels import images, streets

    xy, heading = streets(rows, np.random.default_rng(0))
    along = np.lexsort((xy[:, 1], np.round(xy[:, 0] / 100), np.round(heading / 90) % 4))
    drives = np.arange(rows) // DRIVE
    shuffled = along.reshape(-1, DRIVE, 4).transpose(0, 2, 1).reshape(-1)  # four drives share each stretch of street
    return images(xy[shuffled], heading[shuffled], drives.astype("S9"))


def make(folder: Path, rows: int, dims: int) -> str:
    """Descriptors in a .npy file, and weights of labelled pairs."""
    from covis.evaluation.whitening_fits import PHOTO_VIEWS
    from covis.whitening import pair_weights

    images = city(rows)
    pairs = pair_weights(PHOTO_VIEWS(images, images), images.group, 2.0)
    np.savez(folder / "pairs.npz", **vars(pairs))
    rng = np.random.default_rng(1)
    turns = np.deg2rad(images.poses.heading)
    state = np.column_stack([images.poses.xy / 40.0, 2 * np.cos(turns), 2 * np.sin(turns)])
    waves, shift = rng.normal(size=(4, dims)), rng.uniform(0, 2 * np.pi, dims)
    light = rng.normal(size=(int(images.group.max()) + 1, 16)) @ rng.normal(size=(16, dims)) / 4
    store = np.lib.format.open_memmap(folder / "descriptors.npy", "w+", np.float16, (rows, dims))
    for start in range(0, rows, BLOCK):
        part = slice(start, min(start + BLOCK, rows))
        raw = np.cos(state[part] @ waves + shift) + light[images.group[part]]
        raw += rng.normal(scale=0.5, size=raw.shape)
        store[part] = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    store.flush()
    return f"{rows:,} × {dims} descriptors, {pairs.pairs:,} labelled pairs"


def fit(folder: Path, labels: str) -> str:
    """Fits one whitening to the descriptors on disk."""
    from covis.whitening import PairWeights, Whitening, WhiteningRule

    rows = np.load(folder / "descriptors.npy", mmap_mode="r")
    kept = np.load(folder / "pairs.npz")
    pairs = PairWeights(kept["rows"], kept["columns"], kept["values"], int(kept["count"])) if labels != "none" else None
    whitening = Whitening.fit(rows, DIM, WhiteningRule(labels), pairs=pairs)  # type: ignore[arg-type]
    whitening.save(folder / f"{labels}.safetensors")
    return f"{rows.shape[1]} → {whitening.dim}"


STEPS: dict[str, Callable[[Path, int, int], str]] = {
    "make descriptors and labels": make,
    "PCA whitening": lambda folder, *_: fit(folder, "none"),
    "learned whitening": lambda folder, *_: fit(folder, "graded"),
}


def child(step: str, folder: Path, rows: int, dims: int) -> None:
    """Runs one step and prints what it cost."""
    import covis.evaluation.retrieval  # noqa: F401 what a program holds before it starts

    before, started = peak_mb(), time.process_time()
    did = STEPS[step](folder, rows, dims)
    record = {
        "step": step,
        "did": did,
        "cpu_s": time.process_time() - started,
        "before_MB": before,
        "peak_MB": peak_mb(),
    }
    print(json.dumps(record))


def started(step: str, folder: Path, given: argparse.Namespace) -> subprocess.Popen[str]:
    line = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    line += ["--rows", str(given.rows), "--dims", str(given.dims)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def measured(step: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """What a step cost in a process of its own."""
    out, _ = started(step, folder, given).communicate()
    row: dict[str, Any] = json.loads(out.splitlines()[-1])
    print(f"… {step}: {row['cpu_s']:.1f} CPU s, {row['peak_MB']:.0f} MB, {row['did']}", file=sys.stderr)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="where descriptors lie; a temporary folder unless given")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rows % (4 * DRIVE):
        parser.error(f"--rows is a multiple of {4 * DRIVE}: four drives of {DRIVE} images share each stretch of street")
    if given.step:
        child(given.step, given.folder, given.rows, given.dims)
        return
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="covis-whitening-")))
        folder.mkdir(parents=True, exist_ok=True)
        rows = [measured(step, folder, given) for step in STEPS]
        facts = {
            "descriptors_MB": (folder / "descriptors.npy").stat().st_size / 1e6,
            "pairs_MB": (folder / "pairs.npz").stat().st_size / 1e6,
        }
    report("whitening", rows, facts)


if __name__ == "__main__":
    main()
