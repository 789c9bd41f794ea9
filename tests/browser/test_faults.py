"""What goes wrong in the page is said on it, and the rest can be used."""

import json

from anchorwatch.explorer.export import export
from anchorwatch.explorer.open import from_memory, open_for_viewing
from anchorwatch.explorer.run_data import Run


def test_another_run_brings_the_cursor_into_it(look, serving, plain, causal):
    """The last step and token of A are not in the shorter run that is chosen in its place."""
    url = serving([Run(from_memory(plain)), Run(from_memory(causal))])
    held = look(url)  # no error may be said
    page = held.go(f"{url}#v=1&with=1&step=7&layer=2&token=13")
    page.wait_for_selector("[data-panel=heads-difference] canvas[data-drawn]")
    page.locator(".runs select").first.select_option("1")
    held.hash("run=1")
    assert "step=5" in held.hash("token=9")
    said = page.locator(".notice").inner_text()
    assert "step 7 is not in this run: showing 5" in said
    assert "token 13 is not in this run: showing 9" in said
    assert "before step 5" in page.locator("[data-panel=textA] .says").inner_text()
    assert page.locator("[data-panel=heads-difference] canvas[data-drawn]").count() == 1


def lacking_parts(page):
    """The header that the page is given names no parts of the text."""

    def answer(route):
        told = route.fetch().json()
        route.fulfill(body=json.dumps(told | {"classes": None}), content_type="application/json")

    page.route("**/header.json", answer)


def test_a_view_that_fails_says_so_and_leaves_the_others(look, serving, plain):
    url = serving([Run(from_memory(plain))])
    held = look(url)
    lacking_parts(held.page)
    page = held.go(f"{url}#v=1&step=2&layer=1")
    failed = page.locator("[data-failed]")
    failed.wait_for()
    assert failed.count() == 1
    assert "The view “flow” could not be drawn here: TypeError" in failed.inner_text()
    for panel in ("map", "layers", "heads"):
        page.wait_for_selector(f"[data-panel={panel}] canvas[data-drawn]")
    page.keyboard.press("ArrowRight")
    held.hash("step=3")
    assert "before step 3" in page.locator("[data-panel=text] .says").inner_text()
    assert held.axe() == []


def test_an_error_that_nobody_caught_is_said(look, serving, plain):
    url = serving([Run(from_memory(plain))])
    held = look(url, quiet=False)
    page = held.go(f"{url}#v=1&step=2&layer=1")
    page.evaluate("() => void setTimeout(() => { throw new RangeError('too far') })")
    page.get_by_text("Something went wrong").wait_for()
    assert "RangeError: too far" in page.locator("#app > [role=alert]").inner_text()
    assert page.locator("[data-panel=map] canvas[data-drawn]").count() == 1


def test_a_whole_run_is_shown_beside_one_that_cannot_be(look, serving, plain, foreign):
    url = serving([Run(open_for_viewing(foreign)), Run(from_memory(plain))])
    page = look(url).go(f"{url}#v=1&step=2&layer=1")
    page.wait_for_selector("[data-panel=map] canvas[data-drawn]")
    said = page.locator(".notice.bad").inner_text()
    assert "other.trace cannot be shown" in said
    assert "The views are of" in said
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('step=3')")


def test_bytes_that_are_no_header_are_said(look, serving, plain):
    url = serving([Run(from_memory(plain)), Run(from_memory(plain))])
    held = look(url)
    held.page.route("**/0/header.json", lambda route: route.fulfill(body="{"))
    page = held.go(f"{url}#v=1&step=2&layer=1")
    assert "cannot be read: SyntaxError" in page.locator(".notice.bad").inner_text()
    page.wait_for_selector("[data-panel=map] canvas[data-drawn]")


def test_without_a_script_the_page_says_what_it_needs(browser, serving, plain, tmp_path):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    file = export([Run(from_memory(plain))], tmp_path / "page.html").as_uri()
    for address in (file, serving([Run(from_memory(plain))])):
        page.goto(address)
        assert "A script draws this page: allow it." in page.locator("body").inner_text()
    context.close()
