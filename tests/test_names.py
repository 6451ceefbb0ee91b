"""One word, one thing: no public function, class, type or constant has the name of another."""

import ast
import json
from collections import defaultdict
from pathlib import Path

import covis
from covis.cli import GROUPS, VERBS

SOURCE = Path(covis.__file__).parent
SHARED = {
    "load": "what each dataset offers under its own module's name; users call `datasets.load(name, …)`",
    "volume": "likewise, for the dataset's doctor: how many images a complete copy has",
}
"""Names that several modules define on purpose. The list may only become shorter."""


def verbs():
    """Functions of the command line: each has the name of its verb, and often calls the function of that name."""
    places = [*VERBS.values(), *(place for group in GROUPS.values() for place in group.values())]
    return {(f"covis.cli.{module}", name) for module, _, name in (place.partition(".") for place in places)}


def names(tree):
    """Public functions, classes, types and constants of a module; what only the module itself uses begins with `_`."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))


def defined_twice():
    found, spoken = defaultdict(set), verbs()
    for file in SOURCE.rglob("*.py"):
        module = ".".join(("covis", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for name in names(ast.parse(file.read_text(encoding="utf-8"))):
            if not name.startswith("_") and (module, name) not in spoken:
                found[name].add(module)
    return {name: sorted(modules) for name, modules in found.items() if len(modules) > 1}


def test_no_public_name_is_defined_twice():
    twice = defined_twice()
    new = {name: modules for name, modules in twice.items() if name not in SHARED}
    assert not new, f"rename one of each: {new}"
    gone = sorted(set(SHARED) - set(twice))
    assert not gone, f"no longer shared; take them off the list: {gone}"


def test_what_is_exported_at_the_top_is_defined_once():
    assert not set(covis.__all__) & set(defined_twice())


ROLES = {"found", "told", "here"}
"""Names of the part that a value plays in a sentence, instead of what it is."""


def test_locals_are_named_by_content():
    by_role = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in ROLES)
        or (isinstance(node, ast.arg) and node.arg in ROLES)
    ]
    assert not by_role


def test_the_file_of_names_is_that_of_the_registries():
    from covis.cli.listing import all_names

    written = json.loads((SOURCE / "names.json").read_text(encoding="utf-8"))
    assert written == all_names(), "write it anew with: python -m covis.cli.listing (or make names)"
