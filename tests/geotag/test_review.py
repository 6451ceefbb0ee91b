"""The review page in a real browser: decisions by keyboard, a pin that moves, filters, and the file that it saves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from libraries import picture, save

from covis.geotagging import review
from covis.geotagging.decisions import accepted
from covis.geotagging.library import Library, LibraryPhoto
from covis.geotagging.review import review_data, write_review
from covis.geotagging.session import Geotagged
from covis.geotagging.suggestions import Suggestion
from covis.maps.answers import Answer, Match, Place, Position

COUNT = 100


@pytest.fixture
def found(tmp_path):
    """A hundred suggestions of falling probability, the last without a position, and a photo with one."""
    save(tmp_path / "lib/first/<b>000.jpg", picture(2))
    file = str(save(tmp_path / "lib/known.jpg", picture(1)))
    known = LibraryPhoto("known.jpg", "k", (), 48.0, 11.0, file=file)
    photos, made = [known], []
    for i in range(COUNT):
        name = f"{'first' if i < 50 else 'second'}/<b>{i:03d}.jpg"
        photo = LibraryPhoto(name, f"key{i}", day=f"2024-05-{1 + i // 10:02d}", file=file)
        place = Place(0, 0, None, 48.0 + i / 1000, 11.0)
        match = Match("known.jpg", Path(file), place, "", 0.4, None, 0.5)
        answer = Answer(Path(name), (match,), Position(place, None, 0.9, 1), 0.995 - i / 110, i < 10)
        if i == COUNT - 1:
            answer = replace(answer, position=None, note="it does not look like a photo of a place")
        photos.append(photo)
        made.append(Suggestion(photo, answer, "pictures and time" if answer.position else "", (("known.jpg", -90.0),)))
    return Geotagged(Library(tmp_path / "lib", photos, [(48.0, 11.0)]), made)


def test_photos_are_accepted_rejected_moved_and_saved(found, tmp_path, browser):
    write_review(tmp_path / "review.html", review_data(found, 0.9), found.library.root)
    page = browser.new_page(accept_downloads=True)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
    page.goto((tmp_path / "review.html").as_uri())
    assert page.locator("#list li").count() == 40  # of a hundred: the rest is drawn when it is looked at
    assert page.inner_text("#list li:first-child b") == "first/<b>000.jpg"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("a")
    page.keyboard.press("r")
    assert page.evaluate("covisReview.entries.slice(0, 2).map((e) => e.decision)") == ["accept", "reject"]
    page.evaluate("covisReview.move(L.latLng(-12.5, 200))")
    page.select_option("#album", "second")
    assert page.evaluate("covisReview.shown.length") == 50
    page.fill("#low", "40")
    page.dispatch_event("#low", "change")
    shown = page.evaluate("covisReview.shown.length")
    assert 0 < shown < 50
    page.click("#all")
    with page.expect_download() as saved:
        page.click("#save")
    saved.value.save_as(tmp_path / "decisions.json")
    page.close()
    assert problems == []
    decided = json.loads((tmp_path / "decisions.json").read_text())["decisions"]
    assert [entry["decision"] for entry in decided[:3]] == ["accept", "reject", "accept"]
    assert len(decided) == 3 + shown
    chosen = accepted(found.suggestions, tmp_path / "decisions.json")
    assert len(chosen) == 2 + shown
    place = chosen[1].answer.position.place
    assert (place.lat, place.lon) == pytest.approx((-12.5, -160))
    assert chosen[0] is found.suggestions[0]


def test_the_page_holds_each_picture_once_and_not_without_end(found, tmp_path, monkeypatch, capsys):
    data = review_data(found, 0.9)
    write_review(tmp_path / "review.html", data, found.library.root)
    text = (tmp_path / "review.html").read_text()
    assert text.count('"known.jpg": "data:image') + text.count('"known.jpg":"data:image') == 1
    assert "<b>000.jpg" not in text
    monkeypatch.setattr(review, "_MOST_BYTES", 1)
    write_review(tmp_path / "review.html", data, found.library.root)
    assert "shows" in capsys.readouterr().err
