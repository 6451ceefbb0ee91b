"""`covis serve` and `covis keys` on the command line."""

import signal
import stat

import httpx
import pytest
from served import jpeg, process

from covis.service.keys import Keys


def test_other_addresses_need_keys_or_a_word(covis, tmp_path):
    (tmp_path / "town.map").mkdir()
    (tmp_path / "k.json").write_text("{}", encoding="utf-8")
    code, _, err = covis("serve", tmp_path / "town.map", "--host", "0.0.0.0")
    assert (code, "--keys FILE, or --open" in err) == (2, True)
    code, _, err = covis("serve", tmp_path / "town.map", "--open", "--keys", tmp_path / "k.json")
    assert (code, "contradict" in err) == (2, True)
    code, _, err = covis("serve", tmp_path / "none.map")
    assert (code, "covis index PHOTOS" in err) == (2, True)
    code, _, err = covis("serve", tmp_path / "town.map")
    assert (code, "is not a covis map" in err) == (2, True)


def test_keys_are_made_listed_and_taken_away(covis, tmp_path):
    file = tmp_path / "keys.json"
    code, out, err = covis("keys", file, "--add", "phone", "--json")
    made = out
    assert (code, made["role"]) == (0, "read")
    assert "only its hash" in err
    assert made["key"] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert covis("keys", file, "--add", "phone")[0] == 2
    assert covis("keys", file, "--add", "other", "--role", "admin")[0] == 2
    covis("keys", file, "--add", "importer", "--role", "write")
    assert covis("keys", file, "--json")[1] == [
        {"name": "phone", "role": "read"},
        {"name": "importer", "role": "write"},
    ]
    keys = Keys(file)
    assert keys.find(made["key"]).name == "phone"
    assert keys.find(made["key"][:-1]) is None
    covis("keys", file, "--remove", "phone")
    assert keys.find(made["key"]) is None
    assert covis("keys", file, "--remove", "phone")[0] == 2
    file.write_text('{"keys": [{"name": "x", "role": "read", "sha256": "short"}]}')
    code, _, err = covis("keys", file)
    assert (code, "key 1 needs" in err) == (2, True)


@pytest.mark.slow
def test_a_server_starts_answers_and_stops(made):
    with process(made / "town.map") as (child, address):
        answer = httpx.post(f"{address}/v1/locate", files={"photo": ("a.jpg", jpeg(7))}, timeout=30)
        assert answer.json()["answers"][0]["matches"][0]["image"] == "007.jpg"
        assert httpx.get(f"{address}/v1/maps", headers={"Host": "evil.example"}).status_code == 421
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 143


def test_a_damaged_file_of_keys_is_refused(covis, tmp_path):
    file = tmp_path / "keys.json"
    assert covis("keys", file, "--add", "phone")[0] == 0
    assert file.stat().st_mode & 0o077 == 0
    content = file.read_text()
    at = content.index('"sha256": "') + 11
    file.write_text(content[:at] + ("1" if content[at] == "0" else "0") + content[at + 1 :])
    code, _, err = covis("keys", file)
    assert (code, "checksum" in err) == (2, True)
    file.write_text(content.replace("phone", "tablet").split(',\n  "covis_checksum"')[0] + "}")  # edited by hand
    assert "tablet" in covis("keys", file)[1]
