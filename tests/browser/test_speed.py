"""How long a reader waits for a trace of full size: measured, and compared with what we promise.

Run by itself (`make test` does so last, `make bench-view` does only this): a busy machine makes a
reader wait, and this fails. Every number is printed beside its limit.
"""

import gzip
import sys
import time
from statistics import median

import pytest

from anchorwatch.explorer import page as pages
from anchorwatch.explorer.export import LIMIT_BYTES, export
from anchorwatch.explorer.opening import given, opened
from anchorwatch.explorer.tiles import Run
from shown import large

FIRST_PAINT_MS = 1000
SCRUB_MS = 50
SCRIPT_BYTES = 150_000
TRIES = 5
DRAWN = """() => {
  const layers = document.querySelector('[data-panel^=layers]');
  return layers && !layers.querySelector('[role=status]');
}"""

SCRUB = """async () => {
  const painted = () => new Promise(done => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done();
    channel.port2.postMessage(0);
  }));
  const times = [];
  for (let step = 0; step < 25; step++) {
    await painted();
    const begun = performance.now();
    document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    await painted();
    times.push(performance.now() - begun);
  }
  times.sort((a, b) => a - b);
  return times[12];
}"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return large().write(tmp_path_factory.mktemp("large") / "large.trace")


def first_paint(page, address):
    page.goto("about:blank")
    page.goto(address, wait_until="commit")
    held = page.wait_for_function(
        "() => document.querySelector('[data-panel=map] canvas[data-drawn]') && performance.now()",
        polling="raf",
    )
    return held.json_value()


@pytest.fixture
def tell(capsys):
    """Print a measured number, whatever pytest captures."""

    def say(what, numbers, unit, limit=None):
        spread = f"  ({min(numbers):.0f} to {max(numbers):.0f})" if len(numbers) > 1 else ""
        promise = f"  limit {limit:,.0f}" if limit else "  no limit promised"
        with capsys.disabled():
            sys.stdout.write(f"\n  {what:<48}{median(numbers):>10,.0f} {unit}{promise}{spread}")

    return say


@pytest.mark.alone
def test_a_full_trace_is_seen_within_a_second_and_scrubbed_without_waiting(
    look, serving, place, tell
):
    times, others, scrubs = [], [], []
    for _ in range(TRIES):
        url = serving([Run(opened(place))])  # nothing is kept from the try before
        held = look(url)
        times.append(first_paint(held.page, f"{url}#v=1&step=10"))
        held.page.wait_for_function(DRAWN)
        scrubs.append(held.page.evaluate(SCRUB))
        assert "step=35" in held.hash("step=35")
        url = serving([Run(opened(place))])
        held = look(url)
        others.append(first_paint(held.page, f"{url}#v=1&step=10&layer=2"))
        held.page.wait_for_function(DRAWN)  # what still loads would slow the next try
    tell("first paint of 1,024 tokens x 128 steps", times, "ms", FIRST_PAINT_MS)
    tell("the same at a layer that nothing prepared", others, "ms", FIRST_PAINT_MS)
    tell("a scrub step of it", scrubs, "ms", SCRUB_MS)
    assert median(times) < FIRST_PAINT_MS, times
    assert median(others) < FIRST_PAINT_MS, others
    assert median(scrubs) < SCRUB_MS, scrubs


@pytest.mark.alone
def test_two_full_traces_are_compared_while_one_scrubs(look, serving, place, tell):
    url = serving([Run(opened(place)), Run(opened(place))])
    page = look(url).go(f"{url}#v=1&with=1&step=10&layer=6")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    page.wait_for_function(DRAWN, timeout=120_000)
    scrub = page.evaluate(SCRUB)
    tell("a scrub step of two such runs, all differences", [scrub], "ms")
    assert scrub < 10 * SCRUB_MS


@pytest.mark.alone
def test_a_full_trace_is_sent_in_a_small_page(look, place, tmp_path, tell):
    begun = time.perf_counter()
    sent = export([Run(opened(place))], tmp_path / "page.html")
    tell("export of it", [1000 * (time.perf_counter() - begun)], "ms")
    size = sent.stat().st_size
    script = len(gzip.compress(pages.built("app.js").encode()))
    tell("the exported file", [size], "bytes", LIMIT_BYTES)
    tell("our script, gzipped", [script], "bytes", SCRIPT_BYTES)
    times = []
    for _ in range(TRIES):
        times.append(first_paint(look(sent.as_uri()).page, f"{sent.as_uri()}#v=1&step=10&layer=6"))
    tell("first paint of the exported file", times, "ms", FIRST_PAINT_MS)
    assert size < LIMIT_BYTES
    assert script < SCRIPT_BYTES
    assert median(times) < FIRST_PAINT_MS, times


def test_a_canvas_of_4096_tokens_is_binned_and_said(look, serving):
    trace = large(steps=128, length=4096, layers=8, heads=4, groups=("all",))
    url = serving([Run(given(trace))])
    page = look(url).go(f"{url}#v=1&step=64&layer=7")
    assert "the token axis is binned 4:1" in page.locator(".about").inner_text()
    page.wait_for_function(DRAWN, timeout=120_000)
    assert page.locator("[data-panel=text] [data-p]").count() == 4096
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('step=65')")
    assert "A column is 4 positions" in page.locator("[data-range]").inner_text()
    page.keyboard.press("]")
    page.keyboard.press("]")
    page.wait_for_function(
        "() => document.querySelector('[data-panel=map] .says').textContent.includes('head 1')"
    )
    key = int(trace["received"].values[65, 7, 1, 0].argmax())
    page.wait_for_function(
        "word => document.querySelector('[data-panel=map] .reading')?.textContent.includes(word)",
        arg=f"position {key} · ",
    )
