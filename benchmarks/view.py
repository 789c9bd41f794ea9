"""How long a reader waits for a trace of full size, beside what we promise: `make bench-view`.

First paint, scrubbing and export of 1,024 tokens x 128 steps, in the machine's Chromium. The same
of a small trace stands beside it, so that a slow machine can be told from a slow page. Numbers are
medians of several tries, and only printed: a busy machine makes a reader wait, and no test fails.
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

import pandas as pd
from playwright.sync_api import Error, sync_playwright

from anchorwatch.explorer.export import export
from anchorwatch.explorer.open import open_for_viewing
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.explorer.run_list import RunFolder
from anchorwatch.explorer.server import Server
from anchorwatch.trace.runs import COLUMNS, Runs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from synthetic_traces import large_trace, small_trace

FIRST_PAINT_MS = 1000
SCRUB_MS = 50
BOTH_SCRUB_MS = 500
LIST_MS, LISTED = 1500, 1000
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
PAINTED = "() => document.querySelector('[data-panel=map] canvas[data-drawn]') && performance.now()"
READ = """() => {
  const layers = document.querySelector('[data-panel^=layers]');
  return layers && !layers.querySelector('[role=status]');
}"""
LIST_PAINTED = """() => {
  const paint = performance.getEntriesByName('first-contentful-paint')[0];
  return document.querySelectorAll('tbody tr').length && paint && paint.startTime;
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
    with serving_runs([Run(open_for_viewing(path)) for path in paths]) as url:
        yield url


@contextmanager
def serving_runs(runs):
    server = Server(runs)
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


def list_painted(browser):
    """ms until a list of 1,000 runs is painted, from the table to the page."""
    words = {"model": "lab/tales-mdm", "prompt": "Once upon a time", "answer": "there was a girl"}
    values = dict.fromkeys(COLUMNS, "") | words | {"seed": range(LISTED), "steps": 32}
    table = pd.DataFrame({name: values[name] for name in COLUMNS}, index=range(LISTED))
    with serving_runs(RunFolder(Runs(None, table), Options())) as url, page_of(browser) as page:
        goto(page, url)
        return page.wait_for_function(LIST_PAINTED, polling="raf").json_value()


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/view.json"))
    given = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        raise SystemExit("the explorer is measured in Chromium: make setup-browser")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        full = large_trace().write(folder / "large.trace")
        little = small_trace().write(folder / "small.trace")
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        turns = range(given.tries)
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
        listed = [list_painted(browser) for _ in turns]
        rows["list of runs"] = say(f"first paint of a list of {LISTED:,} runs", listed, LIST_MS)
        begun = time.perf_counter()
        sent = export([Run(open_for_viewing(full))], folder / "page.html")
        rows["export"] = say("export as one page", [1000 * (time.perf_counter() - begun)])
        times = []
        for _ in turns:
            with page_of(browser) as page:
                times.append(first_paint(page, f"{sent.as_uri()}#v=1&step=10&layer=6"))
        rows["first paint of a file"] = say("first paint of that page", times, FIRST_PAINT_MS)
        browser.close()
    given.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
