"""The house rules of the design: a module imports only from above; torch and web only where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import covis

SOURCE = Path(covis.__file__).parent
LAYERS = [
    "core",
    "poses", "images", "graph", "ranking", "descriptors", "whitening", "logistic", "crossval", "geojson",
    "reading", "web", "runtime", "labels", "town", "datasets", "sampling", "search", "evaluation", "field",
    # torch from here on
    "models", "losses", "describing", "torch", "training", "experiments", "report", "maps", "geotagging", "service", "demo",
    "cli",
]  # fmt: skip
WITHOUT_TORCH = LAYERS[: LAYERS.index("models")]


def modules():
    for file in sorted(SOURCE.rglob("*.py")):
        part = file.relative_to(SOURCE).with_suffix("").parts
        if part[0] not in ("__init__", "__main__"):
            yield file, part[0]


def covis_imports(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "covis":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [a.name for a in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("covis."))


def test_imports_point_upwards():
    below = []
    for file, layer in modules():
        assert layer in LAYERS, f"{file} is in no layer; add {layer} to LAYERS where it belongs"
        late = [name for name in covis_imports(file) if name in LAYERS and LAYERS.index(name) > LAYERS.index(layer)]
        below += [f"{file.relative_to(SOURCE)} imports {name}" for name in late]
    assert not below, below


def test_the_front_door_opens_at_once_and_loads_torch_only_when_asked():
    code = (
        "import sys; import covis\n"
        "assert not {'numpy', 'scipy', 'numba', 'typer', 'rich'} & set(sys.modules)\n"
        "assert [name for name in sys.modules if name.startswith('covis')] == ['covis']\n"
        "assert covis.Map.__name__ == 'Map' and callable(covis.open_images) and callable(covis.load_benchmark)\n"
        "assert covis.labels.fov_similarity and covis.graph.SimilarityGraph\n"
        "assert 'torch' not in sys.modules\n"
        "assert callable(covis.train) and callable(covis.evaluate) and covis.PlaceModel.load and covis.losses.Contrastive\n"
        "assert all(hasattr(covis, name) for name in dir(covis))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)


def test_every_name_of_the_front_door_is_listed_once():
    assert sorted(covis.__all__) == sorted({*covis._NAMES, *covis._PACKAGES})


def test_labelling_sampling_search_and_scoring_work_without_torch():
    present = [name for name in WITHOUT_TORCH if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists()]
    code = "import sys\n" + "".join(f"import covis.{n}\n" for n in present) + "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)


# Cycles that hide behind late imports


def module_name(file):
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("covis", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def executed_imports(tree, known):
    """Modules of covis that a file imports when it is loaded or later; what only type checkers see is left out."""
    found, open_ = set(), [tree]
    while open_:
        node = open_.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            open_ += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "covis":
            whole = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in known else node.module for name in whole}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        open_ += ast.iter_child_nodes(node)
    return found & known


def test_no_cycle_hides_behind_a_late_import():
    files = {module_name(file): file for file in SOURCE.rglob("*.py")}
    del files["covis"]  # the front door names everything, and loads it when it is asked for
    trees = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in files.items()}
    edges = {name: executed_imports(tree, set(files)) - {name} for name, tree in trees.items()}
    # Whatever imports nothing that is left is no part of a cycle; take it away until nothing changes.
    left = dict(edges)
    while free := [name for name, targets in left.items() if not targets & set(left)]:
        for name in free:
            del left[name]
    needed = {name for name in left if any(name in targets for targets in left.values())}
    assert not needed, f"modules that import each other, or are imported by such: {sorted(needed)}"
