"""Executes the notebooks and stores what they print and draw, without progress: `make notebooks`."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"


def execute(path: Path, work: Path) -> None:
    """One notebook, run in `work`, written back in place."""
    notebook = nbformat.read(path, as_version=4)
    metadata = dict(notebook.metadata)
    NotebookClient(notebook, timeout=3600, kernel_name="python3", resources={"metadata": {"path": str(work)}}).execute()
    notebook.metadata = metadata
    for cell in notebook.cells:
        cell.get("metadata", {}).pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    work = Path(tempfile.mkdtemp(prefix="covis-notebooks-"))
    for path in sorted(FOLDER.glob("*.ipynb")):
        execute(path, work)
    shutil.rmtree(work)
