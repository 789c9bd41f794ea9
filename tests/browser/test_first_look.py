"""The first screen: what stands out, its links, the list of findings, explanations and the tour."""

import pytest

from anchorwatch.explorer.export import export
from anchorwatch.explorer.findings import find_all
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Run
from anchorwatch.metrics.sink_rules import rulli
from synthetic_traces import hostile_trace, moving_maps, planted, uniform

PATH = [2, 2, 2, 9, 9, 9]
SEEN = "try { localStorage.clear() } catch {}"


def moved():
    maps = moving_maps(PATH, length=14, share=0.6, heads=2)
    return planted(maps, prompt=4, texts={3: " Answer", 10: " ."}, source="lab/tales-mdm")


@pytest.fixture(scope="module")
def address(serving):
    runs = [moved(), planted(uniform(4, 1, 2, 14), prompt=4), hostile_trace()]
    return serving([Run(from_memory(trace)) for trace in runs])


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    place = tmp_path_factory.mktemp("first") / "page.html"
    return export([Run(from_memory(moved()))], place).as_uri()


def sentence(page):
    return page.locator("[data-first] .sentence").first.inner_text()


@pytest.mark.parametrize("where", ["server", "file"])
def test_a_page_opens_where_the_sink_moves_and_says_so(look, address, sent, where):
    start = f"{address}#v=1&with=none" if where == "server" else sent
    held = look(address if where == "server" else sent)
    page = held.go(start)
    held.hash("step=3&layer=0&token=9")
    said = sentence(page)
    assert said.startswith("In layer 0 the top key moves from “Answer” to the masked position 9")
    assert "the new one takes 60 % of attention, 8.4 times an even share." in said
    assert "This is the " in said
    assert " between sinks in " in said


def test_an_address_that_names_a_place_is_not_overruled(look, address):
    held = look(address)
    page = held.go(f"{address}#v=1&with=none&step=1")
    held.settle()
    assert "step=1" in held.hash()
    assert "token" not in held.hash()
    assert "moves from" in sentence(page)


def test_each_claim_leads_to_the_view_that_shows_it(look, address):
    held = look(address)
    page = held.go(f"{address}#v=1&with=none&step=0&layer=0")
    held.settle()
    links = page.locator("[data-first] .sentence button")
    views = [part["place"] for part in find_all(moved(), rulli())["words"] if "place" in part]
    assert links.count() == len(views) == 6
    for index, place in enumerate(views):
        links.nth(index).focus()
        page.keyboard.press("Enter")
        held.hash(f"step={place['step']}")
        assert page.evaluate("document.activeElement.dataset.panel") == place["view"]
    assert "scale=lift" in held.hash("scale=lift")


def test_the_list_has_value_null_and_lift_and_leads_there(look, address):
    held = look(address)
    page = held.go(f"{address}#v=1&with=none&step=0&layer=0")
    page.locator("[data-first] summary").click()
    page.get_by_role("heading", name="Largest moves").wait_for()
    text = page.locator("[data-first]").inner_text()
    assert "even 7.14 %" in text
    assert "8.4 ×" in text
    assert "mean of heads: 60 %" in text
    assert "none: masked and written positions never have different top sinks" in text
    page.get_by_role("button", name="head 0").click()
    held.hash("head=0")
    assert held.axe() == []


def test_the_view_of_layers_marks_each_move_and_says_whose_it_is(look, address):
    held = look(address)
    seen = {}
    for head in ("", "&head=1"):
        page = held.go(f"{address}#v=1&with=none&step=3&layer=0{head}")
        page.wait_for_selector("[data-panel=layers] canvas[data-drawn]")
        held.settle()
        panel = page.locator("[data-panel=layers]")
        assert "moved from position 2" in panel.locator(".reading").inner_text()
        assert "the top key moves" in panel.locator(".key").inner_text()
        seen[head] = panel.locator(".says").inner_text()
        x, y, width, height = map(float, panel.locator(".heat").get_attribute("data-frame").split())
        # A white line in the upper half where step 3 begins, and none where step 2 does.
        points = [[x + step * width / 6, y + height / 4] for step in (2, 3)]
        points.append([points[1][0], y + 3 * height / 4])
        white = page.evaluate(
            """points => {
              const canvas = document.querySelector('[data-panel=layers] canvas');
              const ratio = canvas.width / canvas.clientWidth;
              const at = ([x, y]) => [Math.round(x * ratio) - 2, Math.round(y * ratio), 5, 1];
              const copy = new OffscreenCanvas(canvas.width, canvas.height);
              const pen = copy.getContext('2d', { willReadFrequently: true });
              pen.drawImage(canvas, 0, 0);
              const rows = points.map(point => [...pen.getImageData(...at(point)).data]);
              return rows.map(row => row.some((_, i) => i % 4 === 0
                && Math.min(row[i], row[i + 1], row[i + 2]) > 200));
            }""",
            points,
        )
        assert white == [False, True, False]
    assert seen[""].startswith("mean of heads of each layer")
    assert seen["&head=1"].startswith("head 1 of each layer")


