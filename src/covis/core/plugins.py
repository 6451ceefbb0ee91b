"""Plugins: modules that register datasets, rules, losses, samplers, poolings, protocols, recipes and other names.

A plugin is any module that Python can import. It is named by `covis --import MODULE`, by `plugins = ["MODULE"]` in a
recipe file, by COVIS_PLUGINS (modules separated by commas), or as an entry point of the group `covis.plugins`. Installed
plugins are loaded when a name is missing or names are listed, so that they cost nothing otherwise.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from covis.core.errors import InputError
from covis.core.progress import warn

GROUP = "covis.plugins"
VARIABLE = "COVIS_PLUGINS"
_loaded: dict[str, None] = {}
_searched = False


def load_plugins(modules: Iterable[str]) -> None:
    """Imports modules, each once, here and in processes started from now on; one that fails is an error of one line."""
    for module in modules:
        if module not in _loaded:
            _import(module)
            _loaded[module] = None
            os.environ[VARIABLE] = ",".join(_loaded)


def loaded_plugins() -> tuple[str, ...]:
    """The plugins loaded so far, in order."""
    return tuple(_loaded)


def plugins_of(*things: Any) -> list[str]:
    """The plugins that define one of these functions, classes or values; for the record of a run and its model."""
    roots = {_root(getattr(thing, "__module__", None) or type(thing).__module__) for thing in things}
    return [module for module in _loaded if _root(module) in roots]


def require_plugins(modules: Iterable[str], path: Path) -> None:
    """An error if a plugin that made the run or model at `path` is not loaded; a file's word alone loads nothing."""
    load_installed_plugins()
    missing = [module for module in modules if module not in _loaded]
    if missing:
        raise InputError(f"{path} was made with plugin {missing[0]}; load it first: covis --import {missing[0]} …")


def _root(module: str) -> str:
    return module.partition(".")[0]


def load_installed_plugins() -> bool:
    """Loads those of COVIS_PLUGINS and of entry points, once; returns whether this call did.

    A broken entry point is a warning: its package may have nothing to do with the command in use.
    """
    global _searched
    if _searched:
        return False
    _searched = True
    load_plugins(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            load_plugins([point.module])
        except InputError as error:
            warn(f"{error} (installed by {point.dist.name if point.dist else 'an unknown package'})")
    return True


def _import(module: str) -> None:
    if not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"plugin {module!r} is not a module; give the name that Python imports, such as my_module")
    try:
        if importlib.util.find_spec(_root(module)) is None:  # console scripts do not look in the current folder
            sys.path.append(str(Path.cwd()))
        importlib.import_module(module)
    except Exception as error:  # whatever a stranger's module raises
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"plugin {module} cannot be imported ({cause}); check its name, folder and packages"
        ) from error
