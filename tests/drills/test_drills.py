"""The drills, small: each kind of damage and bad input once or a few times. `make drill` runs the long ones."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("maps", "service")]

import bad_inputs
import killing
import mutations
import power_loss
import run as drills
import services


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
    by_kind = bad_inputs.run(300, 1, cache / "work") | bad_inputs.run_sources(60, 1, cache / "sources")
    assert not [k for k, found in by_kind.items() if found.get("wrong") or found.get("crashed")], capfd.readouterr().out


def test_after_a_power_failure_a_map_is_old_or_new(tmp_path):
    by_kind = power_loss.run(24, 0, tmp_path)
    assert all(found["old"] and found["new"] for found in by_kind.values())


@pytest.mark.slow
def test_a_map_killed_at_a_step_is_old_or_new_and_the_same_call_finishes(tmp_path):
    for engine in ("", "milvus"):
        (found,) = killing.map_kills(3, 5, tmp_path, engine).values()
        assert (found["kills"], found["lost"], found["mixed"]) == (3, 0, 0)


@pytest.mark.slow
def test_an_import_that_is_killed_leaves_no_map_or_the_whole_one(cache):
    (found,) = killing.import_kills(4, 5, cache).values()
    assert (found["kills"], found["lost"], found["mixed"]) == (4, 0, 0)


@pytest.mark.slow
def test_a_map_in_postgresql_survives_kills_of_its_server_and_of_its_client(tmp_path):
    found = killing.postgres_kills(2, 3, tmp_path)
    assert [(f["kills"], f["lost"], f["mixed"]) for f in found.values()] == [(1, 0, 0)] * 2


@pytest.mark.slow
def test_a_rank_killed_while_embedding_changes_nothing(tmp_path):
    (found,) = killing.rank_kills(1, 0, tmp_path, "embedding").values()
    assert found["lost"] == 0


@pytest.mark.drill
@pytest.mark.timeout(0)
def test_services_that_are_killed_lose_nothing(cache):
    for found in services.run(2, 1, cache / "work").values():
        assert not any(found.get(kind) for kind in drills.BAD), found


@pytest.mark.drill
@pytest.mark.timeout(0)
def test_a_rank_killed_while_training_changes_nothing(tmp_path, hamlet):
    (found,) = killing.rank_kills(1, 0, tmp_path, "training", hamlet).values()
    assert found["lost"] == 0


LONG = {
    "mutations": 3200,
    "inputs": 10_000,
    "sources": 1000,
    "power": 200,
    "kills": 100,
    "points": 200,
    "imports": 50,
    "engine": 20,
    "postgres": 20,
    "ranks": 10,
    "torchrun": 8,
    "services": 200,
}


@pytest.mark.drill
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LONG)
def test_the_long_drills(name, tmp_path, monkeypatch):
    output = tmp_path / "figures.json"
    monkeypatch.setattr("sys.argv", ["run.py", f"--{name}", str(LONG[name]), "--seed", "3", "--output", str(output)])
    assert drills.main() == 0, output.read_text()
