"""Decoding every file of a dataset, in several processes, resumable: which are bad, and which are the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.artifacts import fingerprint
from covis.datasets.parallel import in_processes
from covis.datasets.screening import Rejected, look
from covis.decoding import Reject, decode_bytes, read
from covis.progress import Meter, say

JOURNAL, DIGESTS = "progress.jsonl", "digests.npy"
PIECE = 512


@dataclass(frozen=True, eq=False)
class Verified:
    """What was found in each file."""

    rejects: list[Rejected]
    bad: NDArray[np.bool_]
    """(N,) which names are among the rejects."""
    digests: NDArray[np.uint64]
    """(N,) equal for files of equal content; 0 where a file could not be read or was not."""
    notes: Counter[str]
    """How often a decoder had to convert, rescale or turn an image."""


def verify(root: Path, names: NDArray[np.bytes_], out: Path, *, quick: bool, workers: int) -> Verified:
    """Checks the files `names` below `root`; what is done is kept in `out`, so that the same call goes on from there.

    `quick` looks only at each file's beginning and end.
    """
    done = _journal(out, [fingerprint(names), bool(quick)])
    digests = _digests(out, len(names), fresh=not done)
    todo = ((k, names[k : k + PIECE]) for k in range(0, len(names), PIECE) if k not in done)
    before = sum(min(PIECE, len(names) - k) for k in done)
    if done:
        say(f"going on from {before} of {len(names)} files")
    task = partial(_piece, root, quick)
    with (
        (out / JOURNAL).open("a", encoding="utf-8") as journal,
        Meter("checking", len(names) - before, "images") as meter,
    ):
        for start, hashes, entry in in_processes(task, todo, workers):
            digests[start : start + len(hashes)] = hashes
            digests.flush()
            done[start] = entry
            journal.write(json.dumps({"at": start, **entry}) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
            meter.advance(len(hashes))
    return _verdict(names, done, np.array(digests))


def forget(out: Path) -> None:
    """Removes what was kept for resuming."""
    for name in (JOURNAL, DIGESTS):
        (out / name).unlink(missing_ok=True)


def _verdict(names: NDArray[np.bytes_], done: dict[int, dict[str, Any]], digests: NDArray[np.uint64]) -> Verified:
    rejects, notes = [], Counter[str]()
    bad = np.zeros(len(names), bool)
    for start in sorted(done):
        notes.update(done[start]["notes"])
        for i, reason, detail in done[start]["rejects"]:
            bad[i] = True
            rejects.append(Rejected(os.fsdecode(names[i]), reason, detail))
    return Verified(rejects, bad, digests, notes)


def _journal(out: Path, key: list[Any]) -> dict[int, dict[str, Any]]:
    """The pieces that an earlier run finished; none if it checked another list. A torn last line is left out."""
    path = out / JOURNAL
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if json.loads(lines[0])["key"] != key or not (out / DIGESTS).is_file():
            raise ValueError
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        path.write_text(json.dumps({"key": key}) + "\n", encoding="utf-8")
        return {}
    done = {}
    for line in lines[1:]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        done[entry.pop("at")] = entry
    whole = [lines[0], *(json.dumps({"at": at, **entry}) for at, entry in done.items())]
    path.write_text("\n".join(whole) + "\n", encoding="utf-8")
    return done


def _digests(out: Path, n: int, fresh: bool) -> np.memmap[Any, np.dtype[np.uint64]]:
    path = out / DIGESTS
    if fresh or path.stat().st_size != 8 * n:
        np.zeros(n, np.uint64).tofile(path)
    if not n:
        return np.zeros(0, np.uint64)  # type: ignore[return-value]
    return np.memmap(path, np.uint64, "r+", shape=(n,))


def _piece(
    root: Path, quick: bool, piece: tuple[int, NDArray[np.bytes_]]
) -> tuple[int, NDArray[np.uint64], dict[str, Any]]:
    """One piece of the work, in a worker."""
    start, part = piece
    hashes = np.zeros(len(part), np.uint64)
    rejects: list[tuple[int, str, str]] = []
    notes: Counter[str] = Counter()
    for i, name in enumerate(part):
        path = root / os.fsdecode(name)
        try:
            if quick:
                verdict = look(path)
                if verdict:
                    raise verdict
            else:
                data = read(path)
                hashes[i] = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
                decoded = decode_bytes(data, (32, 32), str(path))  # the smallest scale still reads every bit
                notes.update(decoded.notes)
                notes["turned"] += decoded.orientation != 1
        except Reject as reject:
            rejects.append((start + i, reject.reason, reject.detail))
    return start, hashes, {"rejects": rejects, "notes": dict(+notes)}
