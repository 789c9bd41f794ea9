"""The page without a mouse, and without eyes: boxes that scroll, what is enlarged, keys, every step."""

import pytest

from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Run


@pytest.fixture(scope="module")
def two(serving, plain, causal):
    """The short run first: B has steps that no step of A is beside."""
    return serving([Run(from_memory(causal)), Run(from_memory(plain))])


def reading(page, panel):
    return page.locator(f"[data-panel={panel}] .reading").first.inner_text()


@pytest.mark.parametrize("box", [".table", ".text"])
def test_a_box_that_scrolls_keeps_its_keys(look, url, box):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=3&layer=1&tables=text")
    page.locator(f"[data-panel=text] {box}").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowLeft", "End", " "):
        page.keyboard.press(key)
    address = held.hash()
    assert "step=3&layer=1" in address
    assert page.get_by_role("button", name="Pause").count() == 0
    page.keyboard.press("n")  # it has no use for this one
    held.hash("scale=share")


def test_cells_of_the_flow_keep_their_keys(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=0&step=3&layer=1")
    page.locator("[data-panel=flow-difference] .matrix").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "step=3&layer=1" in held.hash()


def test_the_token_that_was_chosen_is_told(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=3&layer=1&token=4")
    page.keyboard.press(".")
    live = page.locator("[aria-live=polite]")
    live.get_by_text("position 5").wait_for(state="attached")
    page.keyboard.press("/")
    page.keyboard.type("lena")
    page.keyboard.press("Enter")
    live.get_by_text("position 2").wait_for(state="attached")
    page.keyboard.press("Enter")
    page.get_by_text("no other token holds “lena”").wait_for()


@pytest.mark.parametrize(("beside", "panel"), [("none", "heads"), ("1", "layers-difference")])
def test_an_enlarged_panel_takes_the_focus_and_gives_it_back(look, url, beside, panel):
    held = look(url)
    page = held.go(f"{url}#v=1&with={beside}&step=3&layer=1")
    page.wait_for_selector(f"[data-panel={panel}] canvas[data-drawn]")
    page.locator(f"[data-panel={panel}] [aria-pressed]").click()
    page.wait_for_selector(f"[data-panel={panel}].widest")
    page.wait_for_function("name => document.activeElement?.dataset.panel === name", arg=panel)
    assert page.evaluate(
        "document.querySelector('.bar').inert && document.querySelector('.top').inert"
    )
    for _ in range(12):  # the focus stays in it
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || !!document.activeElement?.closest('.widest')"
        )
    assert held.axe() == []
    page.keyboard.press("Escape")
    page.wait_for_function(
        "name => document.activeElement?.closest('[data-panel]')?.dataset.panel === name", arg=panel
    )
    assert page.evaluate("document.activeElement.hasAttribute('aria-pressed')")
    assert not page.evaluate("document.querySelector('.bar').inert")


@pytest.mark.parametrize("hash_", ["with=none&panel=difference", "run=4&with=none&panel=map"])
def test_a_panel_that_is_not_there_covers_nothing(look, url, hash_):
    page = look(url).go(f"{url}#v=1&{hash_}&step=3")
    assert page.locator("[inert]").count() == 0
    page.locator(".runs select").first.select_option("1")
    page.wait_for_selector("[data-panel=map] canvas[data-drawn]")


def test_keys_of_one_character_can_be_switched_off(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=3&layer=1")
    page.keyboard.press("?")
    page.locator("dialog input[type=checkbox]").uncheck()
    page.get_by_role("button", name="Close").click()
    address = held.hash("keys=off")
    again = look(url)
    page = again.go(url + address)
    for key in ("n", "m", ".", "]", "t", " ", "?"):
        page.keyboard.press(key)
    assert again.hash() == address
    assert page.locator("dialog[open]").count() == 0
    page.keyboard.press("ArrowRight")
    again.hash("step=4")


def test_query_and_key_of_an_exact_map_are_chosen_apart(look, url, plain):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=2&layer=1&head=3&token=6")
    page.wait_for_selector("[data-panel=exact] canvas[data-drawn]")
    page.locator("[data-panel=exact] input").first.fill("4")
    held.hash("query=4")
    page.locator("[data-panel=exact] input").nth(1).press("ArrowUp")
    assert "query=4" in held.hash("token=7")
    value = plain["pattern"].values[0][4, 7]
    said = reading(page, "exact")
    assert "query 4 " in said
    assert "key 7 " in said
    assert f"{float(f'{value:.5g}'):g}"[:6] in said


def test_every_step_of_a_longer_run_can_be_reached(look, two):
    held = look(two)
    page = held.go(f"{two}#v=1&layer=1&align=step")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    seen = set()
    for _ in range(10):
        seen.add(page.locator("[data-panel=textB] .says").inner_text().partition(":")[0])
        page.keyboard.press("ArrowRight")
    assert seen == {f"before step {step}" for step in range(8)}
    assert "step=5" in held.hash("stepB=7")
    assert "step 5 of A (83 % decided) is beside step 7 of B" in page.locator(".align").inner_text()
    page.keyboard.press("ArrowLeft")
    held.hash("stepB=6")
    bars = page.locator("input[type=range]")
    assert bars.count() == 2
    bars.nth(1).fill("3")
    assert "stepB" not in held.hash("step=3")


@pytest.mark.parametrize("align", ["decided", "steps"])
def test_a_step_that_is_chosen_in_b_stays(look, two, align):
    held = look(two)
    page = held.go(f"{two}#v=1&layer=1&align={align}")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    for step in range(8):
        page.locator("input[type=range]").nth(1).fill(str(step))
        page.wait_for_function(
            "step => document.querySelector('[data-panel=textB] .says')?.textContent.startsWith(`before step ${step}:`)",
            arg=step,
        )
        words = page.locator(".align").inner_text()
        assert f"is beside step {step} of B" in words
    address = held.hash()
    page = look(two).go(two + address)
    page.wait_for_selector("[data-panel=textB]")
    assert "before step 7" in page.locator("[data-panel=textB] .says").inner_text()


def test_all_that_is_chosen_is_in_the_link(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=3&layer=1")
    page.locator("[data-panel=heads] button", has_text="Table").click()
    page.locator(".scrub select").select_option("16 / s")
    page.locator("input[type=search]").fill("oslo")
    page.locator(".bar select").nth(3).select_option("masked")
    address = held.hash("group=masked")
    for word in ("tables=heads", "speed=16", "find=oslo"):
        assert word in address
    again = look(url)
    page = again.go(url + address)
    page.wait_for_selector("[data-panel=heads] .table")
    assert page.locator(".table").count() == 1
    assert page.locator("input[type=search]").input_value() == "oslo"
    assert again.hash() == address
