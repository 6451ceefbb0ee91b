"""The report in a real browser: it opens, a wrong query on the map leads to its gallery entry, nothing complains."""

import pytest

from covis.describing.describers import ModelDescriber
from covis.evaluation import load_benchmark
from covis.evaluation.run import evaluate_to
from covis.models import ModelConfig, PlaceModel
from covis.report import write_report


@pytest.fixture(scope="module")
def page_file(hamlet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    benchmark = load_benchmark("town", hamlet)
    groups = {}
    for seed, name in ((0, "one"), (1, "two")):
        model = PlaceModel.build(ModelConfig("tiny", "gem", (32, 32), "all"), seed)
        source = ModelDescriber(model, name, workers=0, cache=folder / "cache")
        groups[name] = evaluate_to(source, benchmark, folder / name)
    write_report(folder / "report.html", groups, benchmark, title="A <test> & more")
    return folder / "report.html"


WRONG = """shown => {
  const r = window.covisReport, wrong = r.data.queries.findIndex((q, i) => !r.answer(i).right && shown === !!document.getElementById("entry-" + q.id));
  const at = r.map.latLngToContainerPoint(r.at(wrong)), box = document.getElementById("query-map").getBoundingClientRect();
  return {x: box.left + at.x, y: box.top + at.y};
}"""


@pytest.mark.parametrize("shown", [True, False], ids=["entry shown", "entry further down"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_wrong_query_on_the_map_leads_to_its_gallery_entry(browser, page_file, shown, scheme):
    page = browser.new_page(viewport={"width": 1200, "height": 1600}, color_scheme=scheme)
    complaints = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("request", lambda r: complaints.append(r.url) if r.url.startswith("http") else None)
    page.goto(page_file.as_uri())
    assert page.title() == "A <test> & more"
    page.locator("#query-map").scroll_into_view_if_needed()
    at = page.evaluate(WRONG, shown)
    page.mouse.click(at["x"], at["y"])
    entry = page.locator(".entry.chosen")
    entry.wait_for(timeout=5000)
    assert entry.locator("img").count() == 3
    assert page.locator("#look .wrong-ink").inner_text() == "wrong"
    assert page.locator("#look img").count() == 2
    page.get_by_role("button", name="one").click()
    assert page.get_by_role("button", name="one").get_attribute("class") == "on"
    assert not complaints
    page.close()


@pytest.mark.parametrize(
    ("kind", "start"), [("Markdown", "| model"), ("LaTeX", "\\begin{tabular}"), ("CSV", "model,seeds")]
)
def test_tables_are_copied_as_text(browser, page_file, kind, start):
    page = browser.new_page()
    page.goto(page_file.as_uri())
    button = page.locator(f"#table-recall button[data-copy={kind}]")
    button.click()
    page.wait_for_function("b => b.dataset.copied", arg=button.element_handle(), timeout=5000)
    assert button.get_attribute("data-copied").startswith(start)
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_report_is_accessible(browser, page_file, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(page_file.as_uri())
    found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#table-recall td.number").first.evaluate("e => getComputedStyle(e).textAlign") == "right"
    page.close()


def test_a_printed_report_keeps_its_parts_together(browser, page_file, tmp_path):
    page = browser.new_page()
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    for part in ("figure", "table", ".entry"):
        assert page.locator(part).first.evaluate("e => getComputedStyle(e).breakInside") == "avoid", part
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().count(b"/Type /Page\n") >= 2
    page.close()


def test_printed_without_buttons_and_used_by_keyboard(browser, page_file):
    page = browser.new_page()
    page.goto(page_file.as_uri())
    assert page.locator(".copy").first.is_visible()
    page.emulate_media(media="print")
    assert not page.locator(".copy").first.is_visible()
    assert not page.locator("nav").is_visible()
    page.emulate_media(media="screen")
    page.locator("#query-map").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#look img").count() > 0
    assert all(alt for alt in page.eval_on_selector_all("img", "all => all.map(i => i.alt)"))
    assert page.locator(".entry").first.evaluate("e => e.tagName") == "BUTTON"
    page.close()
