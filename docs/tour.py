"""Takes the screenshots of docs/explorer.md: `make tour`. Needs Chromium (`make setup-browser`)."""

import shutil
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import anchorwatch as aw
from anchorwatch.explorer.opening import given
from anchorwatch.explorer.server import Server
from anchorwatch.explorer.tiles import Run

OUT = Path(__file__).parent / "explorer"
ASK = "Passage: Lena was born in Oslo.\nQuestion: Where was Lena born?\nAnswer:"
REGIONS = {"passage": "Lena was born in Oslo.", "question": "Where was Lena born?"}
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PANELS = ("map", "layers", "text", "heads", "flow", "geometry", "exact")


def traces() -> list[aw.Trace]:
    """A diffusion run and an autoregressive one of the same prompt."""
    probes = [*aw.probes.DEFAULT, aw.probes.region_flow()]
    mdm, arm = aw.load("tiny/llada"), aw.load("tiny/arm")
    exact = aw.probes.pattern(layers=(1,), heads=(0,), steps=(9,))
    how = aw.decoding.LowConfidence(length=32, steps=32)
    one = aw.run(mdm, ASK, how, regions=REGIONS, probes=[*probes, exact])
    two = aw.run(arm, ASK, aw.decoding.LeftToRight(length=32), regions=REGIONS, probes=probes)
    return [one, two]


def settled(page: Page, address: str) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("[data-panel] canvas[data-drawn]")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    server = Server([Run(given(trace)) for trace in traces()])
    threading.Thread(target=server.serve, daemon=True).start()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory():
        place = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=place, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        settled(page, f"{server.url}#v=1&step=9&layer=1&token=24")
        page.screenshot(path=OUT / "one.png", full_page=True)
        settled(page, f"{server.url}#v=1&step=9&layer=1&head=0&token=24")
        for panel in PANELS:
            page.locator(f"[data-panel={panel}]").screenshot(path=OUT / f"{panel}.png")
        settled(page, f"{server.url}#v=1&with=1&step=9&layer=1&token=24")
        page.screenshot(path=OUT / "two.png", full_page=False)
        page.locator("[data-panel=difference]").screenshot(path=OUT / "difference.png")
        settled(page, f"{server.url}#v=1&step=9&layer=1&scale=lift&theme=dark")
        page.screenshot(path=OUT / "dark.png", full_page=False)
        browser.close()
    server.close()


if __name__ == "__main__":
    main()
