"""The page of answers in a real browser: drag, zoom, click a match, keyboard, phone and dark, without a complaint."""

import io
import math
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.maps.answers import Answer, Match, Position
from covis.maps.locating import places_of
from covis.maps.page import write_answers, write_map
from covis.maps.pictures import note_images
from covis.poses import Poses
from covis.web.tiles import parse_tiles

NAME = "</script><b>&'\"é.jpg"


def photos(folder: Path) -> ImageSet:
    names = [f"{i}.jpg" for i in range(11)] + [NAME.replace("/", "∕")]
    for i, name in enumerate(names):
        Image.fromarray(np.full((30, 40, 3), 20 * i, np.uint8)).save(folder / name)
    poses = Poses.from_latlon(55.7 + 0.0002 * np.arange(12), np.full(12, 13.19), np.arange(12) * 30.0)
    files = np.array([os.fsencode(folder / name) for name in names])
    return ImageSet.of(folder, names, poses, ["east"] * 8 + ["west"] * 4, columns={"file": files})


def answer(images: ImageSet, i: int, confident: bool) -> Answer:
    places = places_of(images.poses)
    matches = tuple(
        Match(images.name(j), images.path(j), places[j], "", 0.3 + 0.1 * j, 0.5, 0.8 - 0.1 * j)
        for j in (i, i + 1, i + 2)
    )
    note = "" if confident else "a precision of 90 % needs a probability above 84 %"
    return Answer(images.path(i), matches, Position(places[i], 14.0, 0.9, 2), 0.89, confident, note)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    images = photos(folder)
    answers = [answer(images, 0, True), answer(images, 4, False), answer(images, 9, True)]
    answers.append(Answer(folder / "bad.jpg", (), None, None, False, "the photo cannot be used: empty", unusable=True))
    write_answers(folder / "answers.html", answers, images)
    write_map(folder / "map.html", images, f"map {NAME}", {"photos": len(images), "model": "<tiny>"})
    return folder


@pytest.fixture
def opened(browser, pages):
    """Opens a page; whatever it says in the console, or asks of the network, is an error."""
    complaints, made = [], []

    def open_page(name="answers.html", width=1200, height=900, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
        page.goto((pages / name).as_uri())
        made.append(page)
        return page

    yield open_page
    for page in made:
        page.close()
    assert complaints == []


def centre(page):
    return page.evaluate(
        "(() => { const c = covisMap.map.getCenter(); return [c.lat, c.lng, covisMap.map.getZoom()]; })()"
    )


def test_overview_first_then_drag_zoom_and_a_match(opened):
    page = opened()
    assert page.locator("header p").inner_text() == "3 of 4 photos located in a map of 12 photos; 2 answers confident."
    assert page.locator("#list button").count() == 4
    assert page.locator(".legend").is_visible()
    assert page.locator(".leaflet-control-scale-line").is_visible()
    inside = page.evaluate("covisMap.pins.filter(p => p).every(p => covisMap.map.getBounds().contains(p.getLatLng()))")
    assert inside
    box = page.locator("#map").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = centre(page)
    page.mouse.move(x + 60, y + 60)
    page.mouse.down()
    page.mouse.move(x - 60, y - 20, steps=5)
    page.mouse.up()
    page.wait_for_timeout(300)
    assert centre(page)[:2] != before[:2]
    page.locator(".leaflet-control-zoom-in").click()
    page.wait_for_timeout(400)
    assert centre(page)[2] > before[2]

    page.locator("#list button").nth(1).click()
    assert "not confident" in page.locator("#verdict").inner_text()
    assert page.locator("#matches li").count() == 3
    assert page.locator("#pair img").count() == 2
    page.locator("#matches button").nth(1).click()
    assert page.locator("#matches button").nth(1).get_attribute("aria-pressed") == "true"
    assert "5.jpg" in page.locator("#pair figcaption").nth(1).inner_text()
    assert page.locator("#links a").first.get_attribute("href").startswith("https://www.openstreetmap.org/?mlat=55.70")
    page.locator(".leaflet-marker-icon[title='3. 6.jpg']").click()
    assert page.evaluate("covisMap.chosen") == 2


def test_legends_name_what_is_drawn_and_nothing_else(opened):
    page = opened()
    shown = page.locator(".legend").inner_text().splitlines()
    confident = page.evaluate("covisMap.data.entries.some((e) => e.tone === 'sure')")
    assert ("located, confident" in shown) == confident
    assert {"match", "line to a match", "photo of the map"} <= set(shown)
    page = opened("map.html")
    assert page.locator(".legend").inner_text().splitlines()[1:] == ["chosen photo", "heading", "east", "west"]


def test_a_chosen_photo_of_a_map_stands_out(opened):
    page = opened("map.html")
    page.locator("#list button").nth(3).click()
    name = page.locator("#name").inner_text()
    assert page.locator(f".leaflet-marker-icon[title='chosen: {name}']").count() == 1
    assert page.evaluate("covisMap.pins.every((p) => p.options.fillOpacity < 0.5)")
    page.locator("#overview").click()
    assert page.locator(".leaflet-marker-icon[title^='chosen']").count() == 0


def test_a_photo_chosen_far_down_the_list_is_in_view(opened):
    page = opened("map.html", 1280, 420)
    page.locator("#list button").last.click()
    assert page.evaluate("document.querySelector('aside').scrollTop") == 0
    assert page.locator("#name").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#list").is_visible()


def test_the_list_is_filtered_and_sorted(opened):
    page = opened()
    names = page.locator("#list b")
    page.select_option("#show", "sure")
    assert [name.split("/")[-1] for name in names.all_inner_texts()] == ["0.jpg", "9.jpg"]
    page.select_option("#show", "")
    page.fill("#low", "50")
    page.locator("#low").dispatch_event("change")
    assert names.count() == 3  # the unusable photo has no probability
    page.select_option("#sort", "name")
    assert names.first.inner_text().endswith("/0.jpg")
    assert page.locator("#walk").is_hidden()  # all are of one folder
    page = opened("map.html")
    page.select_option("#walk", "west")
    assert page.locator("#list button").count() == 4
    assert page.locator("#show").is_hidden()


def test_the_keyboard_does_it_all(opened):
    page = opened()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("covisMap.current") == 0
    page.keyboard.press("ArrowDown")
    assert page.evaluate("covisMap.chosen") == 1
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("covisMap.current") == 3
    assert "cannot be used" in page.locator("#verdict").inner_text()
    page.keyboard.press("Escape")
    assert page.evaluate("covisMap.current") == -1
    assert page.locator("#list").is_visible()
    page.locator("#list button").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("covisMap.current") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)], ids=["desktop", "phone"])