def test_an_even_run_says_that_nothing_stands_out(look, address):
    held = look(address)
    page = held.go(f"{address}#v=1&run=1&with=none")
    held.settle()
    assert sentence(page).startswith("Nothing stands out in this run")
    assert page.locator("[data-first] .sentence button").count() == 0


def test_hostile_tokens_are_text_in_findings(look, address):
    held = look(address)
    page = held.go(f"{address}#v=1&run=2&with=none")
    page.locator("[data-first] summary").click()
    held.settle()
    assert page.evaluate("window.hacked") is None
    assert page.locator("[data-first] img, [data-first] script").count() == 0


def test_a_term_is_explained_under_the_pointer_and_the_focus(look, address):
    held = look(address)
    page = held.go(f"{address}#v=1&with=none&step=0&layer=0")
    tip = page.locator("[role=tooltip]:visible")
    term = page.locator("[data-panel=map] .key .term").first
    term.hover()
    assert "A token that takes far more attention" in tip.inner_text()
    assert "rule rulli:3:sum" in tip.inner_text()
    page.mouse.move(0, 0)
    page.wait_for_function("() => !document.querySelector('[role=tooltip]:not([hidden])')")
    term.focus()
    tip.wait_for()
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('[role=tooltip]:not([hidden])')")


def test_the_first_screen_has_no_private_words(look, address):
    held = look(address)
    page = held.go(f"{address}#v=1&with=none&step=0&layer=0")
    held.settle()
    shown = page.locator("body").inner_text()
    for word in ("rulli", "greatest key is", "indifferent", "eight bits", "null"):
        assert word not in shown, word


def test_the_tour_has_five_stops_by_keyboard_and_is_offered_once(look, address):
    held = look(address)
    page = held.go(f"{address}#v=1&with=none&step=0&layer=0")
    page.evaluate(SEEN)
    page = held.go(f"{address}#v=1&with=none&step=0&layer=0")
    page.get_by_role("button", name="Take the tour").focus()
    page.keyboard.press("Enter")
    for stop in range(1, 6):
        page.wait_for_function(
            "stop => document.querySelector('#tour-title')?.textContent.startsWith(`${stop} of 5`)",
            arg=stop,
        )
        assert page.locator("[data-toured]").count() == 1
        page.wait_for_function("() => document.activeElement?.hasAttribute('data-next')")
        if stop == 2:
            assert held.axe() == []
        page.keyboard.press("ArrowRight" if stop % 2 else "Enter")
    page.wait_for_function("() => !document.querySelector('.tour')")
    assert "step=" not in held.hash()
    page = held.go(f"{address}#v=1&with=none&step=0&layer=0")
    assert page.get_by_role("button", name="Take the tour").count() == 0
    page.get_by_role("button", name="Tour").click()
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('.tour')")
    assert page.evaluate("document.activeElement.textContent") == "Tour"


def test_without_storage_the_tour_is_not_offered_and_nothing_breaks(look, sent):
    held = look(sent)
    held.page.add_init_script(
        "if (location.hash.includes('find=nostore'))"
        " Object.defineProperty(window, 'localStorage', { get() { throw new Error('none') } })"
    )
    page = held.go(f"{sent}#v=1&step=0&layer=0&find=nostore")
    assert page.get_by_role("button", name="Take the tour").count() == 0
    page.get_by_role("button", name="Tour").click()
    page.get_by_role("button", name="Skip").click()
    assert page.locator(".tour").count() == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_screen_is_accessible(look, address, dark, width):
    held = look(address, width=width, dark=dark)
    page = held.go(f"{address}#v=1&with=none&step=0&layer=0")
    page.locator("[data-first] summary").click()
    held.settle()
    assert held.axe() == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
