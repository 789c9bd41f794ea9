"""How long a reader waits for a trace of full size: measured, and compared with what we promise.

Run by itself (`make test` does so last): a busy machine makes a reader wait, and this fails.
"""

from statistics import median

import pytest

from anchorwatch.explorer.opening import given, opened
from anchorwatch.explorer.tiles import Run
from shown import large

FIRST_PAINT_MS = 1000
SCRUB_MS = 50
TRIES = 5

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


@pytest.mark.alone
def test_a_full_trace_is_seen_within_a_second_and_scrubbed_without_waiting(look, serving, place):
    times, scrubs = [], []
    for _ in range(TRIES):
        url = serving([Run(opened(place))])  # nothing is kept from the try before
        held = look(url)
        times.append(first_paint(held.page, f"{url}#v=1&step=10&layer=6"))
        held.page.wait_for_function(
            "() => !document.querySelector('[data-panel=layers] [role=status]')"
        )
        scrubs.append(held.page.evaluate(SCRUB))
        assert "step=35" in held.hash("step=35")
    assert median(times) < FIRST_PAINT_MS, times
    assert median(scrubs) < SCRUB_MS, scrubs


def test_a_canvas_of_4096_tokens_is_binned_and_said(look, serving):
    trace = large(steps=128, length=4096, layers=32, heads=1, groups=("all",))
    url = serving([Run(given(trace))])
    page = look(url).go(f"{url}#v=1&step=64&layer=31")
    assert "the token axis is binned 4:1" in page.locator(".about").inner_text()
    page.wait_for_function(
        "() => !document.querySelector('[data-panel=layers] [role=status]')", timeout=120_000
    )
    assert page.locator("[data-panel=text] [data-p]").count() == 4096
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('step=65')")
    assert "A column is 4 positions" in page.locator("[data-range]").inner_text()
