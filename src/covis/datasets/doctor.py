"""The dataset doctor: what is there, what is missing, what looks wrong, and under which terms it may be used."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.datasets import DATASETS, Dataset, Split
from covis.datasets.parallel import cpu_count
from covis.datasets.screening import REJECTS, Rejected, write_rejects
from covis.datasets.verify import Verified, forget, verify
from covis.decoding import REASONS
from covis.errors import InputError
from covis.images import ImageSet

REPORT = "report.json"
SIDES = ("queries", "database")
STUCK_MIN = 20
"""A compass that gives one value for this many images of a group, and for all of them, is called stuck."""
MANY_UNKNOWN = 0.2
Findings = list[dict[str, str]]


def check(
    name: str, path: Path | str, out: Path | str, *, quick: bool = False, workers: int | None = None
) -> dict[str, Any]:
    """Examines dataset `name` at `path`; writes `rejects.csv` and `report.json` to `out` and returns the report.

    Interrupted, the same call goes on from where it was. With `quick`, files are looked at but not decoded.
    """
    dataset, root, folder = DATASETS[name], Path(path), Path(out)
    if not root.exists():
        raise InputError(f"{root} is not there; check the path")
    findings: Findings = []
    splits = _read_splits(dataset, root, findings)
    with artifacts.claim(folder, "check", {"dataset": name, "path": str(root.resolve()), "quick": quick}):
        names = _all_names(splits)
        base = next(iter(splits.values())).queries.root
        verified = verify(base, names, folder, quick=quick, workers=workers or cpu_count())
        verified.rejects.extend(_left_out(dataset, root, splits))
        report = _report(dataset, root, splits, names, verified, findings)
        report["quick"] = quick
        report["rejects_file"] = str(folder / REJECTS)
        write_rejects(folder / REJECTS, verified.rejects)
        artifacts.write_json(folder / REPORT, report)
        forget(folder)
    return report


def _read_splits(dataset: Dataset, root: Path, findings: Findings) -> dict[str, Split]:
    """Every split that can be read; those that cannot become findings, unless none can."""
    splits, errors = {}, []
    for split in dataset.splits:
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
    report: dict[str, Any] = {
        "dataset": dataset.name,
        "path": str(root),
        "licence": dataset.licence,
        "images": len(names),
        "rejects": dict(sorted(reasons.items())),
        "notes": dict(sorted(verified.notes.items())),
        "missing": _missing(dataset, verified, names),
        "splits": {k: _split(dataset, k, s, names, verified, findings) for k, s in splits.items()},
    }
    report["published"] = _published(dataset, report["splits"], findings)
    for group in report["missing"]:
        text = f"{group['missing']} of {group['listed']} files of {group['volume']} are missing; get or unpack it"
        findings.append(_finding("error", "missing-files", text))
    for reason, n in reasons.items():
        if reason != "missing":
            level = "note" if reason == "panorama" else "warning"
            findings.append(_finding(level, "bad-files", f"{n} files: {reason} ({REASONS[reason]})"))
    report["findings"] = findings
    return report


def _split(
    dataset: Dataset, label: str, split: Split, names: NDArray[np.bytes_], verified: Verified, findings: Findings
) -> dict[str, Any]:
    one_set = split.queries is split.database
    sides = {"queries": split.queries} if one_set else dict(zip(SIDES, split, strict=True))
    facts: dict[str, Any] = {side: _side(images, f"{label}/{side}", findings) for side, images in sides.items()}
    facts["one_set"] = one_set
    facts["shared_files"] = 0 if one_set else _shared(split, names, verified)
    if facts["shared_files"]:
        text = f"{label}: {facts['shared_files']} queries have the same file in the map"
        findings.append(_finding("warning", "queries-in-map", text))
    if dataset.positive_radius_m is not None and not one_set:
        facts |= _positives(split, dataset.positive_radius_m, label, findings)
    return facts


def _side(images: ImageSet, label: str, findings: Findings) -> dict[str, Any]:
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


def _shared(split: Split, names: NDArray[np.bytes_], verified: Verified) -> int:
    """How many queries have a file whose content or name is in the map too."""
    queries, database = (np.searchsorted(names, side.names.astype(names.dtype)) for side in split)
    same_name = np.isin(queries, database)
    digests = verified.digests[queries]
    same_content = np.isin(digests, verified.digests[database]) & (digests != 0)
    return int((same_name | same_content).sum())


def _positives(split: Split, radius_m: float, label: str, findings: Findings) -> dict[str, Any]:
    """How many queries have a map image of their own group near them."""
    from scipy.spatial import cKDTree

    located = split.queries.poses.known
    found = np.zeros(len(split.queries), bool)
    code = {name: i for i, name in enumerate(split.database.group_names)}
    for at, group in enumerate(split.queries.group_names):
        mine = np.flatnonzero((split.queries.group == at) & located)
        theirs = np.flatnonzero((split.database.group == code.get(group, -1)) & split.database.poses.known)
        if len(mine) and len(theirs):
            distance, _ = cKDTree(split.database.poses.xy[theirs]).query(split.queries.poses.xy[mine])
            found[mine] = distance <= radius_m
    without = int((located & ~found).sum())
    if without:
        level = "error" if without == located.sum() else "warning"
        text = f"{label}: {without} of {int(located.sum())} located queries have no map image within {radius_m:g} m"
        findings.append(_finding(level, "without-positive", text))
    return {"located_queries": int(located.sum()), "without_positive": without, "within_m": radius_m}


def _missing(dataset: Dataset, verified: Verified, names: NDArray[np.bytes_]) -> list[dict[str, Any]]:
    """Absent files by the download they belong to."""
    volume = dataset.volume or (lambda name: name.rpartition("/")[0] or ".")
    absent = Counter(volume(r.image) for r in verified.rejects if r.reason == "missing")
    if not absent:
        return []
    listed = Counter(volume(os.fsdecode(name)) for name in names)
    return [{"volume": v, "missing": n, "listed": listed[v]} for v, n in sorted(absent.items())]


def _published(dataset: Dataset, splits: dict[str, Any], findings: Findings) -> list[dict[str, Any]]:
    """Published counts beside those found."""
    rows = []
    for key, expected in dataset.published.items():
        split, _, side = key.rpartition("/")
        facts = splits.get(split)
        if facts is None:
            continue
        found = facts.get(side, facts["queries"])["images"]
        rows.append({"count": key, "published": expected, "found": found})
        if found != expected:
            findings.append(_finding("warning", "count-differs", f"{key}: {found} images, published are {expected}"))
    return rows


def _all_names(splits: dict[str, Split]) -> NDArray[np.bytes_]:
    """(N,) every name once, sorted."""
    return np.unique(np.concatenate([side.names for split in splits.values() for side in split]))


def _finding(level: str, code: str, text: str) -> dict[str, str]:
    return {"level": level, "code": code, "text": text}
