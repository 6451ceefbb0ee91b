"""The dataset check: what is there, what is missing or damaged, what looks wrong, and the terms of use.

Files are decoded in several processes."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
_SIDES = ("queries", "database")
STUCK_MIN = 20
"""A compass is called stuck if all known headings of a group, at least this many, have the same value."""
MANY_UNKNOWN = 0.2
Findings = list[dict[str, str]]


def check(
    name: str, path: Path | str, out: Path | str, *, quick: bool = False, workers: int | None = None
) -> dict[str, Any]:
    """Examines dataset `name` at `path`; writes `rejects.csv` and `report.json` to `out` and returns the report.

    With `quick`, files are looked at but not decoded.
    """
    dataset, root, folder = DATASETS[name], Path(path), Path(out)
    if not root.exists():
        raise InputError(f"{root} does not exist; check the path")
    findings: Findings = []
    splits = _read_splits(dataset, root, findings)
    with artifacts.claim(folder, "check", {"dataset": name, "path": str(root.resolve()), "quick": quick}):
        names = _all_names(splits)
        base = next(iter(splits.values())).queries.root
        verified = verify(base, names, quick=quick, workers=workers or cpu_count())
        verified.rejects.extend(_left_out(dataset, root, splits))
        report = _report(dataset, root, splits, names, verified, findings)
        report["quick"] = quick
        report["rejects_file"] = str(folder / REJECTS)
        write_rejects(folder / REJECTS, verified.rejects)
        artifacts.write_json(folder / REPORT, report)
    return report


def _read_splits(dataset: Dataset, root: Path, findings: Findings) -> dict[str, Split]:
    """Every split that can be read; those that cannot become findings, unless none can."""
    splits, errors = {}, []
    for split in dataset.splits:
        files = dataset.optional.get(split, ())
        if files and not any((root / file).is_file() for file in files):
            text = f"{split}: {files[0]} is not there; no recipe and no benchmark needs it"
            findings.append(_finding("note", "split-absent", text))
            continue
        try:
            splits[split] = dataset.load(root, split)
        except InputError as error:
            errors.append((split, str(error)))
    if not splits:
        raise InputError(f"no split of {dataset.name} can be read: {errors[0][1]}")
    for split, text in errors:
        findings.append(_finding("error", "split-unreadable", f"{split}: {text}"))
    return splits


def _left_out(dataset: Dataset, root: Path, splits: dict[str, Split]) -> list[Rejected]:
    """Panoramas, which splits leave out, as rejects."""
    if dataset.left_out is None:
        return []
    return [Rejected(name, "panorama", "") for split in splits for name in dataset.left_out(root, split)]


def _report(
    dataset: Dataset,
    root: Path,
    splits: dict[str, Split],
    names: NDArray[np.bytes_],
    verified: Verified,
    findings: Findings,
) -> dict[str, Any]:
    reasons = Counter(r.reason for r in verified.rejects)
    seen: set[str] = set()
    report: dict[str, Any] = {
        "dataset": dataset.name,
        "path": str(root),
        "licence": dataset.licence,
        "images": len(names),
        "rejects": dict(sorted(reasons.items())),
        "notes": dict(sorted(verified.notes.items())),
        "missing": _missing_by_archive(dataset, verified, names),
        "splits": {k: _split_facts(dataset, k, s, seen, names, verified, findings) for k, s in splits.items()},
    }
    report["published"] = _published_counts(dataset, report["splits"], findings)
    for group in report["missing"]:
        text = f"{group['missing']} of {group['listed']} files of {group['volume']} are missing; get or unpack it"
        findings.append(_finding("error", "missing-files", text))
    for reason, n in reasons.items():
        if reason != "missing":
            level = "note" if reason == "panorama" else "warning"
            findings.append(_finding(level, "bad-files", f"{n} files: {reason} ({REASONS[reason]})"))
    report["findings"] = findings
    return report


def _split_facts(
    dataset: Dataset,
    label: str,
    split: Split,
    seen: set[str],
    names: NDArray[np.bytes_],
    verified: Verified,
    findings: Findings,
) -> dict[str, Any]:
    """Facts of one split; oddities of images that an earlier split has too (`seen`) were reported there."""
    one_set = split.queries is split.database
    sides = {"queries": split.queries} if one_set else dict(zip(_SIDES, split, strict=True))
    facts: dict[str, Any] = {}
    for side, images in sides.items():
        key = images.fingerprint()
        facts[side] = _side_facts(images, f"{label}/{side}", [] if key in seen else findings)
        seen.add(key)
    facts["one_set"] = one_set
    facts["shared_files"] = 0 if one_set else _count_shared_files(split, names, verified)
    if facts["shared_files"]:
        text = f"{label}: {facts['shared_files']} queries have the same file in the map"
        findings.append(_finding("warning", "queries-in-map", text))
    if dataset.positive_radius_m is not None and not one_set:
        facts |= _positive_facts(split, dataset, label, findings)
    return facts


def _side_facts(images: ImageSet, label: str, findings: Findings) -> dict[str, Any]:
    """Counts of one side, and what is odd about its positions and compass."""
    heading, known = images.poses.heading, images.poses.known
    facts = {
        "images": len(images),
        "groups": len(np.unique(images.group)),
        "positions": int(known.sum()),
        "headings": int((~np.isnan(heading)).sum()),
        "listed_twice": len(images) - len(np.unique(images.names)),
    }
    if facts["listed_twice"]:
        findings.append(_finding("warning", "listed-twice", f"{label}: {facts['listed_twice']} names are listed twice"))
    if 0 < facts["headings"] < (1 - MANY_UNKNOWN) * len(images):
        text = f"{label}: {len(images) - facts['headings']} of {len(images)} headings are unknown or −1"
        findings.append(_finding("warning", "compass-unknown", text))
    stuck = [images.group_names[g] or "all" for g in _stuck_groups(images)]
    if stuck:
        text = f"{label}: every heading is the same in {', '.join(stuck[:5])}{' …' if len(stuck) > 5 else ''}"
        findings.append(_finding("warning", "compass-stuck", text))
    return facts


def _stuck_groups(images: ImageSet) -> Iterator[int]:
    heading = images.columns.get("ca", images.poses.heading)  # the raw compass, where grid north differs a little
    order = np.argsort(images.group, kind="stable")
    limits = np.flatnonzero(np.diff(images.group[order])) + 1
    for members in np.split(order, limits):
        values = heading[members][~np.isnan(heading[members])]
        if len(values) >= STUCK_MIN and (values == values[0]).all():
            yield int(images.group[members[0]])


def _count_shared_files(split: Split, names: NDArray[np.bytes_], verified: Verified) -> int:
    """How many queries have a file whose content or name is in the map too."""
    queries, database = (np.searchsorted(names, side.names.astype(names.dtype)) for side in split)
    same_name = np.isin(queries, database)
    digests = verified.digests[queries]
    same_content = np.isin(digests, verified.digests[database]) & (digests != 0)
    return int((same_name | same_content).sum())


def _positive_facts(split: Split, dataset: Dataset, label: str, findings: Findings) -> dict[str, Any]:
    """How many queries have a map image near them, of their own group where each has a frame of its own."""
    from scipy.spatial import cKDTree

    radius_m = dataset.positive_radius_m or 0.0
    located = split.queries.poses.known
    answerable = np.zeros(len(split.queries), bool)
    code = {name: i for i, name in enumerate(split.database.group_names)}
    for at, group in enumerate(split.queries.group_names):
        mine = np.flatnonzero((split.queries.group == at) & located)
        comparable = split.database.group == code.get(group, -1) if dataset.groups_apart else True
        theirs = np.flatnonzero(split.database.poses.known & comparable)
        if len(mine) and len(theirs):
            distance, _ = cKDTree(split.database.poses.xy[theirs]).query(split.queries.poses.xy[mine])
            answerable[mine] = distance <= radius_m
    without = int((located & ~answerable).sum())
    if without:
        level = "error" if without == located.sum() else "warning"
        text = f"{label}: {without} of {int(located.sum())} located queries have no map image within {radius_m:g} m"
        findings.append(_finding(level, "without-positive", text))
    return {"located_queries": int(located.sum()), "without_positive": without, "within_m": radius_m}


def _missing_by_archive(dataset: Dataset, verified: Verified, names: NDArray[np.bytes_]) -> list[dict[str, Any]]:
    """Absent files by the download they belong to."""
    volume = dataset.volume or (lambda name: name.rpartition("/")[0] or ".")
    absent = Counter(volume(r.image) for r in verified.rejects if r.reason == "missing")
    if not absent:
        return []
    listed = Counter(volume(os.fsdecode(name)) for name in names)
    return [{"volume": v, "missing": n, "listed": listed[v]} for v, n in sorted(absent.items())]


def _published_counts(dataset: Dataset, splits: dict[str, Any], findings: Findings) -> list[dict[str, Any]]:
    """Published counts beside those found: exact ones, and lower bounds where only a server counts exactly."""
    rows = []
    exact = [(key, n, True) for key, n in dataset.published.items()]
    for key, expected, known in [*exact, *((key, n, False) for key, n in dataset.at_least.items())]:
        split, _, side = key.rpartition("/")
        facts = splits.get(split)
        if facts is None:
            continue
        images = facts.get(side, facts["queries"])["images"]
        rows.append({"count": key, "published": expected, "exact": known, "found": images})
        if images != expected if known else images < expected:
            reference = f"published are {expected}" if known else f"the whole set has at least {expected}"
            findings.append(_finding("warning", "count-differs", f"{key}: {images} images, {reference}"))
    return rows


def _all_names(splits: dict[str, Split]) -> NDArray[np.bytes_]:
    """(N,) every name once, sorted."""
    return np.unique(np.concatenate([side.names for split in splits.values() for side in split]))


def _finding(level: str, code: str, text: str) -> dict[str, str]:
    return {"level": level, "code": code, "text": text}


PIECE = 512


@dataclass(frozen=True, eq=False)
class Verified:
    """What was found in each file."""

    rejects: list[Rejected]
    digests: NDArray[np.uint64]
    """(N,) equal for files of equal content; 0 where a file was not, or could not be, read."""
    notes: Counter[str]
    """How often a decoder had to convert, rescale or turn an image."""


def verify(root: Path, names: NDArray[np.bytes_], *, quick: bool, workers: int) -> Verified:
    """Checks the files `names` below `root`; `quick` looks only at each file's beginning and end."""
    digests = np.zeros(len(names), np.uint64)
    rejects: list[Rejected] = []
    notes: Counter[str] = Counter()
    pieces = (names[k : k + PIECE] for k in range(0, len(names), PIECE))
    done = 0
    with Meter("checking", len(names), "images") as meter:
        for hashes, bad, noted in in_processes(partial(_check_files, root, quick), pieces, workers):
            digests[done : done + len(hashes)] = hashes
            rejects += bad
            notes.update(noted)
            done += len(hashes)
            meter.advance(len(hashes))
    return Verified(rejects, digests, notes)


def _check_files(
    root: Path, quick: bool, part: NDArray[np.bytes_]
) -> tuple[NDArray[np.uint64], list[Rejected], Counter[str]]:
    """Digests, rejects and notes of some files, in a worker."""
    hashes = np.zeros(len(part), np.uint64)
    rejects: list[Rejected] = []
    notes: Counter[str] = Counter()
    folder = str(root)
    for i, name in enumerate(map(os.fsdecode, part)):
        path = os.path.join(folder, name)  # noqa: PTH118 - a Path each costs as much as opening the file
        try:
            if quick:
                verdict = look(path)
                if verdict:
                    raise verdict
            else:
                data = read(path)
                hashes[i] = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
                decoded = decode_bytes(data, (32, 32), path)  # the smallest scale still reads every bit
                notes.update(decoded.notes)
                notes["turned"] += decoded.orientation != 1
        except Reject as reject:
            rejects.append(Rejected(name, reject.reason, reject.detail))
    return hashes, rejects, +notes
