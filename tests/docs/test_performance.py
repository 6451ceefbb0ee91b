"""The performance page: every table has the command that made it, and every ratio its spread over three rounds or more."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"<!-- bench (\w+)", PAGE)


def results(name):
    folders = (ROOT / "benchmarks" / "results", ROOT / "evidence" / "results")
    return json.loads(next(p for f in folders if (p := f / f"{name}.json").is_file()).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SHOWN)
def test_every_table_names_the_script_that_made_it(name):
    command = results(name)["command"]
    script = ROOT / command.split()[1]
    assert script.is_file()
    assert f'report("{name}"' in script.read_text(encoding="utf-8")
    assert f"By `{command}`." in PAGE


@pytest.mark.parametrize("name", SHOWN)
def test_every_ratio_lies_within_its_spread(name):
    for row in results(name)["rows"]:
        if "low" in row:
            assert row["rounds"] >= 3
            assert row["low"] <= row["ratio"] <= row["high"]


@pytest.mark.slow
def test_the_markets_training_step_runs(monkeypatch):
    """It takes its loops from another script."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import bench_market

    rows = list(bench_market.training(1))
    assert [row["what"].rpartition(" ")[2] for row in rows] == ["streamed", "cached"]
    assert all(row["ratio"] > 0 for row in rows)


@pytest.mark.slow
def test_engines_are_measured(monkeypatch, tmp_path):
    pytest.importorskip("pymilvus")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import bench_engines

    from covis.search import rank

    database, asked = bench_engines.drive(300, 16)
    facts = {"truth": rank(asked, database, bench_engines.K), "server": None}
    row = bench_engines.engine_row(f"milvus:{tmp_path}/engine.db", "Milvus Lite", database, asked, **facts)
    assert row["recall_at_10"] == 1


def test_a_peer_without_covis_runs_in_a_process_of_its_own(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from _common import Apart, versus
    from bench_inference import plain_program

    with Apart(plain_program, "tiny") as apart:
        found = versus(lambda: None, lambda: None, 2, apart)
    assert found["ratio without covis"] >= found["low without covis"] > 1, "describing takes longer than nothing"


def test_a_matrix_product_is_the_yardstick_of_both_sides(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import _common

    monkeypatch.setattr(_common, "seconds", lambda work: work())
    spent = _common.versus(lambda: (0.5, 0.1), lambda: (2.0, 0.0), 3, product=lambda: (0.25, 0.0))
    assert (spent["ratio"], spent["system_share"]) == (4, 0.2)
    whole = _common.PRODUCT_OPERATIONS / 1e9
    assert (spent["ours_product_GFLOP"], spent["peer_product_GFLOP"]) == pytest.approx((2 * whole, 8 * whole))


def test_commands_of_results_hold_no_path_of_a_machine(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import _common

    words = [
        "--keep",
        "/elsewhere/kept",
        f"xfeat={ROOT.parent}/shared/data/xfeat.onnx",
        f"--data={ROOT}/docs",
        "local:sift",
    ]
    monkeypatch.setattr("sys.argv", ["/elsewhere/bench_local.py", *words])
    told = "--keep kept xfeat=../shared/data/xfeat.onnx --data=docs local:sift"
    assert _common.command() == f"python benchmarks/bench_local.py {told}"
    for file in (ROOT / "benchmarks" / "results").glob("*.json"):
        command = json.loads(file.read_text(encoding="utf-8")).get("command", "")
        assert not re.search(r"(?<![\w.])/(?!data/)\w", command), file.name
