"""Names, one ±, and tables in every dress."""

import math

import pytest

from covis.core.tables import aligned, best_row, csv_table, is_numeric, latex_table, markdown_table, text_table
from covis.evaluation.render import NAMES, mean_interval, name_of, over_seeds

ROWS = [
    {"model": "CL_1", "Recall@1 %": "57.1 ± 1.3", "median m": "3.2"},
    {"model": "GCL & co", "Recall@1 %": "61.0 ± 0.4", "median m": "–"},
]


def test_plus_minus_is_students_interval_over_seeds():
    assert over_seeds([3.0]) == "3.0"
    assert over_seeds([10.0, 12.0]) == "11.0 (10.0, 12.0)"
    assert over_seeds([10.0, 12.0, 14.0]) == "12.0 ± 5.0"
    mean, half = mean_interval([10.0, 12.0, 14.0])
    assert mean == 12.0
    assert half == pytest.approx(4.302653 * 2 / math.sqrt(3), rel=1e-5)


def test_every_figure_has_one_name():
    assert name_of("recall@5").heading == "Recall@5 %"
    assert name_of("localised@5m_10deg").heading == "within 5m_10deg %"
    assert name_of("ndcg@10") is NAMES["ndcg@10"]
    assert len({name.heading for name in NAMES.values()}) == len(NAMES)


def test_numbers_stand_on_the_right_and_the_best_is_bold():
    assert is_numeric(ROWS, "Recall@1 %")
    assert is_numeric(ROWS, "median m")
    assert not is_numeric(ROWS, "model")
    assert best_row(ROWS, "Recall@1 %") == 1
    assert best_row(ROWS, "Recall@1 %", lower_is_better=True) == 0
    assert best_row(ROWS, "median m") == -1


def test_latex_has_booktabs_and_escapes():
    told = latex_table(ROWS, {"Recall@1 %": False})
    assert told.startswith("\\begin{tabular}{lrr}\n\\toprule\n")
    assert "CL\\_1 & 57.1 $\\pm$ 1.3 & 3.2" in told
    assert "GCL \\& co & \\textbf{61.0 $\\pm$ 0.4} & -- " in told
    assert told.endswith("\\bottomrule\n\\end{tabular}")


def test_markdown_text_and_csv_hold_the_same_cells():
    assert markdown_table(ROWS).splitlines()[1] == "| --- | ---: | ---: |"
    lines = text_table(ROWS).splitlines()
    assert lines[2].startswith("CL_1")
    assert lines[0].index("median m") + len("median m") == lines[2].index("3.2") + 3
    assert len(text_table([{"a": "1\n2\u2028"}]).splitlines()) == 3  # a name with line ends is one row
    assert csv_table([{"a": "1,2", "b": 'x"y'}]) == 'a,b\n"1,2","x""y"'
    assert aligned([{"a": 1}, {"b": 2}]) == [{"a": 1, "b": "–"}, {"a": "–", "b": 2}]
