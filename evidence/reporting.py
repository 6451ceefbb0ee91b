"""Where the scripts of this folder write what they measured."""

from functools import partial
from pathlib import Path

from benchmarks import _common

report = partial(_common.report, results=Path(__file__).parent / "results")
"""Prints rows as a table and writes them to evidence/results/<topic>.json."""
