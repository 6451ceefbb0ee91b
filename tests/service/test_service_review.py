"""The review of a photo library in the service: read by those who may, saved by those who may write."""

import json

import httpx
import pytest

from covis.core.errors import InputError
from covis.geotagging import memory_of
from covis.geotagging.decisions import FORMAT
from covis.geotagging.review import StoredReview


def entry(name, i):
    evidence = [{"image": "001.jpg", "at": [55.7, 13.19], "fact": "1.5 min earlier"}]
    return {"photo": name, "key": f"key{i}", "album": "", "day": "2024-05-03", "at": [55.7 + i / 1000, 13.19], "p": 0.93,
            "confident": True, "by": "pictures and time", "note": "", "evidence": evidence}  # fmt: skip


@pytest.fixture
def review(own, made):
    """A server with a library's suggestions: (address, what is stored, {role: header})."""
    address, path, keys = own
    data = {"format": FORMAT, "library": "photos", "precision": 0.9, "dots": [[55.7, 13.19]],
            "entries": [entry("000.jpg", 0), entry("gone.jpg", 1)]}  # fmt: skip
    stored = StoredReview(memory_of(path))
    stored.file.parent.mkdir()
    stored.write(data, made / "photos")
    return f"{address}/v1/maps/town/review", stored, {role: {"x-api-key": key} for role, key in keys.items()}


def test_a_review_is_read_with_its_pictures_and_saved_with_a_key_that_may_write(review):
    url, stored, keys = review
    assert httpx.get(url).status_code == 401
    assert [e["photo"] for e in httpx.get(url, headers=keys["read"]).json()["entries"]] == ["000.jpg", "gone.jpg"]
    shown = httpx.get(f"{url}/pictures/001.jpg", headers=keys["read"])
    assert shown.content.startswith(b"\xff\xd8\xff")
    for name, status in (("002.jpg", 404), ("../town.map/manifest.json", 404), ("gone.jpg", 404)):
        assert httpx.get(f"{url}/pictures/{name}", headers=keys["read"]).status_code == status
    assert httpx.get(f"{url}/pictures/gone.jpg?missing=ok", headers=keys["read"]).status_code == 204
    made = {"format": FORMAT, "decisions": [{"photo": "000.jpg", "key": "key0", "decision": "reject"}]}
    put = {"url": f"{url}/decisions", "json": made}
    assert httpx.put(**put, headers=keys["read"]).status_code == 403
    assert httpx.put(**put, headers=keys["write"]).json() == {"map": "town", "saved": 1}
    assert httpx.get(url, headers=keys["read"]).json()["decisions"] == made["decisions"]
    for wrong in ({"format": "other", "decisions": []}, {"format": FORMAT, "decisions": [1]}, []):
        assert httpx.put(f"{url}/decisions", json=wrong, headers=keys["write"]).status_code == 422
    assert json.loads(stored.decisions.read_bytes())["decisions"] == made["decisions"]


def test_a_map_without_suggestions_says_so(town, tmp_path):
    assert "run covis geotag" in httpx.get(f"{town}/v1/maps/town/review").json()["detail"]
    with pytest.raises(InputError, match="run covis geotag"):
        StoredReview(tmp_path).read()


def test_the_page_decides_saves_and_shows_it_again(review, browser):
    url, stored, keys = review
    page = browser.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    for expected in ("", "accept"):
        page.goto(url.partition("/v1")[0] + "/review")
        if not expected:
            page.locator("#key").fill(keys["write"]["x-api-key"])
            page.get_by_role("button", name="Use it").click()
        page.locator("#list li").first.wait_for()
        assert page.evaluate("covisReview.entries[0].decision") == expected
        assert page.locator("#list img, #list .gone").count() == 2
        if not expected:
            page.keyboard.press("ArrowRight")
            page.keyboard.press("a")
            page.keyboard.press("s")
            page.get_by_text("1 decisions saved").wait_for()
    page.close()
    assert problems == []
    (decided,) = json.loads(stored.decisions.read_bytes())["decisions"]
    assert (decided["photo"], decided["decision"], decided["lat"]) == ("000.jpg", "accept", 55.7)
