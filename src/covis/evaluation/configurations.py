"""What was evaluated, without its seed: names for configurations, and evaluations grouped by them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covis.core.artifacts import flat
from covis.evaluation.result import Evaluation

_OF_A_RUN = ("label", "fingerprint", "seed", "path", "folder", "versions", "code", "store", "data")
"""What differs between the seeds of one configuration, or says where something lies."""
_FITTED = ("rank", "samples", "shrinkage")
"""Values that a fit determines."""
_SEED = re.compile(r"(?:(?P<row>.*?)[-_/ ])?seed[-_ ]?\d+")


def configuration(evaluation: Evaluation) -> dict[str, Any]:
    """Everything that decides what was evaluated except the seed; a model without a recipe is its own configuration."""
    subject = dict(evaluation.subject)
    kept = {key: value for key, value in subject.items() if key not in _OF_A_RUN}
    for key in ("whitening", "model_whitening"):
        if isinstance(kept.get(key), Mapping):
            kept[key] = {k: v for k, v in kept[key].items() if k not in _FITTED}
    kept["protocol"] = evaluation.fingerprint
    if not kept.get("recipe") or subject.get("seed") is None:
        kept["model"] = subject.get("fingerprint") or subject.get("label")
    return kept


def base_name(evaluation: Evaluation) -> str:
    """What the configuration is called: the run's row or folder without its seed, and the variant."""
    label, comma, variant = evaluation.label.partition(", ")
    match = _SEED.fullmatch(label)
    if match:
        label = match["row"] or _row(Path(str(evaluation.subject.get("folder", "")))) or label
    return f"{label}{comma}{variant}"


def _row(folder: Path) -> str:
    """The folder above `seed-N/model`."""
    run = folder.parent if folder.name == "model" else folder
    return run.parent.name


def grouped(evaluations: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """Evaluations by the name of their configuration; those under one name are its seeds."""
    groups: list[list[Evaluation]] = []
    settings: list[dict[str, Any]] = []
    for evaluation in evaluations:
        own = configuration(evaluation)
        at = next((i for i, other in enumerate(settings) if other == own), -1)
        if at < 0:
            settings.append(own)
            groups.append([evaluation])
        elif all(_model(evaluation) != _model(e) for e in groups[at]):
            groups[at].append(evaluation)
    return dict(zip(_names(groups, settings), groups, strict=True))


def _model(evaluation: Evaluation) -> object:
    return evaluation.subject.get("fingerprint"), evaluation.subject.get("seed")


def _names(groups: Sequence[Sequence[Evaluation]], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Base names, followed by what differs where two configurations share one."""
    plain = [base_name(group[0]) for group in groups]
    out = []
    for i, name in enumerate(plain):
        alike = [j for j, other in enumerate(plain) if other == name]
        if len(alike) == 1:
            out.append(name)
            continue
        difference = _difference(settings[i], [settings[j] for j in alike if j != i])
        out.append(f"{name} ({difference})" if difference else f"{name} ({alike.index(i) + 1})")
    return [n if out.count(n) == 1 else f"{n} #{out[:i].count(n) + 1}" for i, n in enumerate(out)]


def _difference(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """The setting that best distinguishes a configuration from its namesakes, such as `loss GeneralizedContrastive`."""
    mine, theirs = flat(own), [flat(other) for other in others]
    differing = [key for key, value in mine.items() if any(other.get(key) != value for other in theirs)]
    differing.sort(key=lambda key: (not key.startswith("recipe.loss"), not key.startswith("recipe."), len(key)))
    short = [key for key in differing if len(str(mine[key])) <= 40 and key not in ("model", "protocol")]
    if not short:
        return ""
    return f"{short[0].removeprefix('recipe.').removesuffix('.name').removesuffix('.type')} {mine[short[0]]}"
