"""What every verb shares: its common options, paths that are checked first, and results on stdout."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from covis import machine
from covis.errors import InputError, near_path, visible
from covis.tables import text_table as table

__all__ = ["MODEL_HELP", "WORKERS_HELP", "DataPath", "Device", "Json", "emit", "existing", "table"]
PathOrPaths = TypeVar("PathOrPaths", Path, list[Path])
MODEL_HELP = "A model or run folder, an ONNX file, a descriptor store, or another tool's FILE.npy with FILE.txt."
WORKERS_HELP = "Decoding processes (default: one per core, at most 8)."
DataPath = Annotated[
    list[str] | None,
    typer.Option(
        "--data", help="DATASET=PATH, repeatable; PATH alone where one dataset is asked for. The town needs none."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print data as JSON on stdout.")]


def existing(given: PathOrPaths) -> PathOrPaths:
    """The path or paths of an argument, before anything heavy is imported; an error where one is not there."""
    for path in (given,) if isinstance(given, Path) else given:
        if not path.exists():
            raise InputError(f"{path} is not there{near_path(path)}; check the path")
    return given


def _use_device(name: str | None) -> str | None:
    """Has this process run networks on the device of that name."""
    if name is not None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?|mps", name):
            raise InputError(f"--device is cpu, cuda, cuda:N or mps, not {name!r}")
        machine.use_device(name)
    return name


Device = Annotated[
    str | None,
    typer.Option("--device", callback=_use_device, help="cpu, cuda, cuda:N or mps (default: a GPU if there is one)."),
]

FrameOption = Annotated[
    str,
    typer.Option(
        "--frame",
        help="Metres that positions shall be in: EPSG:CODE, PROJ text, or LAT,LON of the middle. [default: by positions]",
    ),
]


def emit(data: Any, as_json: bool, text: str = "") -> None:
    """Prints the result: JSON for programs, `text` for people."""
    if as_json:
        json.dump(data, sys.stdout, indent=2, ensure_ascii=False, default=_plain)
        sys.stdout.write("\n")
    elif text:
        print("\n".join(map(visible, text.split("\n"))))


def _plain(value: Any) -> Any:
    """numpy scalars and arrays, and paths, as JSON knows them."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
