"""The dataset check: what is there, what is missing or damaged, what looks wrong, and the terms of use.

Files are decoded in several processes.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.errors import InputError
from covis.core.machine import cpu_count, in_processes
from covis.core.progress import Meter
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.reading.decoding import REASONS, REJECTS, Reject, Rejected, decode_bytes, read, write_rejects
from covis.reading.screening import look

REPORT = "report.json"
PIECE = 512
"""Files per task of a process."""
_STUCK_MIN = 20
"""A compass is called stuck if all known headings of a group, at least this many, have the same value."""
_MANY_UNKNOWN = 0.2


def check(
    name: str, path: Path | str, out: Path | str, *, quick: bool = False, workers: int | None = None
) -> dict[str, Any]:
    """Examines dataset `name` at `path`; writes `rejects.csv` and `report.json` to `out` and returns the report.

    With `quick`, files are looked at but not decoded.
    """
    dataset, root, folder = DATASETS[name], Path(path), Path(out)
    if not root.exists():
        raise InputError(f"{root} does not exist; check the path")
    findings = Findings()
    splits = _read_splits(dataset, root, findings)
    names = np.unique(np.concatenate([side.names for split in splits.values() for side in split]))
    with artifacts.claim(folder, "check", {"dataset": name, "path": str(root.resolve()), "quick": quick}):
        files = verify(next(iter(splits.values())).queries.root, names, quick=quick, workers=workers or cpu_count())
        report = {"dataset": dataset.name, "path": str(root), "licence": dataset.licence, "quick": quick}
        report |= _report(dataset, splits, names, files, findings)
        report["rejects_file"] = str(folder / REJECTS)
        write_rejects(folder / REJECTS, files.rejects)
        artifacts.write_json(folder / REPORT, report)
    return report


@dataclass
class Findings:
    """What a user should know, in order."""

    rows: list[dict[str, str]] = field(default_factory=list)

    def add(self, level: str, code: str, text: str) -> None:
        """One more, of a level (error, warning, note), with a code for programs."""
        self.rows.append({"level": level, "code": code, "text": text})


def _read_splits(dataset: Dataset, root: Path, findings: Findings) -> dict[str, Split]:
    """Every split that can be read; those that cannot become findings, unless none can."""
    splits: dict[str, Split] = {}
    for split in dataset.splits:
        try:
            splits[split] = dataset.load(root, split)
        except InputError as error:
            findings.add("error", "split-unreadable", f"{split}: {error}")
    if not splits:
        raise InputError(f"no split of {dataset.name} can be read: {findings.rows[0]['text']}")
    return splits


def _report(
    dataset: Dataset, splits: dict[str, Split], names: NDArray[np.bytes_], files: Files, findings: Findings
) -> dict[str, Any]:
    reasons = Counter(r.reason for r in files.rejects)
    reported: set[str] = set()
    facts: dict[str, Any] = {}
    for label, split in splits.items():
        one_set = split.queries is split.database
        facts[label] = {"one_set": one_set}
        for side, images in zip(("queries",) if one_set else ("queries", "database"), split, strict=False):
            odd = Findings() if images.fingerprint() in reported else findings  # as part of an earlier split
            facts[label][side] = _side_facts(images, f"{label}/{side}", odd)
            reported.add(images.fingerprint())
        if not one_set:
            facts[label] |= _pair_facts(dataset, label, split, names, files, findings)
    published = _published_counts(dataset, facts, findings)
    missing = _missing_by_archive(dataset, names, files)
    for group in missing:
        text = f"{group['missing']} of {group['listed']} files of {group['volume']} are missing; get or unpack it"
        findings.add("error", "missing-files", text)
    for reason in reasons.keys() - {"missing"}:
        findings.add("warning", "bad-files", f"{reasons[reason]} files: {reason} ({REASONS[reason]})")
    return {
        "images": len(names), "rejects": dict(sorted(reasons.items())), "notes": dict(sorted(files.notes.items())),
        "missing": missing, "splits": facts, "published": published, "findings": findings.rows,
    }  # fmt: skip


def _side_facts(images: ImageSet, label: str, findings: Findings) -> dict[str, Any]:
    """Counts of one side, and what is odd about its positions and compass."""
    known = ~np.isnan(images.poses.heading)
    facts = {
        "images": len(images),
        "groups": len(np.unique(images.group)),
        "positions": int(images.poses.known.sum()),
        "headings": int(known.sum()),
        "listed_twice": len(images) - len(np.unique(images.names)),
    }
    if facts["listed_twice"]:
        findings.add("warning", "listed-twice", f"{label}: {facts['listed_twice']} names are listed twice")
    if 0 < facts["headings"] < (1 - _MANY_UNKNOWN) * len(images):
        text = f"{label}: {len(images) - facts['headings']} of {len(images)} headings are unknown or −1"
        findings.add("warning", "compass-unknown", text)
    compass = images.columns.get("ca", images.poses.heading)  # where grid north differs a little
    stuck = []
    order = np.argsort(images.group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(images.group[order])) + 1):
        values = compass[members][~np.isnan(compass[members])]
        if len(values) >= _STUCK_MIN and (values == values[0]).all():
            stuck.append(images.group_names[images.group[members[0]]] or "all")
    if stuck:
        text = f"{label}: every heading is the same in {', '.join(stuck[:5])}{' …' if len(stuck) > 5 else ''}"
        findings.add("warning", "compass-stuck", text)
    return facts


def _pair_facts(
    dataset: Dataset, label: str, split: Split, names: NDArray[np.bytes_], files: Files, findings: Findings
) -> dict[str, Any]:
    """Files on both sides, by name or content; and how many queries have a map image near them."""
    queries, database = (np.searchsorted(names, side.names.astype(names.dtype)) for side in split)
    digests = files.digests[queries]
    shared = np.isin(queries, database) | (np.isin(digests, files.digests[database]) & (digests != 0))
    facts: dict[str, Any] = {"shared_files": int(shared.sum())}
    if shared.any():
        text = f"{label}: {facts['shared_files']} queries have the same file in the map"
        findings.add("warning", "queries-in-map", text)
    if dataset.positive_radius_m is None:
        return facts
    located = split.queries.poses.known
    without = int((located & ~_near_map(split, dataset.positive_radius_m, dataset.groups_apart)).sum())
    if without:
        level = "error" if without == located.sum() else "warning"
        text = f"{without} of {int(located.sum())} located queries have no map image within"
        findings.add(level, "without-positive", f"{label}: {text} {dataset.positive_radius_m:g} m")
    within = {"without_positive": without, "within_m": dataset.positive_radius_m}
    return facts | {"located_queries": int(located.sum())} | within


def _near_map(split: Split, radius_m: float, groups_apart: bool) -> NDArray[np.bool_]:
    """(Q,) whether a map image is near, of the query's own group where each has a frame of its own."""
    from scipy.spatial import cKDTree

    near = np.zeros(len(split.queries), bool)
    names = [np.array(side.group_names)[side.group] if groups_apart else np.zeros(len(side)) for side in split]
    for group in np.unique(names[0]):
        mine, theirs = ((own == group) & side.poses.known for own, side in zip(names, split, strict=True))
        if mine.any() and theirs.any():
            distance, _ = cKDTree(split.database.poses.xy[theirs]).query(split.queries.poses.xy[mine])
            near[mine] = distance <= radius_m
    return near


