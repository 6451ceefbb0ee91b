"""Reports: one self-contained HTML file from evaluations and runs."""

from covis.report.sections import write_report

__all__ = ["write_report"]
