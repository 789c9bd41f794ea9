"""Takes the pictures of docs/explorer.md: `make tour`. Needs Chromium (`make setup-browser`).

Lab models where the package has them, else the untrained tiny ones: `--models` names others.
"""

import argparse
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import anchorwatch as aw
from anchorwatch.explorer.findings import find_all
from anchorwatch.explorer.head_tables import read_tables
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.explorer.server import Server
from anchorwatch.metrics import table_files

OUT = Path(__file__).parent / "explorer"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PANELS = ("map", "layers", "text", "flow", "geometry", "exact")
APART = ("difference", "layers-difference", "heads-difference", "flow-difference")
LAB = ("lab/tales-mdm", "lab/tales-arm", "lab/tales-sink")
TINY = ("tiny/llada", "tiny/arm", "tiny/llada")
LENGTH = 16
PROMPTS = 6
WITH = aw.worlds.Distractors(random=1, hard=1)
STORY = "Once upon a time, there was a little girl named Lily. She"
"""The prompt of `make look`, whose run the first look is of."""
GIVEN = 1
"""A token of the prompt, at which two runs are compared."""
COLUMNS = 48
"""Columns of the binned run: of few tokens, it looks as one of thousands does with 1,024."""


@dataclass(frozen=True)
class Spot:
    """Where the pictures are taken: where something happens in the first run."""

    step: int
    layer: int
    head: int
    token: int


def main() -> None:
    asked = _asked()
    asked.out.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as held, sync_playwright() as playwright:
        spot, runs = _runs(asked.models, Path(held))
        server = Server(runs)
        threading.Thread(target=server.serve, daemon=True).start()
        place = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=place, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        _pictures(page, server.url, spot, asked.out)
        browser.close()
        server.close()


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs=3, metavar=("MDM", "ARM", "SINK"), default=_there())
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


def _there() -> Sequence[str]:
    """The lab models, if all three are in the package."""
    models = Path(aw.__file__).parent / "models" / "zoo"
    return LAB if all((models / name.removeprefix("lab/")).is_dir() for name in LAB) else TINY


def _runs(names: Sequence[str], place: Path) -> tuple[Spot, list[Run]]:
    """Diffusion with a metric table, the prompt autoregressive, with a sink, binned; a story."""
    items = list(aw.worlds.items("held-out", n=PROMPTS, distractors=WITH))
    mdm, arm, sink = (aw.load(name) for name in names)
    low = aw.decoding.LowConfidence(length=LENGTH, steps=LENGTH, forbid_end=True)
    spot = _find_spot(_run(mdm, items[0], low))
    one = _run(mdm, items[0], low, spot)
    two = _run(arm, items[0], aw.decoding.LeftToRight(length=LENGTH, stop=False))
    three = _run(sink, items[0], low, edits=() if sink.parts else (aw.edits.sink_token(),))
    rest = [_run(mdm, item, low) for item in items[1:]]
    table = aw.metrics.absorption([one, *rest], by=["layer", "head"])
    tables = tuple(read_tables([table_files.save(table, place / "absorption.csv")]))
    first = Run(from_memory(one), Options(tables=tables))
    others = [Run(from_memory(two)), Run(from_memory(three))]
    story = Run(from_memory(aw.run(mdm, STORY, aw.decoding.LowConfidence(length=32))))
    return spot, [first, *others, Run(from_memory(one), Options(columns=COLUMNS)), story]


def _find_spot(trace: aw.Trace) -> Spot:
    place = find_all(trace, aw.rules.rulli())["place"]
    if place is None:  # an untrained model: anywhere
        return Spot(LENGTH // 2, 0, 0, GIVEN)
    return Spot(place["step"], place["layer"] or 0, place["head"] or 0, place["token"])


def _run(
    model: aw.Model,
    item: aw.worlds.Item,
    how: aw.decoding.Decoding,
    spot: Spot | None = None,
    edits: Sequence[aw.edits.Edit] = (),
) -> aw.Trace:
    probes = [*aw.probes.DEFAULT, aw.probes.region_flow()]
    if spot is not None:
        probes.append(
            aw.probes.pattern(layers=(spot.layer,), heads=(spot.head,), steps=(spot.step,))
        )
    return aw.run(model, item.prompt(), how, regions=item.regions(), probes=probes, edits=edits)


def _settled(page: Page, address: str) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("[data-panel] canvas[data-drawn]")
    page.wait_for_selector("[data-panel^=geometry] figure:nth-child(5)")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)


def _panel(page: Page, name: str, file: Path) -> None:
    page.evaluate("document.querySelector('.bar').style.position = 'static'")  # it would cover
    page.locator(f"[data-panel={name}]").screenshot(path=file)


def _pictures(page: Page, url: str, spot: Spot, out: Path) -> None:
    here = f"with=none&step={spot.step}&layer={spot.layer}&token={spot.token}"
    _settled(page, f"{url}#v=1&run=4&with=none")
    page.get_by_role("button", name="Not now").click()
    page.locator("[data-first] summary").click()
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=out / "first.png", full_page=False)
    _settled(page, f"{url}#v=1&{here}")
    page.screenshot(path=out / "one.png", full_page=True)
    _settled(page, f"{url}#v=1&{here}&head={spot.head}")
    for panel in PANELS:
        _panel(page, panel, out / f"{panel}.png")
    _settled(page, f"{url}#v=1&{here}&head={spot.head}&measure=top1+%28absorption%29")
    page.locator("[data-panel=heads] button", has_text="Table").click()
    _panel(page, "heads", out / "table.png")
    _settled(page, f"{url}#v=1&run=3&{here}")
    _panel(page, "map", out / "bin.png")
    for beside, name in ((1, "arm"), (2, "sink")):
        _settled(page, f"{url}#v=1&with={beside}&step={spot.step}&layer={spot.layer}&token={GIVEN}")
        page.screenshot(path=out / f"two-{name}.png", full_page=False)
        for panel in APART:
            _panel(page, panel, out / f"{panel}-{name}.png")
    _settled(page, f"{url}#v=1&{here}&scale=lift&theme=dark")
    page.screenshot(path=out / "dark.png", full_page=False)


if __name__ == "__main__":
    main()