def test_it_fits_the_screen_and_is_accessible(opened, scheme, width, height):
    page = opened("answers.html", width, height, scheme)
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
    assert found.violations_count == 0, found.generate_report()


def test_a_whole_map_and_names_that_look_like_markup(opened, pages):
    page = opened("map.html")
    assert page.locator("h1").inner_text() == f"map {NAME}"
    assert page.locator("#list button").count() == 12
    page.locator("#list button").nth(11).click()
    assert page.locator("#name").inner_text() == NAME.replace("/", "∕")
    assert "<tiny>" in page.locator(".facts").inner_text()
    assert "</script><b>" not in (pages / "map.html").read_text(encoding="utf-8")


def test_tiles_are_an_address_with_places(tmp_path):
    with pytest.raises(InputError, match=r"\{z\}, \{x\} and \{y\}"):
        write_map(tmp_path / "m.html", photos(tmp_path), "m", {}, tiles="https://example.org/tiles")
    write_map(tmp_path / "m.html", photos(tmp_path), "m", {}, tiles="https://example.org/{z}/{x}/{y}.png")
    assert "example.org" in (tmp_path / "m.html").read_text(encoding="utf-8")


def test_tiles_of_openstreetmap_are_credited_to_it():
    osm = parse_tiles("osm")
    assert osm is not None
    assert osm.credit == "© OpenStreetMap contributors"
    assert osm.link.endswith("openstreetmap.org/copyright")
    assert (
        parse_tiles("https://{s}.tile.openstreetmap.org/{z}/{x}/{y}.png").origin == "https://*.tile.openstreetmap.org"
    )
    assert parse_tiles("http://127.0.0.1:8080/{z}/{x}/{y}").origin == "http://127.0.0.1:8080"
    assert parse_tiles("") is None
    for wrong in (
        "https://example.org; script-src *//{z}/{x}/{y}",
        "ftp://example.org/{z}/{x}/{y}",
        "javascript:{z}{x}{y}",
    ):
        with pytest.raises(InputError, match="--tiles is osm"):
            parse_tiles(wrong)


