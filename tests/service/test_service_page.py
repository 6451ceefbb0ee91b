"""The page in a real browser: drop a photo, see its pin, draw an area, walk, compare, gaps; axe and the console are silent."""

import base64
import shutil
import time
from pathlib import Path

import pytest
from served import LAT, LON, jpeg, running

from covis.images import ImageSet
from covis.maps.map import Map
from covis.poses import Poses
from covis.service.app import create_app
from covis.service.keys import Keys, add_key

SIZES = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 800}}
DROP = """async ({name, data}) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0)), carried = new DataTransfer();
  carried.items.add(new File([bytes], name, {type: "image/jpeg"}));
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", {bubbles: true, cancelable: true, dataTransfer: carried}));
}"""


def wait(page, expression, seconds=120):
    """Until the expression is true; playwright's own waiting evaluates text, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(f"() => !!({expression})"):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def opened(browser, address, size="desktop", scheme="light"):
    page = browser.new_page(viewport=SIZES[size], color_scheme=scheme)
    page.complaints = []
    page.on("console", lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: page.complaints.append(str(e)))
    page.on(
        "request",
        lambda r: page.complaints.append(r.url) if not r.url.startswith((address, "blob:", "data:")) else None,
    )
    page.goto(address)
    wait(page, "window.covisReady")
    return page


def drop(page, seed, name="query.jpg"):
    page.evaluate(DROP, {"name": name, "data": base64.b64encode(jpeg(seed)).decode()})
    wait(page, "!document.querySelector('#answers[aria-busy]')")


def check_axe(page):
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_a_dropped_photo_becomes_a_pin(browser, town, size, scheme):
    page = opened(browser, town, size, scheme)
    drop(page, 7)
    pin = page.locator(".leaflet-marker-icon.pin")
    pin.wait_for()
    before = page.evaluate("covisPage.answers.answers[0].position")
    drop(page, 47)
    after = page.evaluate("covisPage.answers.answers[0].position")
    assert before["lat"] != after["lat"]
    assert pin.count() == 1
    assert page.locator(".answer .matches li").count() == 5
    page.locator(".matches button").first.click()
    wait(page, "document.getElementById('right').complete && document.getElementById('right').naturalWidth > 0")
    check_axe(page)
    page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    check_axe(page)
    page.get_by_role("button", name="Photos of the map").click()
    page.locator("#gallery img").first.wait_for()
    assert page.locator("#gallery li").count() == 60
    check_axe(page)
    assert not page.complaints
    page.close()


@pytest.mark.slow
def test_photos_chosen_before_the_maps_are_listed_are_asked(browser, town):
    page = browser.new_page(viewport=SIZES["desktop"])
    page.route("**/v1/maps", lambda route: (time.sleep(0.5), route.continue_()))
    page.goto(town, wait_until="commit")
    wait(page, "window.covisPage")  # its script runs; the maps are not there yet
    page.set_input_files("#files", [{"name": "early.jpg", "mimeType": "image/jpeg", "buffer": jpeg(7)}])
    wait(page, "covisPage.answers")
    page.wait_for_timeout(300)
    assert page.locator(".answer").count() == 1
    assert "1 of 1 located" in page.locator("#status").inner_text()
    assert "not calibrated" not in page.locator("#status").inner_text()
    page.close()


@pytest.mark.slow
def test_the_page_speaks_as_the_command_line_and_says_why_pictures_are_missing(browser, made, town, tmp_path):
    page = opened(browser, town)
    drop(page, 7)
    verdict = page.evaluate("covisPage.answers.answers[0].verdict")
    shown = page.locator(".verdict").first.inner_text().replace("\u00a0", " ")
    assert verdict.casefold().startswith(shown.casefold())
    assert page.locator("#hint").is_hidden()
    page.close()
    shutil.copytree(made / "town.map", tmp_path / "far.map")  # another place: no folder was given to it here
    with running(create_app([tmp_path / "far.map"])) as address:
        page = opened(browser, address)
        drop(page, 7)
        wait(page, "!document.getElementById('hint').hidden")
        assert "covis serve MAP --pictures FOLDER" in page.locator("#hint").inner_text()
        assert page.locator(".matches .gone").first.inner_text() == "no picture"
        assert not page.complaints
        check_axe(page)
        page.close()


@pytest.mark.slow
def test_areas_walks_and_downloads(browser, town):
    page = opened(browser, town)
    page.set_input_files(
        "#files", [{"name": f"w{i}.jpg", "mimeType": "image/jpeg", "buffer": jpeg(i)} for i in (4, 5, 6)]
    )
    wait(page, "covisPage.answers && covisPage.answers.answers.length === 3")
    page.get_by_label("The photos are one walk").check()
    wait(page, "covisPage.answers.walk !== null")
    assert "of its photos agree" in page.locator("#status").inner_text()
    for kind, start in (
        ("JSON", b"{"),
        ("CSV", b'"photo"'),
        ("GeoJSON", b'{"type":"FeatureCollection"'),
        ("GeoPose", b"["),
    ):
        with page.expect_download() as waited:
            page.locator("#downloads").get_by_role("button", name=kind, exact=True).click()
        assert Path(waited.value.path()).read_bytes().startswith(start)
    page.get_by_label("The photos are one walk").uncheck()
    wait(page, "covisPage.answers.walk === null")
    page.get_by_role("button", name="Draw an area").click()
    # the third street alone: a triangle around its photos, by the page's own projection
    corners = page.evaluate(
        """() => { const b = covisPage.map.bounds, box = document.getElementById('map').getBoundingClientRect();
        covisPage.plane.setView([(b[1] + b[3]) / 2, (b[0] + b[2]) / 2], 18, {animate: false});
        const up = b[3] - 0.0001;
        return [[up, b[0] - 0.0002], [up, b[2] + 0.0002], [b[3] + 0.0003, b[2]], [b[3] + 0.0003, b[0]]].map(at => {
          const p = covisPage.plane.latLngToContainerPoint(at); return [p.x + box.left, p.y + box.top]; }); }"""
    )
    for x, y in corners:
        page.mouse.click(x, y)
    page.get_by_role("button", name="Finish area").click()
    wait(page, "covisPage.answers.answers.every(a => a.matches.every(m => m.group === 'walk 2'))")
    assert not page.complaints
    page.close()


@pytest.mark.slow
def test_a_key_is_asked_for_once(browser, made, tmp_path):
    key = add_key(tmp_path / "keys.json", "phone", "read")
    with running(create_app([made / "town.map"], keys=Keys(tmp_path / "keys.json"))) as address:
        page = browser.new_page()
        page.goto(address)
        page.locator("#key").fill(key)
        page.get_by_role("button", name="Use it").click()
        wait(page, "window.covisReady")
        drop(page, 7)
        page.locator(".leaflet-marker-icon.pin").wait_for()
        page.close()


@pytest.mark.slow
def test_a_name_that_looks_like_markup_stays_text(browser, made, tmp_path):
    """Leaflet takes strings as HTML; the policy of the page stops scripts, not elements such as a redirection."""
    shutil.copytree(made / "town.map", tmp_path / "town.map")
    hostile = '<meta http-equiv="refresh" content="0;url=about:blank"><b id=injected>'
    images = ImageSet.of(made / "photos", ["007.jpg"], Poses.from_latlon([LAT], [LON], [90.0]), ["walk 9"])
    Map.open(tmp_path / "town.map").add(images, prefix=hostile)
    with running(create_app([tmp_path / "town.map"])) as address:
        page = opened(browser, address)
        drop(page, 7)
        page.locator(".leaflet-marker-icon.pin").wait_for()
        page.evaluate(
            "() => { covisPage.layers.chosen.eachLayer(layer => layer.getTooltip() && layer.openTooltip()); }"
        )
        shown = page.locator(".leaflet-tooltip").all_inner_texts()
        assert any(text.startswith(hostile) for text in shown), shown
        page.evaluate(
            "() => { covisPage.layers.photos.eachLayer(layer => layer.options.radius && layer.fire('click')); }"
        )
        assert page.locator("#injected").count() == page.locator("body meta").count() == 0
        assert page.url.startswith(address)
        page.close()