def _missing_by_archive(dataset: Dataset, names: NDArray[np.bytes_], files: Files) -> list[dict[str, Any]]:
    """Absent files by the download they belong to."""
    volume = dataset.volume or (lambda name: name.rpartition("/")[0] or ".")
    absent = Counter(volume(r.image) for r in files.rejects if r.reason == "missing")
    listed = Counter(volume(os.fsdecode(name)) for name in names) if absent else Counter()
    return [{"volume": v, "missing": n, "listed": listed[v]} for v, n in sorted(absent.items())]


def _published_counts(dataset: Dataset, splits: dict[str, Any], findings: Findings) -> list[dict[str, Any]]:
    """Published counts beside those found: exact ones, and lower bounds where only a server counts exactly."""
    rows = []
    counts = [(*item, True) for item in dataset.published.items()] + [
        (*item, False) for item in dataset.at_least.items()
    ]
    for split, both, exact in counts:
        for side, expected in zip(("queries", "database"), both, strict=True):
            if expected is None or split not in splits:
                continue
            images = splits[split].get(side, splits[split]["queries"])["images"]
            rows.append({"count": f"{split}/{side}", "published": expected, "exact": exact, "found": images})
            if images < expected or (exact and images > expected):
                reference = f"published are {expected}" if exact else f"the whole set has at least {expected}"
                findings.add("warning", "count-differs", f"{split}/{side}: {images} images, {reference}")
    return rows


class Files(NamedTuple):
    """What was found in each file."""

    rejects: list[Rejected]
    digests: NDArray[np.uint64]
    """(N,) equal for files of equal content; 0 where a file was not, or could not be, read."""
    notes: Counter[str]
    """How often a decoder had to convert, rescale or turn an image."""


def verify(root: Path, names: NDArray[np.bytes_], *, quick: bool, workers: int) -> Files:
    """Checks the files `names` below `root`; `quick` looks only at each file's beginning and end."""
    rejects: list[Rejected] = []
    digests: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    notes: Counter[str] = Counter()
    pieces = (names[k : k + PIECE] for k in range(0, len(names), PIECE))
    with Meter("checking", len(names), "images") as meter:
        for part in in_processes(partial(_check_files, root, quick), pieces, workers):
            rejects += part.rejects
            digests.append(part.digests)
            notes.update(part.notes)
            meter.advance(len(part.digests))
    return Files(rejects, np.concatenate(digests), notes)


def _check_files(root: Path, quick: bool, names: NDArray[np.bytes_]) -> Files:
    """The same for some files, in a worker."""
    rejects: list[Rejected] = []
    digests = np.zeros(len(names), np.uint64)
    notes: Counter[str] = Counter()
    for i, name in enumerate(map(os.fsdecode, names)):
        path = os.path.join(root, name)  # noqa: PTH118 - a Path each costs as much as opening the file
        try:
            if quick:
                verdict = look(path)
                if verdict:
                    raise verdict
                continue
            data = read(path)
            digests[i] = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
            decoded = decode_bytes(data, (32, 32), path)  # the smallest scale still reads every bit
            notes.update(decoded.notes)
            notes["turned"] += decoded.orientation != 1
        except Reject as reject:
            rejects.append(Rejected(name, reject.reason, reject.detail))
    return Files(rejects, digests, +notes)