def street_file(path: Path) -> Path:
    """An MBTiles file with the tiles of zoom 14 to 16 around the photos."""
    picture = io.BytesIO()
    Image.new("RGB", (256, 256), (220, 230, 210)).save(picture, "PNG")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE metadata (name TEXT, value TEXT)")
        database.execute("CREATE TABLE tiles (zoom_level INT, tile_column INT, tile_row INT, tile_data BLOB)")
        database.execute("INSERT INTO metadata VALUES ('attribution', '<a href=x>&copy; OpenStreetMap</a>')")
        for z in (14, 15, 16):
            x, y = (
                int((13.19 + 180) / 360 * 2**z),
                int((1 - math.asinh(math.tan(math.radians(55.7))) / math.pi) / 2 * 2**z),
            )
            around = [(z, x + i, 2**z - 1 - y - j, picture.getvalue()) for i in range(-3, 4) for j in range(-3, 4)]
            database.executemany("INSERT INTO tiles VALUES (?, ?, ?, ?)", around)
    return path


def test_streets_of_a_file_lie_in_the_page(browser, tmp_path):
    file = street_file(tmp_path / "town.mbtiles")
    write_map(tmp_path / "m.html", photos(tmp_path), "m", {}, tiles=str(file))
    page = browser.new_page()
    page.goto((tmp_path / "m.html").as_uri())
    page.locator(".leaflet-tile-loaded[src^='data:image/png']").first.wait_for()
    assert page.locator(".leaflet-control-attribution").inner_text() == "© OpenStreetMap"
    assert page.evaluate("covisMap.data.tiles.finest") == 16
    page.close()
    (tmp_path / "no.mbtiles").write_bytes(b"no tiles")
    for wrong in ("no.mbtiles", "absent.mbtiles"):
        with pytest.raises(InputError, match=rf"{wrong}"):
            parse_tiles(str(tmp_path / wrong))


def test_a_strangers_map_shows_no_pictures_of_other_folders(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    for folder in ("given", "private"):
        (tmp_path / folder).mkdir()
    images = photos(tmp_path / "given")
    private = photos(tmp_path / "private")
    mine, theirs = tmp_path / "mine.map", tmp_path / "theirs.map"
    note_images(mine, images)
    for path, shown, pictures in ((mine, images, 12), (theirs, private, 0), (mine, private, 0)):
        write_map(tmp_path / "m.html", replace(shown, root=path), "m", {})
        assert (tmp_path / "m.html").read_text().count("data:image/jpeg") == pictures
        assert ("12 photos are shown without a picture" in capsys.readouterr().err) == (pictures == 0)
    asked = [replace(answer(private, 0, True), photo=images.path(0))]
    write_answers(tmp_path / "a.html", asked, replace(private, root=theirs))
    assert (tmp_path / "a.html").read_text().count("data:image/jpeg") == 1  # the photo that was asked
    assert f"--pictures {tmp_path / 'private'}" in capsys.readouterr().err
    write_answers(tmp_path / "a.html", asked, replace(private, root=theirs), pictures=[tmp_path / "private"])
    assert (tmp_path / "a.html").read_text().count("data:image/jpeg") == 4


def test_the_keyboard_goes_from_the_list_to_the_matches_and_back(opened):
    """What had the focus is hidden; the focus goes on where the reader does."""
    page = opened()
    page.locator("#list button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "overview"
    for _ in range(7):  # previous, next, three links, copy, the first match
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").startswith("1. 4.jpg")
    page.keyboard.press("Escape")
    assert "4.jpg" in page.evaluate("document.activeElement.textContent")


def test_photos_on_both_sides_of_the_antimeridian_lie_together(browser, tmp_path):
    poses = Poses.from_latlon([-16.5, -16.5], [179.9999, -179.9999], [0.0, 0.0])
    files = np.array([os.fsencode(tmp_path / f"{i}.jpg") for i in range(2)])
    images = ImageSet.of(tmp_path, ["0.jpg", "1.jpg"], poses, columns={"file": files})
    write_map(tmp_path / "map.html", images, "Fiji", {})
    page = browser.new_page()
    page.goto((tmp_path / "map.html").as_uri())
    apart = page.evaluate("covisMap.map.distance(covisMap.pins[0].getLatLng(), covisMap.pins[1].getLatLng())")
    east, west = page.evaluate("(b => [b.getEast(), b.getWest()])(covisMap.map.getBounds())")
    page.evaluate("covisMap.select(1)")
    address = page.locator("#links a").first.get_attribute("href")
    page.close()
    assert apart == pytest.approx(21.3, abs=0.3)
    assert east - west < 0.01
    assert "mlon=-179.999900" in address
