"""One word, one thing: no public class has the name of another."""

import ast
from collections import defaultdict
from pathlib import Path

import covis

SOURCE = Path(covis.__file__).parent
SHARED = {
    "Calibration": "of a map's answers · of a camera; the second is read and used within reading",
    "Candidates": "of a sampler's kernel · of an engine's answer; neither leaves its package",
    "Features": "what describing computes once · key points for a pose",
    "Loop": "of training · closed by a walk",
    "Matrix": "rows of descriptors · a sparse one while labels are built",
    "Options": "of a verb · of a city's labels",
    "Place": "in an answer · of a key point",
    "Plan": "a backbone's blocks · what a run will cost",
    "PointCloud": "read from a file · of the town's truth",
    "Problem": "of a map · as the service reports it",
    "Progress": "of a run · of a fit",
    "Row": "of a table · of a street-level service",
    "Rows": "of labels · of an engine · of descriptors to be whitened",
    "Scene": "for a pose · of the town's kernels",
    "Side": "of pairs · of a city's labels",
}
"""Names of two classes that stay within their packages, and what they are. The list may only become shorter."""


def classes():
    found = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(module)
    return {name: sorted(modules) for name, modules in found.items() if len(modules) > 1}


def test_no_public_class_has_the_name_of_another():
    twice = classes()
    new = {name: modules for name, modules in twice.items() if name not in SHARED}
    assert not new, f"rename one of each: {new}"
    gone = sorted(set(SHARED) - set(twice))
    assert not gone, f"no longer shared; take them off the list: {gone}"


def test_what_is_exported_at_the_top_is_defined_once():
    assert not set(covis.__all__) & set(classes())
