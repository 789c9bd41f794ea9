"""What makes the explorer quick on any machine: few requests, few bytes. `make bench-view` has times."""

import gzip
import re

import pytest

from anchorwatch.explorer import page as pages
from anchorwatch.explorer.export import LIMIT_BYTES, export
from anchorwatch.explorer.open import from_memory, open_for_viewing
from anchorwatch.explorer.run_data import Run
from synthetic_traces import large_trace

SCRIPT_BYTES = 150_000
"""Gzipped."""
DRAWN = """() => {
  const layers = document.querySelector('[data-panel^=layers]');
  return layers && !layers.querySelector('[role=status]');
}"""
MAP = "[data-panel=map] canvas[data-drawn]"


def parts(asked, url):
    """What was asked of the server, by name."""
    return [address.removeprefix(url).partition("#")[0] for address in asked if url in address]


def test_the_first_picture_takes_six_requests(look, serving, plain):
    """All others are kept waiting: no view needs more than frames and one layer to begin."""
    url = serving([Run(from_memory(plain))])
    held, waiting = look(url), []
    begun = (
        "",
        "app.js",
        "app.css",
        "data/0/header.json",
        "data/0/frames.bin",
        "data/0/layer-2.bin",
    )

    def hold(route):
        if parts([route.request.url], url)[0] in begun:
            route.fallback()
        else:
            waiting.append(route)

    held.page.route("**/*", hold)
    held.page.goto(f"{url}#v=1&step=3&layer=2")
    held.page.wait_for_selector(MAP)
    answered = set(parts(held.asked, url)) - {
        name for route in waiting for name in parts([route.request.url], url)
    }
    assert answered == set(begun)
    assert len(held.asked) == len(set(held.asked)), "nothing is asked for twice"
    for route in waiting:
        route.fallback()
    held.page.unroute("**/*", hold)
    held.page.wait_for_function(DRAWN)


def test_scrubbing_asks_for_rows_alone_and_only_where_it_stops(look, serving, plain):
    url = serving([Run(from_memory(plain))])
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=0&layer=1")
    held.settle()
    held.asked.clear()
    page.evaluate("""() => {
      for (let step = 0; step < 5; step++)
        document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    }""")
    held.settle()
    assert "step=5" in held.hash("step=5")
    assert parts(held.asked, url) == ["data/0/row-5-1-mean.bin"]


def test_our_script_is_small():
    assert len(gzip.compress(pages.read_built("app.js").encode())) < SCRIPT_BYTES


@pytest.mark.slow
def test_a_full_trace_is_sent_in_a_small_page(look, tmp_path):
    place = large_trace().write(tmp_path / "large.trace")
    sent = export([Run(open_for_viewing(place))], tmp_path / "page.html")
    assert sent.stat().st_size < LIMIT_BYTES
    held = look(sent.as_uri())
    held.go(f"{sent.as_uri()}#v=1&step=10&layer=6").wait_for_selector(MAP)
    assert [re.sub("#.*", "", url) for url in held.asked if url != "about:blank"] == [sent.as_uri()]


@pytest.mark.slow
def test_two_full_traces_are_compared_while_one_scrubs(look, serving, tmp_path):
    place = large_trace().write(tmp_path / "large.trace")
    url = serving([Run(open_for_viewing(place)), Run(open_for_viewing(place))])
    held = look(url)
    page = held.go(f"{url}#v=1&with=1&step=10&layer=6")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    page.wait_for_function(DRAWN)
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    assert "step=35" in held.hash("step=35")


@pytest.mark.slow
def test_a_canvas_of_4096_tokens_is_binned_and_said(look, serving):
    trace = large_trace(steps=128, length=4096, layers=8, heads=4, groups=("all",))
    url = serving([Run(from_memory(trace))])
    page = look(url).go(f"{url}#v=1&step=64&layer=7")
    assert "the token axis is binned 4:1" in page.locator(".about").inner_text()
    page.wait_for_function(DRAWN)
    assert page.locator("[data-panel=text] [data-p]").count() == 4096
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('step=65')")
    assert "A column is 4 positions" in page.locator("[data-range]").inner_text()
    page.keyboard.press("]")
    page.keyboard.press("]")
    page.wait_for_function(
        "() => document.querySelector('[data-panel=map] .says')?.textContent.includes('head 1')"
    )
    key = int(trace["received"].values[65, 7, 1, 0].argmax())
    page.wait_for_function(
        "word => document.querySelector('[data-panel=map] .reading')?.textContent.includes(word)",
        arg=f"position {key} · ",
    )
