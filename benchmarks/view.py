"""How long a reader waits for a trace of full size, beside what we promise: `make bench-view`.

First paint, scrubbing and export of 1,024 tokens x 128 steps, in the machine's Chromium; first
paint of a list of 1,000 runs and of its small pictures. The same of a small trace stands beside it,
so that a slow machine can be told from a slow page. Numbers are medians of several tries, and only
printed: a busy machine makes a reader wait, and no test fails.
"""

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Error, sync_playwright

from anchorwatch.explorer.export import export
from anchorwatch.explorer.open import open_for_viewing
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.explorer.run_list import RunFolder
from anchorwatch.explorer.server import Server
from anchorwatch.trace.runs import open_runs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from planted_runs import FIELDS, make_runs
from synthetic_traces import large_trace, small_trace

FIRST_PAINT_MS = 1000
LIST_MS = 1500
"""Until the list of 1,000 runs is painted; its small pictures come when they are scrolled to."""
LISTED = 1000
SCRUB_MS = 50
BOTH_SCRUB_MS = 500
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
PAINTED = "() => document.querySelector('[data-panel=map] canvas[data-drawn]') && performance.now()"
READ = """() => {
  const layers = document.querySelector('[data-panel^=layers]');
  return layers && !layers.querySelector('[role=status]');
}"""
SCRUB = """async steps => {
  const painted = () => new Promise(done => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done();
    channel.port2.postMessage(0);
  }));
  const times = [];
  for (let step = 0; step < steps; step++) {
    await painted();
    const begun = performance.now();
    document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    await painted();
    times.push(performance.now() - begun);
  }
  times.sort((a, b) => a - b);
  return times[times.length >> 1];
}"""


@contextmanager
def serving(*paths):
    """Traces served anew, so that nothing is kept from the try before; yields the address."""
    server = Server([Run(open_for_viewing(path)) for path in paths])
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.close()
        thread.join()


@contextmanager
def page_of(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    try:
        yield context.new_page()
    finally:
        context.close()


def goto(page, address):
    """Open an address; a server that has only just been started is asked again."""
    for _ in range(100):
        try:
            return page.goto(address, wait_until="commit")
        except Error as error:
            if "ERR_CONNECTION_REFUSED" not in str(error):
                raise
            time.sleep(0.05)
    raise RuntimeError(f"nothing answers at {address}")


def first_paint(page, address):
    goto(page, address)
    return page.wait_for_function(PAINTED, polling="raf").json_value()


def wait_until_read(page):
    """What still loads would slow what is measured next."""
    page.wait_for_function(READ, timeout=120_000)


def tried(browser, path, at, scrub=0):
    """(ms until the first picture, ms for a step of scrubbing), with a server of its own."""
    with serving(path) as url, page_of(browser) as page:
        painted = first_paint(page, f"{url}#v=1&{at}")
        wait_until_read(page)
        return painted, page.evaluate(SCRUB, scrub) if scrub else None


CONTENT = """() => {
  const [paint] = performance.getEntriesByName('first-contentful-paint');
  return document.querySelector('main') && paint && paint.startTime;
}"""
DRAWN = """() => {
  const inSight = (image) => image.getBoundingClientRect().top < innerHeight;
  const images = [...document.images].filter(inSight);
  return images.length && images.every((image) => image.complete) && performance.now();
}"""


@contextmanager
def listing(path):
    server = Server(RunFolder(open_runs(path), Options()))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.close()
        thread.join()


def list_painted(browser, path, query=""):
    """ms until the list of a folder is painted, or until the pictures in sight are there."""
    with listing(path) as url, page_of(browser) as page:
        goto(page, url + query)
        return page.wait_for_function(DRAWN if query else CONTENT, polling="raf").json_value()


def make_listed(path):
    fields = FIELDS | {"prompts": [f"prompt {number}" for number in range(LISTED // 4)]}
    make_runs(path, fields)
    return path


def both_scrubbed(browser, path):
    with serving(path, path) as url, page_of(browser) as page:
        goto(page, f"{url}#v=1&with=1&step=10&layer=6")
        page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
        wait_until_read(page)
        return page.evaluate(SCRUB, 25)


def say(what, numbers, limit=None, beside=None):
    """Print a number beside its limit, and as a multiple of the same of a small trace."""
    words = f"  {what:<46}{median(numbers):>8,.0f} ms"
    if limit:
        over = "" if median(numbers) < limit else "  OVER"
        words += f"  limit {limit:,.0f} ms{over}"
    else:
        words += "  no limit promised"
    if beside:
        words += f"  {median(numbers) / median(beside):.1f}x a small trace"
    if len(numbers) > 1:
        words += f"  ({min(numbers):,.0f} to {max(numbers):,.0f})"
    print(words, flush=True)
    return {"ms": numbers, "limit": limit}


def measure_list(browser, folder, turns):
    many = make_listed(folder / "runs")
    list_painted(browser, many)  # the first page of a browser pays for starting it
    return {
        "list": say(
            f"first paint of a list of {LISTED:,} runs",
            [list_painted(browser, many) for _ in turns],
            LIST_MS,
        ),
        "pictures": say(
            "small pictures in sight",
            [list_painted(browser, many, "?as=pictures") for _ in turns],
        ),
    }


def measure_run(browser, folder, turns):
    full = large_trace().write(folder / "large.trace")
    little = small_trace().write(folder / "small.trace")
    tried(browser, little, "step=1")  # the first page of a browser pays for starting it
    base = [tried(browser, little, "step=1", scrub=6) for _ in turns]
    paints, scrubs = zip(*base, strict=True)
    whole = [tried(browser, full, "step=10", scrub=25) for _ in turns]
    others = [tried(browser, full, "step=10&layer=2")[0] for _ in turns]
    print("1,024 tokens x 128 steps, 12 layers x 8 heads")
    rows = {
        "first paint": say(
            "first paint", [p for p, _ in whole], FIRST_PAINT_MS, beside=list(paints)
        ),
        "first paint elsewhere": say(
            "first paint at a layer nothing prepared", others, FIRST_PAINT_MS, list(paints)
        ),
        "scrub": say("a step of scrubbing", [s for _, s in whole], SCRUB_MS, list(scrubs)),
        "scrub of both": say(
            "the same of two runs with all differences",
            [both_scrubbed(browser, full)],
            BOTH_SCRUB_MS,
        ),
    }
    begun = time.perf_counter()
    sent = export([Run(open_for_viewing(full))], folder / "page.html")
    rows["export"] = say("export as one page", [1000 * (time.perf_counter() - begun)])
    times = []
    for _ in turns:
        with page_of(browser) as page:
            times.append(first_paint(page, f"{sent.as_uri()}#v=1&step=10&layer=6"))
    return rows | {"first paint of a file": say("first paint of that page", times, FIRST_PAINT_MS)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--only-list", action="store_true", help="Only the list of many runs.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/view.json"))
    given = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        raise SystemExit("the explorer is measured in Chromium: make setup-browser")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        turns = range(given.tries)
        rows = {} if given.only_list else measure_run(browser, Path(name), turns)
        rows |= measure_list(browser, Path(name), turns)
        browser.close()
    given.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
