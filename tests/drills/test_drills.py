"""The drills, small: each kind of damage and bad input once or a few times. `make drill` runs the long ones."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "maps")]

import bad_inputs
import mutations
import power_loss


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
def test_damage_is_refused_or_changes_nothing(cache, capfd):
    by_kind = mutations.run(180, 1, cache / "work")
    assert not [k for k, found in by_kind.items() if found.get("wrong") or found.get("crashed")], capfd.readouterr().out
    assert all(found.get("refused", 0) >= 5 for k, found in by_kind.items() if k.startswith(("map", "store", "graph")))


@pytest.mark.slow
def test_bad_input_is_refused_or_left_out(cache, capfd):
    by_kind = bad_inputs.run(300, 1, cache / "work")
    assert not [k for k, found in by_kind.items() if found.get("wrong") or found.get("crashed")], capfd.readouterr().out


def test_after_a_power_failure_a_map_is_old_or_new(tmp_path):
    by_kind = power_loss.run(24, 0, tmp_path)
    assert all(found["old"] and found["new"] for found in by_kind.values())
