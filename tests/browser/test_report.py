"""The page of a study in a real browser, from a file: quiet, reachable, in light and dark."""

from pathlib import Path

import pytest

import planted_study
from anchorwatch.studies.report.comparison import sections
from anchorwatch.studies.report.page import page
from anchorwatch.studies.verdict import BELOW_MARGIN

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PHONE, DESK = (360, 740), (1280, 900)
NAMES = ("floating", "sinks/H13", "sink_token/H5", "sink_token/H6")
DRAWN = ("floating/H2", "sink_token/H5")
COUNT = 32
HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A page with every verdict, some figures, and names that would run if they could."""
    study = planted_study.study(names=NAMES, models=planted_study.MODELS | {"arm": HOSTILE})
    drawn = {name: study.draw(name) for name in DRAWN}
    assert all(drawn.values())
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(study, drawn, sections(study)))
    return path


@pytest.fixture
def opened(browser, place):
    """Opens the page; in the end it must have said nothing and asked for nothing but itself."""
    held, said, asked = [], [], []

    def open_page(size=DESK, *, dark=False, script=True):
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            java_script_enabled=script,
        )
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(place.as_uri())
        held.append(context)
        return page

    yield open_page
    for context in held:
        context.close()
    assert said == []
    assert {url.partition("#")[0] for url in asked} == {place.as_uri()}


LOOKS = [
    pytest.param(DESK, False, id="desk-light"),
    pytest.param(DESK, True, id="desk-dark", marks=pytest.mark.slow),
    pytest.param(PHONE, False, id="phone-light", marks=pytest.mark.slow),
    pytest.param(PHONE, True, id="phone-dark", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("size", "dark"), LOOKS)
def test_axe_finds_nothing(opened, size, dark):
    page = opened(size, dark=dark)
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document)")["violations"]
    assert [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in found] == []


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_nothing_scrolls_sideways(opened, size):
    page = opened(size)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_filters_show_what_they_say(opened):
    page = opened()
    rows = page.locator("tr[data-claim]")
    page.select_option("select[name=verdict]", BELOW_MARGIN)
    shown = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < rows.count()
    assert all(row.get_attribute("data-verdict") == BELOW_MARGIN for row in shown)
    page.select_option("select[name=paper]", "sinks")
    fewer = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(fewer) < len(shown)
    assert page.locator("#told").inner_text() == f"{len(fewer)} of {COUNT} claims shown"
    assert page.locator("article[data-claim]:visible").count() == len(fewer)
    page.click("button[type=reset]")
    page.wait_for_function(f"document.getElementById('told')?.textContent.startsWith('{COUNT}')")
    page.fill("input[name=words]", "sinks/h13")
    assert [row.get_attribute("data-claim") for row in rows.all() if row.is_visible()] == [
        "sinks/H13"
    ]


def test_a_link_to_a_claim_that_is_filtered_away_shows_it(opened):
    page = opened()
    page.fill("input[name=words]", "sinks/h13")
    page.evaluate("location.hash = '#floating-H1'")
    page.wait_for_selector("#floating-H1", state="visible")


def test_without_a_script_everything_is_there(opened):
    page = opened(script=False)
    assert page.locator("tr[data-claim]:visible").count() == COUNT
    assert not page.locator("#filters").is_visible()


def test_foreign_text_does_not_run(opened):
    page = opened()
    assert page.title().startswith("anchorwatch study")
    assert HOSTILE in page.locator("dl.facts").first.inner_text()


def test_it_prints_all_claims_and_no_buttons(opened, tmp_path):
    page = opened()
    page.emulate_media(media="print")
    assert not page.locator("#filters").is_visible()
    assert page.locator("article[data-claim]:visible").count() == COUNT
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 50_000
